//! A list that grows while its items are borrowed.

use std::iter;
use std::sync::OnceLock;

/// Items that stay where they are until the list goes. Few: to find one is to walk.
#[derive(Debug)]
pub(super) struct Chain<T> {
    first: OnceLock<Box<Link<T>>>,
}

#[derive(Debug)]
struct Link<T> {
    item: T,
    rest: Chain<T>,
}

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Self { first: OnceLock::new() }
    }
}

impl<T> Chain<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        iter::successors(self.first.get(), |link| link.rest.first.get()).map(|link| &link.item)
    }

    /// The first item that is wanted; made and added where there is none. Of two threads that add one at once, each finds its own.
    pub(super) fn find_or_add(&self, is_wanted: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> &T {
        let (mut at, mut make) = (self, Some(make));
        loop {
            let link = at.first.get_or_init(|| {
                let item = make.take().expect("what was made is wanted, and ends the walk")();
                Box::new(Link { item, rest: Self::default() })
            });
            if make.is_none() || is_wanted(&link.item) {
                return &link.item;
            }
            at = &link.rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn items_are_made_once_and_stay_where_they_are() {
        let chain = Chain::default();
        assert!(chain.is_empty());
        let first = chain.find_or_add(|item| *item == 1, || 1);
        let second = chain.find_or_add(|item| *item == 2, || 2);
        assert!(std::ptr::eq(first, chain.find_or_add(|item| *item == 1, || unreachable!("it is there"))));
        assert_eq!((*first, *second, chain.iter().copied().collect::<Vec<_>>()), (1, 2, vec![1, 2]));
    }

    #[test]
    fn threads_that_add_different_items_find_their_own() {
        let chain = Chain::default();
        thread::scope(|scope| {
            for mine in 0..8 {
                let chain = &chain;
                scope.spawn(move || assert_eq!(*chain.find_or_add(|item| *item == mine, || mine), mine));
            }
        });
        let mut all: Vec<_> = chain.iter().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<_>>());
    }
}
