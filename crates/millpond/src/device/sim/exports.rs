//! Pages and events that are exported: another context of the same device opens them. Other processes have other devices.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;

use crate::device::error::system;
use crate::device::inventory::invalid;
use crate::device::{DeviceIdentity, DeviceResult, PageHandle};

/// Unlike that of any other device, of this process or another.
pub(super) fn new_identity() -> DeviceIdentity {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only uniqueness matters.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut identity = *b"sim.____________";
    identity[4..8].copy_from_slice(&std::process::id().to_le_bytes());
    identity[8..].copy_from_slice(&number.to_le_bytes());
    DeviceIdentity(identity)
}

/// A file that names the page.
pub(super) fn export_page(of: DeviceIdentity, page: PageHandle) -> DeviceResult<OwnedFd> {
    let file =
        rustix::fs::memfd_create("millpond page", MemfdFlags::CLOEXEC).map_err(system("memfd_create"))?;
    let name = [&of.0[..], &page.raw().to_le_bytes()].concat();
    rustix::io::write(&file, &name).map_err(system("write"))?;
    Ok(file)
}

/// The page that a file names.
pub(super) fn page_of(of: DeviceIdentity, file: &OwnedFd) -> DeviceResult<PageHandle> {
    let mut name = [0; 24];
    let read =
        file.as_fd().try_clone_to_owned().map(File::from).and_then(|file| file.read_exact_at(&mut name, 0));
    match name.split_first_chunk() {
        Some((device, page)) if read.is_ok() && *device == of.0 => {
            let page = u64::from_le_bytes(page.try_into().expect("eight bytes"));
            // SAFETY: what is made of it is asked of the inventory, which knows its pages.
            Ok(unsafe { PageHandle::from_raw(page) })
        }
        _ => invalid("import_page", "the descriptor is of no page of this simulated device"),
    }
}

/// What stands for an event.
pub(super) fn export_event(of: DeviceIdentity, event: u64) -> [u8; 64] {
    let mut data = [0; 64];
    data[..16].copy_from_slice(&of.0);
    data[16..24].copy_from_slice(&event.to_le_bytes());
    data
}

/// The event that it stands for.
pub(super) fn event_of(of: DeviceIdentity, data: &[u8; 64]) -> DeviceResult<u64> {
    if data[..16] != of.0 {
        return invalid("open_event", "this is no event of this simulated device");
    }
    Ok(u64::from_le_bytes(data[16..24].try_into().expect("eight bytes")))
}
