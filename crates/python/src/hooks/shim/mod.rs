//! `shim/`: what the C++ shim asks of the pools. `crates/python/torch/pool.h` declares the same in C.
//!
//! The shim (`crates/python/torch/`) is PyTorch's allocator; these functions are what it stands on. They come to it as a
//! table of addresses, since this library's symbols are not visible to others. No exception passes through them: a
//! call that can fail returns null or a `Failed`, of which the shim makes PyTorch's exception.

mod allocation;
mod cache;
mod checkpoint;
mod entries;
mod figures;
mod host;
mod pages;
mod pools;
mod sharing;

use std::ffi::{c_char, c_int, c_void};

use self::allocation::*;
use self::cache::*;
use self::checkpoint::*;
use self::entries::*;
use self::figures::{figures, reset_accumulated, reset_peaks, snapshot};
use self::host::*;

use self::pages::*;
use self::pools::*;
use self::sharing::*;
use super::blocks::Figures;
use super::captures::PoolId;
use super::outcome::{Outcome, forget_failure};
use super::pinned::{PinnedFigures, free_pinned};

macro_rules! table {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?,)*) => {
        /// The functions, in the order of `pool.h`.
        #[repr(C)]
        #[derive(Debug)]
        pub(super) struct ShimTable {
            /// Bytes of this struct: tells a shim that was built for another one.
            bytes: usize,
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        /// What the shim gets.
        pub(super) static TABLE: ShimTable = ShimTable { bytes: size_of::<ShimTable>(), $($name,)* };
    };
}

table! {
    forget_failure: fn(Outcome),
    allocate: fn(c_int, u64, *mut c_void, *mut Entry) -> Outcome,
    strike: fn(*mut c_void, *mut Entry) -> bool,
    free: fn(*const Entry),
    record_use: fn(*mut c_void, c_int, *mut c_void) -> Outcome,
    block_at: fn(*mut c_void, *mut u64) -> *mut c_void,
    is_forked: fn() -> bool,
    empty_cache: fn() -> Outcome,
    largest_allocation: fn(c_int) -> u64,
    memory_info: fn(c_int, *mut u64, *mut u64),
    set_fraction: fn(c_int, f64) -> Outcome,
    fraction: fn(c_int) -> f64,
    figures: fn(c_int, *mut Figures),
    reset_peaks: fn(c_int),
    reset_accumulated: fn(c_int),
    snapshot: fn(c_int, *const PoolId, *mut c_void, Tell<Segment>, Tell<Entry>),
    watch_pages: fn(Told),
    claim_pool: fn(c_int, PoolId) -> Outcome,
    begin_pool: fn(c_int, PoolId, CFilter) -> Outcome,
    end_pool: fn(c_int, PoolId) -> bool,
    release_pool: fn(c_int, PoolId),
    pool_uses: fn(c_int, PoolId, *mut c_int) -> Outcome,
    set_use_on_oom: fn(c_int, PoolId, bool) -> Outcome,
    are_live: fn(c_int, PoolId, *const *mut c_void, usize) -> bool,
    checkpoint: fn(c_int, PoolId) -> *mut c_void,
    forget_checkpoint: fn(*mut c_void),
    restore: fn(c_int, *const c_void, *mut c_void, Tell<Entry>, Tell<Entry>) -> Outcome,
    share: fn(*mut c_void, *mut c_char) -> Outcome,
    open_shared: fn(c_int, *const c_char, *mut *mut c_void) -> Outcome,
    close_shared: fn(c_int, *mut c_void),
    allocate_pinned: fn(c_int, u64, *mut *mut c_void) -> Outcome,
    free_pinned: fn(*mut c_void),
    record_pinned: fn(*mut c_void, *mut c_void, c_int, *mut c_void, *mut bool) -> Outcome,
    empty_pinned: fn() -> Outcome,
    pinned_figures: fn(*mut PinnedFigures),
    reset_pinned: fn(bool),
}
