//! The lines of an interpreted program, such as one in Python, that call the library.
//!
//! A stack of return addresses shows the interpreter's own functions there, so the binding gives the program's lines for the
//! length of a call. Whoever takes a call site asks [`current`] first. While nobody keeps call sites ([`Wanted`]), a call pays
//! one load for this.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::encoder::cut;

/// One line of a call stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SourceFrame {
    pub(super) name: Box<str>,
    pub(super) file: Box<str>,
    pub(super) line: u32,
}

impl SourceFrame {
    /// A function, the file that it stands in, and the line in that, from 1; 0 where it is not known. Texts that are too
    /// long for a recording are cut.
    #[must_use]
    pub fn new(name: &str, file: &str, line: u32) -> Self {
        Self { name: cut(name).into(), file: cut(file).into(), line }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len()
    }
}

thread_local! {
    /// Innermost first.
    static FRAMES: RefCell<Option<Arc<[SourceFrame]>>> = const { RefCell::new(None) };
}

/// How many keep call sites.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// While one lives, bindings give the lines that they are called from.
#[derive(Debug)]
pub(super) struct Wanted(());

impl Wanted {
    pub(super) fn new() -> Self {
        // Relaxed: a call at the same moment may give its lines or not.
        WANTED.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        WANTED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many keep those of frees, too.
static WANTED_OF_FREES: AtomicUsize = AtomicUsize::new(0);

/// As [`Wanted`], also for calls that free.
#[derive(Debug)]
pub(crate) struct WantedOfFrees(Wanted);

impl WantedOfFrees {
    pub(crate) fn new() -> Self {
        // Relaxed: as in `Wanted`.
        WANTED_OF_FREES.fetch_add(1, Ordering::Relaxed);
        Self(Wanted::new())
    }
}

impl Drop for WantedOfFrees {
    fn drop(&mut self) {
        WANTED_OF_FREES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What [`called_from`] returns. The calls are over when this is dropped.
#[derive(Debug)]
#[must_use = "the calls are over when this is dropped"]
pub struct CalledFrom {
    before: Option<Arc<[SourceFrame]>>,
    /// A call stack is its thread's.
    not_send: PhantomData<*const ()>,
}

/// Says from which lines of an interpreted program this thread calls the library, until the result is dropped. `frames` is
/// called only if somebody keeps call sites, and gives the innermost line first. Where it gives none, the stack of return
/// addresses is kept, as without this.
#[inline]
pub fn called_from(frames: impl FnOnce() -> Vec<SourceFrame>) -> Option<CalledFrom> {
    // Relaxed: as in `Wanted`.
    if WANTED.load(Ordering::Relaxed) == 0 { None } else { enter(frames()) }
}

/// As [`called_from`], of a call that frees: few keep those.
#[inline]
pub fn freed_from(frames: impl FnOnce() -> Vec<SourceFrame>) -> Option<CalledFrom> {
    // Relaxed: as in `Wanted`.
    if WANTED_OF_FREES.load(Ordering::Relaxed) == 0 { None } else { enter(frames()) }
}

#[cold]
fn enter(frames: Vec<SourceFrame>) -> Option<CalledFrom> {
    let frames = (!frames.is_empty()).then(|| frames.into());
    // Fails while the thread ends: then there are no lines.
    let before = FRAMES.try_with(|present| present.replace(frames)).ok()?;
    Some(CalledFrom { before, not_send: PhantomData })
}

impl Drop for CalledFrom {
    fn drop(&mut self) {
        FRAMES.try_with(|present| present.replace(self.before.take())).ok();
    }
}

/// The lines that the calling thread's binding gave, innermost first.
pub(super) fn current() -> Option<Arc<[SourceFrame]>> {
    FRAMES.try_with(|present| present.borrow().clone()).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_asked_for_while_somebody_wants_them() {
        let lines = |name: &str| vec![SourceFrame::new(name, "train.py", 7)];
        let names = || current().map(|frames| frames[0].name.to_string());
        let wanted = Wanted::new();
        let outer = called_from(|| lines("outer"));
        {
            let _inner = called_from(|| lines("inner"));
            assert_eq!(names().as_deref(), Some("inner"));
            let _native = called_from(Vec::new);
            assert_eq!(names(), None);
        }
        assert_eq!(names().as_deref(), Some("outer"));
        drop((outer, wanted));
        assert_eq!(names(), None);
    }
}
