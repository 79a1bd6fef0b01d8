//! The functions that programs call instead of the driver's, by the same names, and their table.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::code::Code;
use crate::crossing::{Plane, Space};
use crate::driver::{self, DeviceAddress, Handle, IpcHandle, Location, MemoryProps, PoolProps, functions};
use crate::driver_memory::{self, Kind};
use crate::linker::{self, Address, is_own};
use crate::names::{self, CodeAddress, EntryPoint};
use crate::{captures, contexts, crossing, driver_pools, ipc, memory_queries, pages, pooled, streams};

macro_rules! entry_points {
    ($($name:ident since $since:literal ($($arg:ident: $ty:ty),* $(,)?) |$real:ident| $body:expr;)*) => {
        // The safety contract of each is that of the driver function of its name: what it is called with is the program's.
        $(#[allow(non_snake_case, reason = "it is the driver's name")]
        #[allow(unused_unsafe, reason = "some of the bodies are safe")]
        unsafe extern "C" fn $name($($arg: $ty),*) -> Code {
            // SAFETY: the program keeps the driver function's contract.
            let $real = || unsafe { driver::$name($($arg),*) };
            // Our own calls are no program's.
            if is_own() {
                return $real();
            }
            // SAFETY: as above.
            catch_unwind(AssertUnwindSafe(|| unsafe { $body })).unwrap_or(Code::UNKNOWN)
        })*

        /// What programs that are linked with these names call, since a preloaded library comes first: what each name means.
        mod by_name {
            use super::*;

            $(#[cfg_attr(not(test), unsafe(no_mangle))]
            #[allow(non_snake_case, reason = "it is the driver's name")]
            pub(super) unsafe extern "C" fn $name($($arg: $ty),*) -> Code {
                // Relaxed: each thread finds the same, and nothing is behind it but code.
                let meant = meant::$name.load(Ordering::Relaxed);
                // SAFETY: a function of this name has these types, as in `driver`.
                let meant = unsafe { std::mem::transmute::<Address, unsafe extern "C" fn($($ty),*) -> Code>(meant) };
                // SAFETY: the program keeps the function's contract.
                unsafe { meant($($arg),*) }
            })*
        }

        mod meant {
            use super::*;

            $(#[allow(non_upper_case_globals, reason = "it is the driver's name")]
            pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(first::$name as *mut c_void);)*
        }

        /// The first call by a name looks up what it means. So later ones need no test.
        mod first {
            use super::*;

            $(#[cold]
            #[allow(non_snake_case, reason = "it is the driver's name")]
            pub(super) unsafe extern "C" fn $name($($arg: $ty),*) -> Code {
                meant::$name.store(meant_by(concat!(stringify!($name), "\0")), Ordering::Relaxed);
                // SAFETY: the program keeps the function's contract.
                unsafe { by_name::$name($($arg),*) }
            })*
        }

        /// What each name means is looked up again.
        fn forget_meant() {
            $(meant::$name.store(first::$name as *mut c_void, Ordering::Relaxed);)*
        }

        /// All entry points.
        pub(crate) static ENTRY_POINTS: &[EntryPoint] = &[
            $(EntryPoint {
                symbol: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(symbol) => symbol,
                    Err(_) => panic!("a name has no zero in it"),
                },
                since: $since,
                function: CodeAddress($name as *const ()),
                exported: CodeAddress(by_name::$name as *const ()),
            },)*
        ];

        /// The driver's own function behind an entry point.
        pub(crate) fn behind(entry: &EntryPoint) -> Address {
            $(if entry.function.0 == $name as *const () {
                return functions::$name.address();
            })*
            ptr::null_mut()
        }
    };
}

/// What the program found under an entry point's name without this library.
pub(crate) enum Meant {
    EntryPoint,
    /// The function of another library that is neither this one nor the driver: a mock, or one that stands before the driver.
    Others(Address),
}

impl Meant {
    /// By what was found: only the driver's own function has an entry point.
    pub(crate) fn by(found: Address, entry: &EntryPoint) -> Self {
        // Else the driver would be loaded for it.
        let is_drivers = || linker::loaded_driver().is_some() && found == behind(entry);
        if found == entry.address() || is_drivers() { Self::EntryPoint } else { Self::Others(found) }
    }

    /// By the name alone.
    pub(crate) fn by_name(entry: &EntryPoint) -> Self {
        // SAFETY: it asks for the libraries behind this one.
        let next = unsafe { linker::symbol(libc::RTLD_NEXT, entry.symbol) };
        // The driver may be loaded for others than all.
        if next.is_null() || entry.is_exported(next) { Self::EntryPoint } else { Self::by(next, entry) }
    }
}

fn meant_by(symbol: &'static str) -> Address {
    let name = CStr::from_bytes_with_nul(symbol.as_bytes()).unwrap_or_default();
    let entry = names::by_symbol(ENTRY_POINTS, name).expect("the table has all of them");
    match Meant::by_name(entry) {
        Meant::EntryPoint => entry.address(),
        Meant::Others(found) => found,
    }
}

/// The entry point for a symbol; null where there is none.
pub(crate) extern "C" fn find(symbol: *const c_char) -> Address {
    // SAFETY: the other copy of this code, which asks, has the symbol as a text of C.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    names::by_symbol(ENTRY_POINTS, symbol).map_or(ptr::null_mut(), EntryPoint::address)
}

/// What programs find by a symbol; null where there is none of ours.
pub(crate) extern "C" fn exported(symbol: *const c_char) -> Address {
    // SAFETY: as above.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    let entry = names::by_symbol(ENTRY_POINTS, symbol);
    entry.map_or(ptr::null_mut(), |entry| entry.exported.0.cast_mut().cast())
}

/// From now on, all that comes here goes to the entry points of another copy of this code.
pub(crate) fn hand_over(to: names::Find) {
    names::hand_over(to);
    forget_meant();
}

/// The stream that a function for a thread's own default stream means.
fn of_thread(stream: Handle) -> Handle {
    if stream.is_null() { ptr::without_provenance_mut(streams::PER_THREAD as usize) } else { stream }
}

/// Puts our entry point in the place of the driver's function that was found.
///
/// # Safety
/// `name` is a text of C. `to` is null or may be written.
unsafe fn replace(code: Code, name: *const c_char, to: *mut Address, (version, flags): (c_int, u64)) -> Code {
    if !code.is_success() || name.is_null() || to.is_null() {
        return code;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if !to.read().is_null()
            && let Some(entry) = names::by_version(ENTRY_POINTS, CStr::from_ptr(name), version, flags)
        {
            to.write(entry.address());
        }
    }
    code
}

/// A stream ends, and what the pools know of it.
fn destroy_stream(stream: Handle, real: impl FnOnce() -> Code) -> Code {
    streams::forget(stream.addr() as u64);
    let code = real();
    // Its capture is over, if it had one.
    if code.is_success() {
        captures::end(stream.addr() as u64);
    }
    code
}

/// # Safety
/// The handle is one of the default ones, or a live stream.
unsafe fn begin_capture(stream: Handle, real: impl FnOnce() -> Code) -> Code {
    // SAFETY: the caller's promise.
    unsafe { captures::begin(stream, real) }
}

fn end_capture(stream: Handle, real: impl FnOnce() -> Code) -> Code {
    let code = real();
    // Also one that failed is over.
    captures::end(stream.addr() as u64);
    code
}

entry_points! {
    cuGetProcAddress since 11030 (name: *const c_char, to: *mut Address, version: c_int, flags: u64) |real|
        replace(real(), name, to, (version, flags));
    cuGetProcAddress_v2 since 12000 (
        name: *const c_char, to: *mut Address, version: c_int, flags: u64, status: *mut c_int,
    ) |real| replace(real(), name, to, (version, flags));

    cuMemAlloc_v2 since 3020 (at: *mut DeviceAddress, bytes: usize) |real| pooled::alloc(at, bytes, real);
    cuMemAllocPitch_v2 since 3020 (
        at: *mut DeviceAddress, pitch: *mut usize, width: usize, height: usize, element: c_uint,
    ) |real| pooled::alloc_pitch(at, pitch, (width, height), real);
    cuMemFree_v2 since 3020 (at: DeviceAddress) |real| pooled::free(at, real);
    cuMemAllocAsync since 11020 (at: *mut DeviceAddress, bytes: usize, stream: Handle) |real|
        pooled::alloc_async((at, bytes), stream, driver_pools::of_current(), real);
    cuMemAllocAsync_ptsz since 11020 (at: *mut DeviceAddress, bytes: usize, stream: Handle) |real|
        pooled::alloc_async((at, bytes), of_thread(stream), driver_pools::of_current(), real);
    cuMemAllocFromPoolAsync since 11020 (
        at: *mut DeviceAddress, bytes: usize, pool: Handle, stream: Handle,
    ) |real| pooled::alloc_async((at, bytes), stream, driver_pools::of(pool), real);
    cuMemAllocFromPoolAsync_ptsz since 11020 (
        at: *mut DeviceAddress, bytes: usize, pool: Handle, stream: Handle,
    ) |real| pooled::alloc_async((at, bytes), of_thread(stream), driver_pools::of(pool), real);
    cuMemFreeAsync since 11020 (at: DeviceAddress, stream: Handle) |real| pooled::free_async(at, stream, real);
    cuMemFreeAsync_ptsz since 11020 (at: DeviceAddress, stream: Handle) |real|
        pooled::free_async(at, of_thread(stream), real);
    cuMemAllocManaged since 6000 (at: *mut DeviceAddress, bytes: usize, flags: c_uint) |real|
        pooled::from_driver(Kind::Managed, (at, bytes), 0, real);
    cuMemAllocHost_v2 since 3020 (at: *mut DeviceAddress, bytes: usize) |real|
        pooled::from_driver(Kind::Pinned, (at, bytes), 0, real);
    cuMemHostAlloc since 2020 (at: *mut DeviceAddress, bytes: usize, flags: c_uint) |real|
        pooled::from_driver(Kind::Pinned, (at, bytes), 0, real);
    cuMemFreeHost since 2000 (at: DeviceAddress) |real| driver_memory::free((Kind::Pinned, at), None, real);
    cuMemCreate since 10020 (handle: *mut u64, bytes: usize, props: *const MemoryProps, flags: u64) |real|
        if props.as_ref().is_some_and(|props| props.location.gpu().is_some()) {
            let code = pooled::from_driver(Kind::Pages, (handle, bytes), 0, real);
            if code.is_success() && !handle.is_null() {
                pages::created(handle.read());
            }
            code
        } else {
            real()
        };
    cuMemRelease since 10020 (handle: u64) |real| pages::release(handle, real);
    cuMemRetainAllocationHandle since 11000 (handle: *mut u64, at: *mut c_void) |real|
        if memory_queries::has_handle(at.addr() as u64) { pages::retain(handle, at.addr() as u64, real) } else { Code::INVALID_VALUE };
    cuMemMap since 10020 (at: DeviceAddress, bytes: usize, offset: usize, handle: u64, flags: u64) |real|
        pages::map(at, handle, real);
    cuMemUnmap since 10020 (at: DeviceAddress, bytes: usize) |real| pages::unmap(at, bytes, real);

    cuMemPoolCreate since 11020 (pool: *mut Handle, props: *const PoolProps) |real|
        driver_pools::create(pool, props, real);
    cuMemPoolDestroy since 11020 (pool: Handle) |real| driver_pools::destroy(pool, real);
    cuMemPoolTrimTo since 11020 (pool: Handle, keep: usize) |real| driver_pools::trim(pool, keep, real);
    cuMemPoolSetAttribute since 11020 (pool: Handle, attribute: c_int, value: *mut c_void) |real|
        driver_pools::set_attribute(pool, attribute, value, real);
    cuMemPoolGetAttribute since 11020 (pool: Handle, attribute: c_int, value: *mut c_void) |real|
        driver_pools::attribute(pool, attribute, value, real);
    cuMemPoolSetAccess since 11020 (pool: Handle, access: *const c_void, count: usize) |real|
        driver_pools::share(pool, access, count, real);
    cuDeviceSetMemPool since 11020 (device: c_int, pool: Handle) |real|
        driver_pools::make_current(usize::try_from(device).ok(), pool, real);
    cuMemSetMemPool since 13000 (location: *const Location, kind: c_int, pool: Handle) |real|
        driver_pools::make_current(location.as_ref().and_then(|location| location.gpu()), pool, real);

    cuMemGetInfo_v2 since 3020 (free: *mut usize, total: *mut usize) |_real| memory_queries::memory_info(free, total);
    cuMemGetAddressRange_v2 since 3020 (start: *mut DeviceAddress, bytes: *mut usize, at: DeviceAddress) |real|
        memory_queries::address_range(start, bytes, at, real);
    cuPointerGetAttribute since 4000 (to: *mut c_void, attribute: c_int, at: DeviceAddress) |real|
        memory_queries::pointer_attribute(to, attribute, at, real);
    cuPointerGetAttributes since 7000 (
        count: c_uint, attributes: *mut c_int, to: *mut *mut c_void, at: DeviceAddress,
    ) |real| memory_queries::pointer_attributes(count, (attributes, to), at, real);
    cuPointerSetAttribute since 6000 (value: *const c_void, attribute: c_int, at: DeviceAddress) |real|
        memory_queries::set_pointer_attribute(value, attribute, at, real);
    cuIpcGetMemHandle since 4010 (handle: *mut IpcHandle, at: DeviceAddress) |real| ipc::get(handle.cast(), at, real);
    cuIpcOpenMemHandle since 4010 (at: *mut DeviceAddress, handle: IpcHandle, flags: c_uint) |real|
        ipc::open(at, handle.0, real);
    cuIpcOpenMemHandle_v2 since 11000 (at: *mut DeviceAddress, handle: IpcHandle, flags: c_uint) |real|
        ipc::open(at, handle.0, real);
    cuIpcCloseMemHandle since 4010 (at: DeviceAddress) |real| ipc::close(at, real);

    cuMemcpy since 4000 (to: DeviceAddress, from: DeviceAddress, bytes: usize) |real| crossing::copy(to, from, ptr::null_mut(), real);
    cuMemcpy_ptds since 7000 (to: DeviceAddress, from: DeviceAddress, bytes: usize) |real| real();
    cuMemcpyAsync since 4000 (to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Handle) |real| crossing::copy(to, from, stream, real);
    cuMemcpyAsync_ptsz since 7000 (to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Handle) |real| real();
    cuMemcpyDtoD_v2 since 3020 (to: DeviceAddress, from: DeviceAddress, bytes: usize) |real| crossing::copy(to, from, ptr::null_mut(), real);
    cuMemcpyDtoD_v2_ptds since 7000 (to: DeviceAddress, from: DeviceAddress, bytes: usize) |real| real();
    cuMemcpyDtoDAsync_v2 since 3020 (to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Handle) |real| crossing::copy(to, from, stream, real);
    cuMemcpyDtoDAsync_v2_ptsz since 7000 (to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Handle) |real| real();
    cuMemcpyPeer since 4000 (to: DeviceAddress, to_context: Handle, from: DeviceAddress, from_context: Handle, bytes: usize) |real| crossing::copy(to, from, ptr::null_mut(), real);
    cuMemcpyPeer_ptds since 7000 (to: DeviceAddress, to_context: Handle, from: DeviceAddress, from_context: Handle, bytes: usize) |real| real();
    cuMemcpyPeerAsync since 4000 (to: DeviceAddress, to_context: Handle, from: DeviceAddress, from_context: Handle, bytes: usize, stream: Handle) |real| crossing::copy(to, from, stream, real);
    cuMemcpyPeerAsync_ptsz since 7000 (to: DeviceAddress, to_context: Handle, from: DeviceAddress, from_context: Handle, bytes: usize, stream: Handle) |real| real();
    cuMemcpy2D_v2 since 3020 (plane: *const c_void) |real| crossing::copy_plane(plane.cast::<Plane>().as_ref(), ptr::null_mut(), real);
    cuMemcpy2D_v2_ptds since 7000 (plane: *const c_void) |real| real();
    cuMemcpy2DUnaligned_v2 since 3020 (plane: *const c_void) |real| crossing::copy_plane(plane.cast::<Plane>().as_ref(), ptr::null_mut(), real);
    cuMemcpy2DUnaligned_v2_ptds since 7000 (plane: *const c_void) |real| real();
    cuMemcpy2DAsync_v2 since 3020 (plane: *const c_void, stream: Handle) |real| crossing::copy_plane(plane.cast::<Plane>().as_ref(), stream, real);
    cuMemcpy2DAsync_v2_ptsz since 7000 (plane: *const c_void, stream: Handle) |real| real();
    cuMemcpy3D_v2 since 3020 (space: *const c_void) |real| crossing::copy_space(space.cast::<Space>().as_ref(), ptr::null_mut(), real);
    cuMemcpy3D_v2_ptds since 7000 (space: *const c_void) |real| real();
    cuMemcpy3DAsync_v2 since 3020 (space: *const c_void, stream: Handle) |real| crossing::copy_space(space.cast::<Space>().as_ref(), stream, real);
    cuMemcpy3DAsync_v2_ptsz since 7000 (space: *const c_void, stream: Handle) |real| real();
    cuMemcpy3DPeer since 4000 (space: *const c_void) |real| crossing::copy_space(space.cast::<Space>().as_ref(), ptr::null_mut(), real);
    cuMemcpy3DPeer_ptds since 7000 (space: *const c_void) |real| real();
    cuMemcpy3DPeerAsync since 4000 (space: *const c_void, stream: Handle) |real| crossing::copy_space(space.cast::<Space>().as_ref(), stream, real);
    cuMemcpy3DPeerAsync_ptsz since 7000 (space: *const c_void, stream: Handle) |real| real();

    cuStreamDestroy since 2000 (stream: Handle) |real| destroy_stream(stream, real);
    cuStreamDestroy_v2 since 4000 (stream: Handle) |real| destroy_stream(stream, real);
    cuStreamBeginCapture since 10000 (stream: Handle) |real| begin_capture(stream, real);
    cuStreamBeginCapture_ptsz since 10000 (stream: Handle) |real| begin_capture(of_thread(stream), real);
    cuStreamBeginCapture_v2 since 10010 (stream: Handle, mode: c_int) |real| begin_capture(stream, real);
    cuStreamBeginCapture_v2_ptsz since 10010 (stream: Handle, mode: c_int) |real|
        begin_capture(of_thread(stream), real);
    cuStreamBeginCaptureToGraph since 12030 (
        stream: Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize, mode: c_int,
    ) |real| begin_capture(stream, real);
    cuStreamBeginCaptureToGraph_ptsz since 12030 (
        stream: Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize, mode: c_int,
    ) |real| begin_capture(of_thread(stream), real);
    cuStreamBeginCaptureToCig since 13020 (stream: Handle, params: *mut c_void) |real| begin_capture(stream, real);
    cuStreamBeginRecaptureToGraph since 13030 (
        stream: Handle, mode: c_int, graph: Handle, callback: *const c_void, data: *mut c_void,
    ) |real| begin_capture(stream, real);
    cuStreamEndCaptureToCig since 13020 (stream: Handle) |real| end_capture(stream, real);
    cuStreamEndCapture since 10000 (stream: Handle, graph: *mut Handle) |real| end_capture(stream, real);
    cuStreamEndCapture_ptsz since 10000 (stream: Handle, graph: *mut Handle) |real|
        end_capture(of_thread(stream), real);

    cuCtxEnablePeerAccess since 4000 (peer: Handle, flags: c_uint) |real| memory_queries::enable_peer(peer, real);
    cuCtxDestroy since 2000 (context: Handle) |real| contexts::destroy(context, real);
    cuCtxDestroy_v2 since 4000 (context: Handle) |real| contexts::destroy(context, real);
    cuGreenCtxCreate since 12040 (context: *mut Handle, description: Handle, device: c_int, flags: c_uint) |real|
        contexts::create_green(device, real);
    cuDevicePrimaryCtxRetain since 7000 (context: *mut Handle, device: c_int) |real| contexts::retain(device, real);
    cuDevicePrimaryCtxRelease since 7000 (device: c_int) |real| contexts::release(device, real);
    cuDevicePrimaryCtxRelease_v2 since 11000 (device: c_int) |real| contexts::release(device, real);
    cuDevicePrimaryCtxReset since 7000 (device: c_int) |real| contexts::reset(device, real);
    cuDevicePrimaryCtxReset_v2 since 11000 (device: c_int) |real| contexts::reset(device, real);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The names in the rows of the table whose first column is this.
    fn listed(page: &str, kind: &str) -> BTreeSet<String> {
        let rows = page.lines().filter(|line| line.starts_with(&format!("| *{kind}* |")));
        let names = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
        names.map(str::to_owned).collect()
    }

    /// The CUDA runtime of version 13.0 asks for the first version of some functions, by which they take the same.
    #[test]
    fn a_runtime_that_asks_for_the_first_version_is_answered() {
        for (name, version) in [
            (c"cuDevicePrimaryCtxRelease", 7000),
            (c"cuDevicePrimaryCtxReset", 7000),
            (c"cuIpcOpenMemHandle", 4010),
            (c"cuStreamBeginCapture", 10_000),
            (c"cuStreamDestroy", 4000),
            (c"cuMemAlloc", 3020),
            (c"cuMemFree", 3020),
        ] {
            for flags in [0, 1, 2] {
                assert!(names::by_version(ENTRY_POINTS, name, version, flags).is_some(), "{name:?}");
            }
        }
    }

    #[test]
    fn the_page_lists_each_entry_point_and_no_other_as_ours() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/run.md");
        let page = std::fs::read_to_string(path).unwrap();
        let own: BTreeSet<_> =
            ENTRY_POINTS.iter().map(|entry| String::from_utf8(entry.base().0.to_vec()).unwrap()).collect();
        assert_eq!(listed(&page, "ours"), own);
        let [passes, drivers] = ["passes, harmless", "the driver's"].map(|kind| listed(&page, kind));
        assert!(passes.len() > 20 && drivers.len() > 20);
        assert!(passes.is_disjoint(&own) && drivers.is_disjoint(&own) && passes.is_disjoint(&drivers));
    }
}
