//! Which entry point a name means. `cuGetProcAddress` is asked for the name without a version, and for a version of CUDA.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::linker::Address;

/// A function of ours.
pub(crate) struct EntryPoint {
    /// As a library's symbol: `cuMemAlloc_v2`, `cuMemAllocAsync_ptsz`.
    pub(crate) symbol: &'static CStr,
    /// The first CUDA version that has it (`CUDA_VERSION`), which is how `cuGetProcAddress` tells versions apart.
    pub(crate) since: c_int,
    pub(crate) function: CodeAddress,
    /// What programs find by the symbol alone.
    pub(crate) exported: CodeAddress,
}

/// Where an entry point is.
pub(crate) struct CodeAddress(pub(crate) *const ());

// SAFETY: code, which nobody changes.
unsafe impl Sync for CodeAddress {}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD: u64 = 2;

/// The newest version of CUDA whose functions these entry points are. A newer one may give a name to a function with other arguments.
const NEWEST: c_int = 13_999;

/// What ends the name of a function for which stream 0 is the thread's own: of one that takes a stream, and of one that does not.
const OF_THREAD: [&[u8]; 2] = [b"_ptsz", b"_ptds"];

/// Finds an entry point by its symbol.
pub(crate) type Find = extern "C" fn(*const c_char) -> Address;

/// In another copy of this code: what programs call, and what they find by the symbol alone.
static OTHERS: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// From now on, the entry points are those of another copy of this code.
pub(crate) fn hand_over(to: Find) {
    // Relaxed, here and below: nothing is behind it but code.
    OTHERS[0].store(to as *mut c_void, Ordering::Relaxed);
}

/// Another copy of this code hands its entry points over: what programs find there stands for those here.
pub(crate) fn take_over(exported: Find) {
    OTHERS[1].store(exported as *mut c_void, Ordering::Relaxed);
}

impl EntryPoint {
    /// What programs call.
    pub(crate) fn address(&self) -> Address {
        self.ask(&OTHERS[0]).unwrap_or(self.function.0.cast_mut().cast())
    }

    /// Whether programs find this by the symbol alone, here or in a copy of this code that handed it over.
    pub(crate) fn is_exported(&self, found: Address) -> bool {
        found == self.exported.0.cast_mut().cast() || self.ask(&OTHERS[1]) == Some(found)
    }

    fn ask(&self, other: &AtomicPtr<c_void>) -> Option<Address> {
        let other = other.load(Ordering::Relaxed);
        if other.is_null() {
            return None;
        }
        // SAFETY: a function of this type was stored.
        let find = unsafe { std::mem::transmute::<Address, Find>(other) };
        Some(find(self.symbol.as_ptr()))
    }

    /// The name without its version, and whether stream 0 is the thread's own.
    pub(crate) fn base(&self) -> (&'static [u8], bool) {
        let symbol = self.symbol.to_bytes();
        let (name, of_thread) = match OF_THREAD.iter().find_map(|ending| symbol.strip_suffix(*ending)) {
            Some(name) => (name, true),
            None => (symbol, false),
        };
        match name {
            [base @ .., b'_', b'v', b'2'..=b'9'] => (base, of_thread),
            base => (base, of_thread),
        }
    }
}

/// The entry point for a symbol.
pub(crate) fn by_symbol<'a>(entry_points: &'a [EntryPoint], symbol: &CStr) -> Option<&'a EntryPoint> {
    entry_points.iter().find(|entry| entry.symbol == symbol)
}

/// The entry point for a name as `cuGetProcAddress` has it.
pub(crate) fn by_version<'a>(
    entry_points: &'a [EntryPoint],
    name: &CStr,
    version: c_int,
    flags: u64,
) -> Option<&'a EntryPoint> {
    let named = |of_thread| {
        let fit = entry_points.iter().filter(move |entry| {
            entry.base() == (name.to_bytes(), of_thread) && entry.since <= version && version <= NEWEST
        });
        fit.max_by_key(|entry| entry.since)
    };
    // Few functions have two forms.
    let of_thread = if flags & PER_THREAD == 0 { None } else { named(true) };
    of_thread.or_else(|| named(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn entry(symbol: &'static CStr, since: c_int) -> EntryPoint {
        let [function, exported] = [const { CodeAddress(std::ptr::null()) }; 2];
        EntryPoint { symbol, since, function, exported }
    }

    const ENTRY_POINTS: [EntryPoint; 5] = [
        entry(c"cuGetProcAddress", 11030),
        entry(c"cuGetProcAddress_v2", 12000),
        entry(c"cuMemAlloc_v2", 3020),
        entry(c"cuMemFreeAsync", 11020),
        entry(c"cuMemFreeAsync_ptsz", 11020),
    ];

    fn found(name: &CStr, version: c_int, flags: u64) -> Option<&'static CStr> {
        by_version(&ENTRY_POINTS, name, version, flags).map(|entry| entry.symbol)
    }

    #[test]
    fn a_name_means_its_newest_function_of_the_version() {
        assert_eq!(found(c"cuGetProcAddress", 11_080, 0), Some(c"cuGetProcAddress"));
        assert_eq!(found(c"cuGetProcAddress", 12_000, 0), Some(c"cuGetProcAddress_v2"));
        assert_eq!(found(c"cuMemAlloc", 3020, 1), Some(c"cuMemAlloc_v2"));
    }

    #[test]
    fn functions_before_and_after_the_entry_points_are_the_drivers() {
        assert_eq!(found(c"cuMemAlloc", 2000, 0), None);
        assert_eq!(found(c"cuMemAlloc", 14_000, 0), None);
        assert_eq!(found(c"cuLaunchKernel", 12_000, 0), None);
    }

    #[test]
    fn the_threads_own_stream_has_entry_points_of_its_own() {
        assert_eq!(found(c"cuMemFreeAsync", 12_000, 2), Some(c"cuMemFreeAsync_ptsz"));
        assert_eq!(found(c"cuMemFreeAsync", 12_000, 1), Some(c"cuMemFreeAsync"));
        assert_eq!(found(c"cuMemAlloc", 12_000, 2), Some(c"cuMemAlloc_v2"));
    }
}
