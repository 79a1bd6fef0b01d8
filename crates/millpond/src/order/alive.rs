//! The streams that somebody holds, by who they are and by the promise that they are held by. So one stream has one timeline,
//! however often it is presented.

use std::collections::{HashMap, TryReserveError};
use std::sync::{Arc, Weak};

use super::Marking;
use crate::device::{StreamHandle, StreamId};

/// How long the handle of a stream is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Promise {
    /// While anybody holds the stream: either we destroy it, or nobody does.
    Stays,
    /// Until its [registrations](super::RegisteredStream) have ended.
    WhileRegistered,
    /// Until the last clone of what was returned for it is gone.
    UntilDropped,
    /// In each call that presents it.
    InCalls,
}

impl Promise {
    pub(super) fn marking(self) -> Marking {
        if self == Self::InCalls { Marking::AtOnce } else { Marking::WhenNeeded }
    }

    /// By which promises the stream may have been adopted that a caller with this one is given.
    fn suffices(self) -> &'static [Self] {
        match self {
            Self::Stays => &[Self::Stays],
            Self::WhileRegistered => &[Self::Stays, Self::WhileRegistered],
            Self::UntilDropped => &[Self::Stays, Self::UntilDropped],
            Self::InCalls => &[Self::Stays, Self::WhileRegistered, Self::InCalls],
        }
    }
}

/// What holds a stream is a `T`. By different promises, a stream may be held by several: each promise has its own end.
#[derive(Debug)]
pub(super) struct Alive<T>(HashMap<(StreamId, Promise), Entry<T>>);

#[derive(Debug)]
struct Entry<T> {
    held: Weak<T>,
    handle: StreamHandle,
    /// How often the stream is registered.
    registrations: usize,
}

impl<T> Entry<T> {
    fn is_of(&self, held: &T) -> bool {
        std::ptr::eq(self.held.as_ptr(), held)
    }
}

impl<T> Default for Alive<T> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<T> Alive<T> {
    /// The stream, if somebody holds it by a promise that suffices. A registration counts.
    pub(super) fn find(&mut self, handle: StreamHandle, id: StreamId, promise: Promise) -> Option<Arc<T>> {
        let found = promise.suffices().iter().find_map(|by| {
            let entry = self.0.get_mut(&(id, *by))?;
            let held = entry.held.upgrade()?;
            if promise == Promise::WhileRegistered {
                entry.registrations += 1;
            }
            Some(held)
        });
        if found.is_some() || !id.is_in_capture() {
            return found;
        }
        // The driver does not identify it. Its handle does, where somebody promised that it stays.
        let stays = |by: &Promise| *by != Promise::InCalls && promise.suffices().contains(by);
        let known = self.0.iter().find(|((_, by), entry)| entry.handle == handle && stays(by));
        known.and_then(|(_, entry)| entry.held.upgrade())
    }

    pub(super) fn insert(&mut self, handle: StreamHandle, id: StreamId, promise: Promise, held: &Arc<T>) {
        let registrations = usize::from(promise == Promise::WhileRegistered);
        self.0.insert((id, promise), Entry { held: Arc::downgrade(held), handle, registrations });
    }

    pub(super) fn try_reserve(&mut self, more: usize) -> Result<(), TryReserveError> {
        self.0.try_reserve(more)
    }

    pub(super) fn is_registered(&self, id: StreamId, promise: Promise, held: &T) -> bool {
        self.0.get(&(id, promise)).is_some_and(|entry| entry.is_of(held) && entry.registrations > 0)
    }

    /// One registration ends. With the last one, who presents the handle is given the stream no more. Returns whether
    /// the promise that the handle is valid has ended, too.
    pub(super) fn unregister(&mut self, id: StreamId, promise: Promise, held: &T) -> bool {
        let key = (id, promise);
        let entry = self.0.get_mut(&key).filter(|entry| entry.is_of(held) && entry.registrations > 0);
        let Some(entry) = entry else { return false };
        entry.registrations -= 1;
        let ends = entry.registrations == 0 && promise == Promise::WhileRegistered;
        if ends {
            self.0.remove(&key);
        }
        ends
    }

    /// Nobody holds a stream any more. It may have been presented again since: then the entry is the newcomer's.
    pub(super) fn forget_ended(&mut self, id: StreamId, promise: Promise) {
        if self.0.get(&(id, promise)).is_some_and(|entry| entry.held.strong_count() == 0) {
            self.0.remove(&(id, promise));
        }
    }
}
