//! Which door a name means. `cuGetProcAddress` is asked for the name without a version, and for a version of CUDA.

use std::ffi::{CStr, c_int};

use crate::linker::Address;

/// A function of ours.
pub(crate) struct Door {
    /// As a library's symbol: `cuMemAlloc_v2`, `cuMemAllocAsync_ptsz`.
    pub(crate) symbol: &'static CStr,
    /// The first CUDA version that has it (`CUDA_VERSION`), which is how `cuGetProcAddress` tells versions apart.
    pub(crate) since: c_int,
    pub(crate) function: Function,
    /// What programs find by the symbol alone.
    pub(crate) exported: Function,
}

/// Where a door is.
pub(crate) struct Function(pub(crate) *const ());

// SAFETY: code, which nobody changes.
unsafe impl Sync for Function {}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD: u64 = 2;

/// The newest version of CUDA whose functions these doors are. A newer one may give a name to a function with other arguments.
const NEWEST: c_int = 13_999;

/// What ends the name of a function for which stream 0 is the thread's own.
const OF_THREAD: &[u8] = b"_ptsz";

impl Door {
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

/// The door for a symbol.
pub(crate) fn by_symbol<'a>(doors: &'a [Door], symbol: &CStr) -> Option<&'a Door> {
    doors.iter().find(|door| door.symbol == symbol)
}

/// The door for a name as `cuGetProcAddress` has it.
pub(crate) fn by_version<'a>(doors: &'a [Door], name: &CStr, version: c_int, flags: u64) -> Option<&'a Door> {
    let named = |of_thread| {
        let fit = doors.iter().filter(move |door| {
            door.base() == (name.to_bytes(), of_thread) && door.since <= version && version <= NEWEST
        });
        fit.max_by_key(|door| door.since)
    };
    // Few functions have two forms.
    let of_thread = if flags & PER_THREAD == 0 { None } else { named(true) };
    of_thread.or_else(|| named(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn door(symbol: &'static CStr, since: c_int) -> Door {
        let [function, exported] = [const { Function(std::ptr::null()) }; 2];
        Door { symbol, since, function, exported }
    }

    const DOORS: [Door; 5] = [
        door(c"cuGetProcAddress", 11030),
        door(c"cuGetProcAddress_v2", 12000),
        door(c"cuMemAlloc_v2", 3020),
        door(c"cuMemFreeAsync", 11020),
        door(c"cuMemFreeAsync_ptsz", 11020),
    ];

    fn found(name: &CStr, version: c_int, flags: u64) -> Option<&'static CStr> {
        by_version(&DOORS, name, version, flags).map(|door| door.symbol)
    }

    #[test]
    fn a_name_means_its_newest_function_of_the_version() {
        assert_eq!(found(c"cuGetProcAddress", 11_080, 0), Some(c"cuGetProcAddress"));
        assert_eq!(found(c"cuGetProcAddress", 12_000, 0), Some(c"cuGetProcAddress_v2"));
        assert_eq!(found(c"cuMemAlloc", 3020, 1), Some(c"cuMemAlloc_v2"));
    }

    #[test]
    fn functions_before_and_after_the_doors_are_the_drivers() {
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
