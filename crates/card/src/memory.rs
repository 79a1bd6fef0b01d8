//! Addresses of a card that has as much memory as is asked for. Nothing is kept in it: pages that nobody touches take no memory.

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE};

/// Whose memory it is said to be, by its number in `cudaMemoryType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Host = 1,
    Card = 2,
}

/// Where each begins, how long it is, and whose.
static TAKEN: Mutex<BTreeMap<usize, (usize, Owner)>> = Mutex::new(BTreeMap::new());

/// Addresses for so many bytes; 0 where the process has none left.
pub(crate) fn take(bytes: usize, owner: Owner) -> usize {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    let bytes = bytes.max(1);
    // The host may read and write them: a library may clear what it has asked for.
    // SAFETY: new addresses, which nobody uses yet.
    let address = unsafe { libc::mmap(null_mut(), bytes, PROT_READ | PROT_WRITE, flags, -1, 0) };
    if address == MAP_FAILED {
        return 0;
    }
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner).insert(address as usize, (bytes, owner));
    address as usize
}

pub(crate) fn give_back(address: usize) {
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    if let Some((bytes, _)) = taken {
        // SAFETY: it was mapped with this length, and the caller does not use it any more.
        unsafe { libc::munmap(address as *mut _, bytes) };
    }
}

/// Bytes of the card that are taken.
pub(crate) fn taken() -> usize {
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    taken.values().filter(|(_, owner)| *owner == Owner::Card).map(|(bytes, _)| bytes).sum()
}

/// Whose memory lies at an address; `None` for memory that was not asked for here.
pub(crate) fn owner(address: usize) -> Option<Owner> {
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let (begin, (bytes, owner)) = taken.range(..=address).next_back()?;
    (address - begin < *bytes).then_some(*owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_an_owner_until_it_is_given_back() {
        let before = taken();
        let (host, card) = (take(100, Owner::Host), take(1 << 40, Owner::Card));
        assert_eq!(taken(), before + (1 << 40));
        assert_eq!([host, card + (1 << 39)].map(owner), [Some(Owner::Host), Some(Owner::Card)]);
        give_back(card);
        assert_eq!(taken(), before);
        assert_eq!(owner(card + (1 << 39)), None);
        give_back(host);
        assert_eq!(take(usize::MAX, Owner::Card), 0);
    }
}
