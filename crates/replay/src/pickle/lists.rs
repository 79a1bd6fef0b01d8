//! The lists and tuples of a pickle. A snapshot has a call stack for each event, as a list of dicts, and few of them differ.
//! So short lists of dicts are kept once.

use std::collections::HashMap;

use super::value::Value;

/// Dicts in a list that is kept once, at most: frames of a call stack.
const LONGEST: usize = 1024;

#[derive(Debug)]
enum List {
    Own(Vec<Value>),
    /// One of those that are kept once.
    Kept(u32),
}

/// Names a list among all. What is kept once has one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ListId {
    Own(u32),
    Kept(u32),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Lists {
    all: Vec<List>,
    kept: Vec<Box<[Value]>>,
    // By the numbers of the dicts. Not a faster hash: a file could be made so that all its lists collide.
    index: HashMap<Box<[u32]>, u32>,
    /// Room for the numbers of a list that is looked for.
    numbers: Vec<u32>,
}

impl Lists {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, number: u32) -> &[Value] {
        match &self.all[number as usize] {
            List::Own(values) => values,
            List::Kept(kept) => &self.kept[*kept as usize],
        }
    }

    pub(super) fn id(&self, number: u32) -> ListId {
        match self.all[number as usize] {
            List::Own(_) => ListId::Own(number),
            List::Kept(kept) => ListId::Kept(kept),
        }
    }

    /// A list of these values. Returns for how many of them there had to be room.
    pub(super) fn add(&mut self, values: &[Value]) -> usize {
        self.all.push(List::Own(Vec::new()));
        self.extend(self.all.len() as u32 - 1, values)
    }

    /// Appends to a list. Returns for how many values there had to be room.
    pub(super) fn extend(&mut self, number: u32, values: &[Value]) -> usize {
        if self.get(number).is_empty()
            && let Some((kept, room)) = self.keep(values)
        {
            self.all[number as usize] = List::Kept(kept);
            return room;
        }
        match &mut self.all[number as usize] {
            List::Own(own) => {
                own.extend_from_slice(values);
                values.len()
            }
            List::Kept(kept) => {
                let own = [&self.kept[*kept as usize], values].concat();
                let room = own.len();
                self.all[number as usize] = List::Own(own);
                room
            }
        }
    }

    /// The number under which these values are kept, and for how many of them there had to be room; `None` where they are not
    /// a few dicts.
    fn keep(&mut self, values: &[Value]) -> Option<(u32, usize)> {
        if values.is_empty() || values.len() > LONGEST {
            return None;
        }
        self.numbers.clear();
        for value in values {
            let Value::Dict(number) = *value else { return None };
            self.numbers.push(number);
        }
        if let Some(&known) = self.index.get(self.numbers.as_slice()) {
            return Some((known, 0));
        }
        let number = self.kept.len() as u32;
        self.kept.push(values.into());
        self.index.insert(self.numbers.as_slice().into(), number);
        // The numbers take half of the room again, and the tables some.
        Some((number, 2 * values.len() + 8))
    }
}
