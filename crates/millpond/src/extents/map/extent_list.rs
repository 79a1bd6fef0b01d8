//! Lists of extents, linked through their records: to add one, or to take one out, costs the same however many there are, and
//! takes no memory of the host's.

use super::extent::{ExtentId, Extents, Link};

/// Extents in the order in which they were added. Each is on one list at most.
#[derive(Debug, Default)]
pub(in crate::extents) struct ExtentList {
    /// The first and the last.
    ends: Link,
    len: usize,
}

impl ExtentList {
    pub(in crate::extents) fn len(&self) -> usize {
        self.len
    }

    pub(in crate::extents) fn first(&self) -> Option<ExtentId> {
        self.ends.next
    }

    pub(in crate::extents) fn iter<'a>(
        &self,
        extents: &'a Extents,
    ) -> impl Iterator<Item = ExtentId> + use<'a> {
        std::iter::successors(self.ends.next, |id| extents[*id].link.next)
    }

    /// Adds an extent, which is on no list, as the last.
    pub(in crate::extents) fn push(&mut self, extents: &mut Extents, id: ExtentId) {
        let last = self.ends.prev.replace(id);
        extents[id].link = Link { prev: last, next: None };
        *self.behind(extents, last) = Some(id);
        self.len += 1;
    }

    /// Takes out an extent that is on this list.
    pub(in crate::extents) fn remove(&mut self, extents: &mut Extents, id: ExtentId) {
        let Link { prev, next } = std::mem::take(&mut extents[id].link);
        debug_assert!(prev.is_some() || self.ends.next == Some(id), "{id:?} is on another list");
        *self.behind(extents, prev) = next;
        match next {
            Some(next) => extents[next].link.prev = prev,
            None => self.ends.prev = prev,
        }
        self.len -= 1;
    }

    /// What comes after an extent of the list; the first where there is none.
    fn behind<'a>(&'a mut self, extents: &'a mut Extents, id: Option<ExtentId>) -> &'a mut Option<ExtentId> {
        match id {
            Some(id) => &mut extents[id].link.next,
            None => &mut self.ends.next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::extent::{Extent, ExtentState};
    use super::super::layout::Zone;
    use super::super::sparse::Records;
    use super::*;

    #[test]
    fn a_list_keeps_its_order_whatever_is_taken_out() {
        let (mut extents, mut list) = (Extents::default(), ExtentList::default());
        extents.begin(Records::new(6).expect("there are addresses"));
        assert_eq!(extents.make_room(6, 0, |_| true), Ok(()));
        let ids: Vec<_> = (0..6)
            .map(|region| extents.add(Extent::whole(region, Zone::Large, 1, ExtentState::Free)))
            .collect();
        ids.iter().for_each(|id| list.push(&mut extents, *id));
        // One inside, the first, the last, and one beside a gap.
        for (out, first) in [(2, 0), (0, 1), (5, 1), (3, 1)] {
            list.remove(&mut extents, ids[out]);
            assert_eq!(list.first(), Some(ids[first]));
        }
        list.push(&mut extents, ids[2]);
        let of = |list: &ExtentList, extents: &Extents| list.iter(extents).collect::<Vec<_>>();
        assert_eq!(of(&list, &extents), [ids[1], ids[4], ids[2]]);
        for (left, id) in [(2, ids[4]), (1, ids[2]), (0, ids[1])] {
            list.remove(&mut extents, id);
            assert_eq!((list.len(), of(&list, &extents).len()), (left, left));
        }
        list.push(&mut extents, ids[3]);
        assert_eq!((list.first(), of(&list, &extents)), (Some(ids[3]), vec![ids[3]]));
    }
}
