//! Which entry point a name means. `cuGetProcAddress` is asked for the name without a version, and for a version of CUDA.

use std::ffi::{CStr, c_int};

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

/// What ends the name of a function for which stream 0 is the thread's own.
const OF_THREAD: &[u8] = b"_ptsz";

impl EntryPoint {
    pub(crate) fn address(&self) -> Address {
        self.function.0.cast_mut().cast()
    }

    /// The name without its version, and whether stream 0 is the thread's own.
    pub(crate) fn base(&self) -> (&'static [u8], bool) {
        let symbol = self.symbol.to_bytes();
        let (name, of_thread) = match symbol.strip_suffix(OF_THREAD) {
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
    fn the_threads_own_stream_has_doors_of_its_own() {
        assert_eq!(found(c"cuMemFreeAsync", 12_000, 2), Some(c"cuMemFreeAsync_ptsz"));
        assert_eq!(found(c"cuMemFreeAsync", 12_000, 1), Some(c"cuMemFreeAsync"));
        assert_eq!(found(c"cuMemAlloc", 12_000, 2), Some(c"cuMemAlloc_v2"));
    }
}
