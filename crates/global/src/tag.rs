//! Which part of the pools a thread's allocations come from.

use std::marker::PhantomData;
use std::sync::Arc;

/// The calling thread's allocations belong to a tag as long as this lives. Made by [`tag`].
#[derive(Debug)]
#[must_use = "the tag ends when this is dropped"]
pub struct Tag {
    before: Option<Arc<str>>,
    /// It ends on the thread on which it began.
    of_thread: PhantomData<*const ()>,
}

/// Has what the calling thread allocates belong to a [tag](millpond::Pool::tagged) of the pools, until what is returned is dropped. Tags
/// have figures of their own, in `millpond top` and in recordings, too. That of a [`movable_pool`](crate::movable_pool) can be evicted
/// or put to sleep. No page has memory of two tags. Any thread may free the memory.
///
/// ```
/// {
///     let _tag = millpond_global::tag("kv-cache");
///     // … the cache is allocated, by candle or by others …
/// }
/// # if millpond_global::pool(0).is_err() { return Ok(()) }
/// println!("{}", millpond_global::pool(0)?.tagged("kv-cache")?.stats());
/// # Ok::<(), millpond::Error>(())
/// ```
pub fn tag(name: impl AsRef<str>) -> Tag {
    Tag { before: set(Some(name.as_ref().into())), of_thread: PhantomData }
}

impl Drop for Tag {
    fn drop(&mut self) {
        set(self.before.take());
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn set(tag: Option<Arc<str>>) -> Option<Arc<str>> {
    millpond_entry_points::linked::set_tag(tag)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn set(tag: Option<Arc<str>>) -> Option<Arc<str>> {
    _ = tag;
    None
}
