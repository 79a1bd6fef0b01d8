//! The values of a pickle that are large: strings, lists and dicts, each kept once.

use std::sync::Arc;

use super::lists::{ListId, Lists};
use super::value::{Text, Value, text_of};

/// What a dict turned out to be.
#[derive(Debug)]
pub(crate) enum Dict {
    Pairs(Vec<(Value, Value)>),
    /// A row that the caller keeps, by its number.
    Row(u32),
}

/// Recognises dicts as soon as they have entries.
pub(crate) trait Fold {
    /// The row that the dict becomes, if it is one of those that the caller keeps itself.
    fn dict(&mut self, texts: &Texts, pairs: &[(Value, Value)]) -> Option<u32>;
}

/// The strings of a pickle, each kept once.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    all: Vec<Arc<str>>,
    // Not a faster hash: a file could be made so that all its strings collide.
    index: std::collections::HashMap<Arc<str>, u32>,
}

impl Texts {
    pub(crate) fn get(&self, text: Text) -> &str {
        &self.all[text.0 as usize]
    }

    /// The number of a text that is there.
    pub(super) fn find(&self, text: &str) -> Option<Text> {
        self.index.get(text).map(|&known| Text(known))
    }

    /// The text, and whether it is new.
    pub(super) fn intern(&mut self, text: &str) -> (Text, bool) {
        if let Some(known) = self.find(text) {
            return (known, false);
        }
        let text: Arc<str> = text.into();
        let number = self.all.len() as u32;
        self.all.push(text.clone());
        self.index.insert(text, number);
        (Text(number), true)
    }
}

/// The values of a pickle.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    pub(crate) texts: Texts,
    pub(super) lists: Lists,
    pub(super) dicts: Vec<Dict>,
}

impl Heap {
    pub(crate) fn dict(&self, id: u32) -> &Dict {
        &self.dicts[id as usize]
    }

    /// The elements of a list or a tuple; `None` for any other value.
    pub(crate) fn items(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::Items(id) => Some(self.lists.get(id)),
            _ => None,
        }
    }

    /// Names a list or a tuple among all, by its number. Many equal lists of dicts have one name.
    pub(crate) fn list_id(&self, number: u32) -> ListId {
        self.lists.id(number)
    }

    /// What a dict says under a key, the last time that it does; `None` where it does not, or the value is no such dict.
    /// A dict may stand in a file many times: after [`settle`](Self::settle) this takes few comparisons of a large one.
    pub(crate) fn look_up(&self, value: Value, key: &str) -> Option<Value> {
        let Value::Dict(id) = value else { return None };
        let Dict::Pairs(pairs) = self.dict(id) else { return None };
        let key = self.texts.find(key)?;
        let after = pairs.partition_point(|(name, _)| {
            #[cfg(test)]
            super::tests::compare();
            text_of(*name) <= Some(key)
        });
        pairs[..after].last().filter(|(name, _)| text_of(*name) == Some(key)).map(|&(_, value)| value)
    }

    /// Sorts each dict by its keys, for look-ups.
    pub(super) fn settle(&mut self) {
        for dict in &mut self.dicts {
            if let Dict::Pairs(pairs) = dict {
                // Stable: of equal keys the last stays the last.
                pairs.sort_by_key(|(name, _)| text_of(*name));
            }
        }
    }

    /// The text of a string.
    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(text) => Some(self.texts.get(text)),
            _ => None,
        }
    }

    /// The string that a value is, if it is one, to be kept beyond the pickle.
    pub(crate) fn shared_text(&self, value: Value) -> Option<Arc<str>> {
        match value {
            Value::Text(text) => Some(self.texts.all[text.0 as usize].clone()),
            _ => None,
        }
    }
}
