//! Pages of `cuMemCreate`: they are there as long as a handle or a mapping is.

use std::collections::BTreeMap;

use millpond::bindings::{Mutex, PerProcess};
use rustc_hash::FxHashMap;

use crate::code::Code;
use crate::driver_memory::{self, Kind};

#[derive(Debug, Default)]
struct Pages {
    /// By the number under which they are counted: a handle's number may be another page's next.
    pages: FxHashMap<u64, Page>,
    by_handle: FxHashMap<u64, u64>,
    /// By the first address of each mapping.
    mapped: BTreeMap<u64, u64>,
    last: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Page {
    handles: usize,
    mappings: usize,
}

static PAGES: PerProcess<Mutex<Pages>> = PerProcess::new(Default::default);

/// The driver made pages, which are counted under their handle.
pub(crate) fn created(handle: u64) {
    let mut pages = PAGES.get().lock();
    pages.last += 1;
    let id = pages.last;
    driver_memory::rename(Kind::Pages, handle, id);
    pages.pages.insert(id, Page { handles: 1, mappings: 0 });
    pages.by_handle.insert(handle, id);
}

/// `cuMemMap`. Pages that another process made are not counted.
pub(crate) fn map(at: u64, handle: u64, real: impl FnOnce() -> Code) -> Code {
    let mut pages = PAGES.get().lock();
    let code = real();
    if code.is_success()
        && let Some(id) = pages.by_handle.get(&handle).copied()
    {
        pages.mapped.insert(at, id);
        pages.change(id, |page| page.mappings += 1);
    }
    code
}

/// `cuMemUnmap`.
pub(crate) fn unmap(at: u64, bytes: usize, real: impl FnOnce() -> Code) -> Code {
    // Under the lock: another thread may map something there next.
    let mut pages = PAGES.get().lock();
    let code = real();
    if code.is_success() {
        let gone: Vec<_> =
            pages.mapped.range(at..at.saturating_add(bytes as u64)).map(|(at, id)| (*at, *id)).collect();
        for (at, id) in gone {
            pages.mapped.remove(&at);
            pages.change(id, |page| page.mappings -= 1);
        }
    }
    code
}

/// `cuMemRelease`.
pub(crate) fn release(handle: u64, real: impl FnOnce() -> Code) -> Code {
    // Under the lock: another page may get the handle's number next.
    let mut pages = PAGES.get().lock();
    let code = real();
    if code.is_success()
        && let Some(id) = pages.by_handle.get(&handle).copied()
        && pages.change(id, |page| page.handles -= 1) == 0
    {
        pages.by_handle.remove(&handle);
    }
    code
}

/// `cuMemRetainAllocationHandle`: the program has a handle more, of what is mapped at an address.
///
/// # Safety
/// `handle` is null or may be written, and `real` writes it where it succeeds.
pub(crate) unsafe fn retain(handle: *const u64, at: u64, real: impl FnOnce() -> Code) -> Code {
    let mut pages = PAGES.get().lock();
    let code = real();
    // The mapping that begins last before the address has it, if it is one of these at all.
    let id = pages.mapped.range(..=at).next_back().map(|(_, id)| *id);
    // SAFETY: the caller's promise.
    let handle = unsafe { handle.as_ref() }.filter(|_| code.is_success()).copied();
    if let Some((handle, id)) = handle.zip(id) {
        let known = *pages.by_handle.entry(handle).or_insert(id);
        pages.change(known, |page| page.handles += 1);
    }
    code
}

impl Pages {
    /// Changes what a page has, and gives it back once it has nothing. Returns its handles.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut Page)) -> usize {
        let Some(page) = self.pages.get_mut(&id) else { return 0 };
        change(page);
        let Page { handles, mappings } = *page;
        if handles + mappings == 0 {
            self.pages.remove(&id);
            driver_memory::given_back(Kind::Pages, id);
        }
        handles
    }
}
