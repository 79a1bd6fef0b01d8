//! NVIDIA's management library, where it is there: what of the GPUs' memory is used, by all and by this process.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::transmute_copy;
use std::os::unix::fs::MetadataExt;
use std::ptr;

use crate::driver;
use crate::linker::{self, Address, OwnLookups};

/// `nvmlDevice_t`
type Device = Address;

/// `nvmlProcessInfo_t`
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    instances: [c_uint; 2],
}

/// `nvmlMemory_t`
#[derive(Debug, Default)]
#[repr(C)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

type DeviceCount = unsafe extern "C" fn(*mut c_uint) -> c_int;
type ByIndex = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
type ByBus = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
type Processes = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessInfo) -> c_int;
type Memory = unsafe extern "C" fn(Device, *mut MemoryInfo) -> c_int;

/// The library, opened. It stays so.
#[derive(Debug)]
pub(crate) struct Nvml {
    count: DeviceCount,
    by_index: ByIndex,
    by_bus: ByBus,
    processes: Processes,
    memory: Memory,
    /// Whether its numbers of processes are those that this process sees.
    has_our_numbers: bool,
}

/// `NVML_VALUE_NOT_AVAILABLE`
const NOT_AVAILABLE: u64 = u64::MAX;

/// Processes of a GPU at most.
const MOST_PROCESSES: usize = 4096;

impl Nvml {
    /// `None` where it is not there, too old, or may not look.
    pub(crate) fn open() -> Option<Self> {
        // What it looks up is its own.
        let _own = OwnLookups::begin();
        // SAFETY: loading it runs its initialisers, which any program may.
        let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY) };
        // SAFETY: each function has this type in nvml.h.
        unsafe {
            let init: unsafe extern "C" fn() -> c_int = function(library, c"nvmlInit_v2")?;
            let new = Self {
                count: function(library, c"nvmlDeviceGetCount_v2")?,
                by_index: function(library, c"nvmlDeviceGetHandleByIndex_v2")?,
                by_bus: function(library, c"nvmlDeviceGetHandleByPciBusId_v2")?,
                processes: function(library, c"nvmlDeviceGetComputeRunningProcesses_v3")?,
                memory: function(library, c"nvmlDeviceGetMemoryInfo")?,
                has_our_numbers: is_first_pid_namespace(),
            };
            (init() == 0).then_some(new)
        }
    }

    /// What this process uses of all GPUs. `None` where the library does not say, as in a container.
    pub(crate) fn used_here(&self) -> Option<u64> {
        if !self.has_our_numbers {
            return None;
        }
        let mut count = 0;
        // SAFETY: `count` is writable.
        if unsafe { (self.count)(&mut count) } != 0 {
            return None;
        }
        let pid = std::process::id();
        let mut used = None;
        for index in 0..count {
            let mut device = ptr::null_mut();
            // SAFETY: `device` is writable.
            if unsafe { (self.by_index)(index, &mut device) } != 0 {
                continue;
            }
            let ours = self.processes(device).into_iter().find(|process| process.pid == pid);
            if let Some(bytes) = ours.map(|process| process.used).filter(|bytes| *bytes != NOT_AVAILABLE) {
                used = Some(used.unwrap_or(0) + bytes);
            }
        }
        used
    }

    fn processes(&self, device: Device) -> Vec<ProcessInfo> {
        let mut all = vec![ProcessInfo::default(); 64];
        loop {
            let mut count = all.len() as c_uint;
            // SAFETY: there is room for so many.
            match unsafe { (self.processes)(device, &mut count, all.as_mut_ptr()) } {
                0 => {
                    all.truncate(count as usize);
                    return all;
                }
                // `NVML_ERROR_INSUFFICIENT_SIZE`
                7 if all.len() < MOST_PROCESSES => all.resize(2 * all.len(), ProcessInfo::default()),
                _ => return Vec::new(),
            }
        }
    }

    /// What all processes use of the GPU with this number of CUDA's.
    pub(crate) fn used_of(&self, gpu: c_int) -> Option<u64> {
        let (mut bus, mut device, mut info) = ([0; 64], ptr::null_mut(), MemoryInfo::default());
        // SAFETY: the text has room, and the others are writable.
        unsafe {
            let found = driver::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int, gpu);
            if !found.is_success() || (self.by_bus)(bus.as_ptr(), &mut device) != 0 {
                return None;
            }
            ((self.memory)(device, &mut info) == 0).then_some(info.used)
        }
    }
}

/// # Safety
/// `F` is the type of the function with this name.
unsafe fn function<F>(library: Address, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<Address>()) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is open.
    let found = unsafe { linker::symbol(library, name) };
    // SAFETY: the caller's promise, and both are as large as a pointer.
    (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
}

/// Whether a process has one number here and for the driver. In a container it has another one, and so has somebody else's.
fn is_first_pid_namespace() -> bool {
    /// `PROC_PID_INIT_INO`
    const FIRST: u64 = 0xEFFF_FFFC;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == FIRST)
}
