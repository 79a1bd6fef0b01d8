//! Pages and events that other processes use.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use cudarc::driver::sys::{CUdevice, CUevent, CUevent_flags, CUipcEventHandle, CUuuid};

use super::api::{Api, Code};
use super::device::{CudaDevice, find};
use super::{driver, peers};
use crate::device::{DeviceIdentity, DeviceResult, EventExport, PageExport, PageHandle};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const AS_DESCRIPTOR: c_uint = 1;

pub(super) fn identity(device: &CudaDevice) -> DeviceResult<DeviceIdentity> {
    identity_of(device.api(), device.raw_device())
}

fn identity_of(api: &Api, device: CUdevice) -> DeviceResult<DeviceIdentity> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: `uuid` is writable, and the device came from cuDeviceGet.
    unsafe { api.cuDeviceGetUuid_v2(&mut uuid, device) }?;
    Ok(DeviceIdentity(uuid.bytes.map(|byte| byte as u8)))
}

/// Whether it is this GPU, or a peer that this process sees.
pub(super) fn reaches(device: &CudaDevice, other: DeviceIdentity) -> DeviceResult<bool> {
    let api = device.api();
    if identity(device)? == other {
        return Ok(true);
    }
    for ordinal in 0..driver::device_count(api)? {
        let peer = find(api, ordinal)?;
        if identity_of(api, peer)? == other {
            return peers::can_reach(api, device.raw_device(), peer);
        }
    }
    Ok(false)
}

/// # Safety
/// As for [`Device::export_page`](crate::device::Device::export_page).
pub(super) unsafe fn export_page(device: &CudaDevice, page: PageHandle) -> DeviceResult<PageExport> {
    if !device.page_extras.are_exportable() {
        return Err(device.unsupported("memory that is shared with other processes"));
    }
    let mut raw: c_int = -1;
    let to = (&raw mut raw).cast::<c_void>();
    // SAFETY: the page lives by the caller's promise, and a descriptor is an int.
    unsafe { device.api().cuMemExportToShareableHandle(to, page.raw(), AS_DESCRIPTOR, 0) }?;
    // SAFETY: the driver opened it for the caller, who closes it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)
        .map_err(crate::device::system("fcntl(F_SETFD)"))?;
    Ok(PageExport { descriptor, position: 0 })
}

pub(super) fn import_page(device: &CudaDevice, from: &OwnedFd) -> DeviceResult<PageHandle> {
    let mut page = 0;
    // "If the handle type is a file descriptor, it is passed as the pointer's value."
    let raw = ptr::without_provenance_mut::<c_void>(from.as_raw_fd() as usize);
    // SAFETY: `page` is writable. The driver checks what the descriptor is, and leaves it open.
    unsafe { device.api().cuMemImportFromShareableHandle(&mut page, raw, AS_DESCRIPTOR) }?;
    // SAFETY: a handle of this device, fresh.
    Ok(unsafe { PageHandle::from_raw(page) })
}

/// Creates an event; our context is current.
pub(super) fn create_event(api: &Api) -> DeviceResult<(CUevent, EventExport)> {
    let flags =
        CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint | CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;
    let mut event = ptr::null_mut();
    // SAFETY: `event` is writable.
    unsafe { api.cuEventCreate(&mut event, flags) }?;
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    // SAFETY: `handle` is writable, and the event was created above with the flags that this asks for.
    if let Err(failure) = unsafe { api.cuIpcGetEventHandle(&mut handle, event) } {
        // SAFETY: nobody else knows the event.
        unsafe { api.cuEventDestroy_v2(event) }?;
        return Err(failure.into());
    }
    let data = handle.reserved.map(|byte| byte as u8);
    Ok((event, EventExport { data, descriptor: None }))
}

/// Opens an event of another process; our context is current.
pub(super) fn open_event(device: &CudaDevice, from: &EventExport) -> DeviceResult<CUevent> {
    let handle = CUipcEventHandle { reserved: from.data.map(|byte| byte as _) };
    let mut event = ptr::null_mut();
    // SAFETY: `event` is writable. The driver checks the handle.
    match unsafe { device.api().cuIpcOpenEventHandle(&mut event, handle) } {
        // The driver says so of an event of this process.
        Err(failure) if failure.code == Code::INVALID_CONTEXT => {
            Err(device
                .unsupported("opening memory in the process that shares it (there, use the block itself)"))
        }
        opened => opened.map(|()| event).map_err(Into::into),
    }
}
