//! Addresses of a card that has as much memory as is asked for. Nothing is kept in it: pages that nobody touches take no memory.

use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE};

/// How long each is.
static TAKEN: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// Addresses for so many bytes; 0 where the process has none left.
pub(crate) fn take(bytes: usize) -> usize {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    let bytes = bytes.max(1);
    // The host may read and write them: a library may clear what it has asked for.
    // SAFETY: new addresses, which nobody uses yet.
    let address = unsafe { libc::mmap(null_mut(), bytes, PROT_READ | PROT_WRITE, flags, -1, 0) };
    if address == MAP_FAILED {
        return 0;
    }
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    taken.get_or_insert_default().insert(address as usize, bytes);
    address as usize
}

pub(crate) fn give_back(address: usize) {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bytes) = taken.as_mut().and_then(|taken| taken.remove(&address)) {
        // SAFETY: it was mapped with this length, and the caller does not use it any more.
        unsafe { libc::munmap(address as *mut _, bytes) };
    }
}
