//! Contexts: a device with its streams and pools.

use std::ffi::c_char;
use std::sync::{Arc, OnceLock, Weak};

use millpond::bindings::Mutex;
use millpond::bindings::PerProcess;
use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Kind as DeviceKind, MemoryInfo};
use millpond::{Context, Stream};

use crate::arguments::{Out, SizedStruct, fixed_text, init_struct, read_struct, write_struct};
use crate::failure::{Failure, boundary};
use crate::handle::Table;
use crate::kind::{ContextHandle, Kind};
use crate::status::Status;

/// What a context's handle stands for.
#[derive(Debug)]
pub(crate) struct ContextObject {
    pub(crate) context: Context,
    /// The legacy default stream, which null stands for.
    default_stream: OnceLock<Stream>,
    /// The device, where it is the host: it runs closures.
    pub(crate) host: Option<Arc<HostDevice>>,
}

pub(crate) static CONTEXTS: Table<Arc<ContextObject>> = Table::new(Kind::Context);

impl ContextObject {
    fn of_host(device: Arc<HostDevice>) -> Arc<Self> {
        Self::new(Context::new(device.clone()), Some(device))
    }

    fn new(context: Context, host: Option<Arc<HostDevice>>) -> Arc<Self> {
        Arc::new(Self { context, default_stream: OnceLock::new(), host })
    }

    pub(crate) fn default_stream(&self) -> Result<&Stream, Failure> {
        if let Some(stream) = self.default_stream.get() {
            return Ok(stream);
        }
        let stream = self.context.default_stream()?;
        Ok(self.default_stream.get_or_init(|| stream))
    }
}

/// What the host device is made with. Fill with `millpond_host_options_init`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct HostDeviceOptions {
    /// sizeof this struct.
    pub size: usize,
    /// Bytes of memory that the device has; 0: half of what the process may have.
    pub capacity: usize,
    /// The smallest page in bytes, a power of two; 2 MiB by default, as a GPU.
    pub granularity: usize,
    /// Whether pages can be mapped; 1 by default. 0: as on older or virtual GPUs.
    pub virtual_memory: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, integers only, the size first.
unsafe impl SizedStruct for HostDeviceOptions {
    const NAME: &'static str = "millpond_host_options";
}

/// What a simulated device is made with. Fill with `millpond_sim_options_init`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SimDeviceOptions {
    /// sizeof this struct.
    pub size: usize,
    /// Bytes of memory that the device has; 140 GiB by default, as an NVIDIA H200.
    pub capacity: usize,
    /// The smallest page in bytes, a power of two; 2 MiB by default.
    pub granularity: usize,
    /// Whether pages can be mapped; 1 by default.
    pub virtual_memory: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, integers only, the size first.
unsafe impl SizedStruct for SimDeviceOptions {
    const NAME: &'static str = "millpond_sim_options";
}

/// What a device is and can do. Set `size` before the call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DeviceProperties {
    /// sizeof this struct.
    pub size: usize,
    /// Bytes of memory that the device has.
    pub total_memory: usize,
    /// The smallest page in bytes.
    pub granularity: usize,
    /// One of `millpond_device_kind`.
    pub kind: i32,
    /// The device's number among its kind.
    pub ordinal: i32,
    /// Whether pages can be mapped.
    pub virtual_memory: u32,
    /// Whether the driver has a stream-ordered allocator of its own.
    pub memory_pools: u32,
    /// The device's name, such as "NVIDIA H200", cut to the field.
    pub name: [c_char; 128],
}

// SAFETY: `repr(C)`, integers only, the size first.
unsafe impl SizedStruct for DeviceProperties {
    const NAME: &'static str = "millpond_device_properties";
}

/// Which device a context is of.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKindCode {
    /// A device that this version has no number for.
    Unknown = 0,
    /// An NVIDIA GPU.
    Cuda = 1,
    /// The CPU, with real memory, and threads for streams.
    Host = 2,
    /// Nothing: bookkeeping in virtual time.
    Sim = 3,
}

fn default_host_options(size: usize) -> HostDeviceOptions {
    let HostOptions { granularity, .. } = HostOptions::default();
    HostDeviceOptions { size, capacity: 0, granularity: granularity as usize, virtual_memory: 1, reserved: 0 }
}

fn default_sim_options(size: usize) -> SimDeviceOptions {
    let SimOptions { capacity, granularity, .. } = SimOptions::default();
    let (capacity, granularity) = (capacity as usize, granularity as usize);
    SimDeviceOptions { size, capacity, granularity, virtual_memory: 1, reserved: 0 }
}

/// Gives the caller a handle of the context that `open` finds or makes.
///
/// # Safety
/// `out` is null, or valid for writes until the call returns.
unsafe fn hand_out(
    out: *mut *mut ContextHandle,
    open: impl FnOnce() -> Result<Arc<ContextObject>, Failure>,
) -> Status {
    boundary(|_| {
        // SAFETY: as promised to this function.
        let out = unsafe { Out::pointer(out, "out") }?;
        out.set(CONTEXTS.insert(open()?)?);
        Ok(())
    })
}

/// Opens the NVIDIA GPU with this ordinal. Every context of one GPU in this process is the same device: pools and
/// streams made from one may be used with the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_context_cuda(ordinal: i32, out: *mut *mut ContextHandle) -> Status {
    type ByOrdinal = Mutex<Vec<(usize, Weak<ContextObject>)>>;
    static OPENED: PerProcess<ByOrdinal> = PerProcess::new(Default::default);
    let open = || {
        let ordinal = usize::try_from(ordinal)
            .map_err(|_| Failure::option("ordinal", format!("{ordinal}; devices are numbered from 0")))?;
        let mut opened = OPENED.get().lock();
        opened.retain(|(_, context)| context.strong_count() > 0);
        let known = opened.iter().find(|(of, _)| *of == ordinal).and_then(|(_, known)| known.upgrade());
        if let Some(known) = known {
            return Ok(known);
        }
        let object = ContextObject::new(Context::cuda(ordinal)?, None);
        opened.push((ordinal, Arc::downgrade(&object)));
        Ok(object)
    };
    // SAFETY: as the header asks of its caller.
    unsafe { hand_out(out, open) }
}

/// Opens the CPU as a device: real memory, real streams, no GPU needed. Every context opened by this call in this
/// process is the same device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_context_host(out: *mut *mut ContextHandle) -> Status {
    static OPENED: PerProcess<Mutex<Weak<ContextObject>>> = PerProcess::new(Default::default);
    let open = || {
        let mut opened = OPENED.get().lock();
        if let Some(known) = opened.upgrade() {
            return Ok(known);
        }
        let object = ContextObject::of_host(HostDevice::new()?);
        *opened = Arc::downgrade(&object);
        Ok(object)
    };
    // SAFETY: as the header asks of its caller.
    unsafe { hand_out(out, open) }
}

/// Fills options of the host device with the defaults. `size` is sizeof the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_options_init(options: *mut HostDeviceOptions, size: usize) -> Status {
    // SAFETY: as the header asks of its caller.
    boundary(|_| unsafe { init_struct(options, size, &default_host_options(size)) })
}

/// Makes a host device of its own with these options (null: the defaults).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_context_host_with(
    options: *const HostDeviceOptions,
    out: *mut *mut ContextHandle,
) -> Status {
    let open = || {
        // SAFETY: as the header asks of its caller.
        let options = unsafe { read_struct(options, default_host_options(0)) }?;
        let capacity = (options.capacity > 0).then_some(options.capacity as u64);
        let host = HostOptions::default()
            .capacity(capacity)
            .granularity(options.granularity as u64)
            .virtual_memory(options.virtual_memory != 0);
        let device = HostDevice::with_options(host)?;
        Ok(ContextObject::of_host(device))
    };
    // SAFETY: likewise.
    unsafe { hand_out(out, open) }
}

/// Fills options of a simulated device with the defaults. `size` is sizeof the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_sim_options_init(options: *mut SimDeviceOptions, size: usize) -> Status {
    // SAFETY: as the header asks of its caller.
    boundary(|_| unsafe { init_struct(options, size, &default_sim_options(size)) })
}

/// Makes a simulated device with these options (null: the defaults): it keeps no bytes and is deterministic.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_context_sim(
    options: *const SimDeviceOptions,
    out: *mut *mut ContextHandle,
) -> Status {
    let open = || {
        // SAFETY: as the header asks of its caller.
        let options = unsafe { read_struct(options, default_sim_options(0)) }?;
        let device = SimDevice::new(
            SimOptions::default()
                .capacity(options.capacity as u64)
                .granularity(options.granularity as u64)
                .virtual_memory(options.virtual_memory != 0),
        )?;
        Ok(ContextObject::new(Context::new(device), None))
    };
    // SAFETY: likewise.
    unsafe { hand_out(out, open) }
}

/// Gives up the handle. The device stays open as long as a pool, a stream or another context of it is.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_context_release(context: *mut ContextHandle) -> Status {
    boundary(|me| CONTEXTS.release(me, context))
}

/// Waits for all work on the device, then lets its pools give back what lies above their release thresholds.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_context_synchronize(context: *mut ContextHandle) -> Status {
    boundary(|me| Ok(CONTEXTS.get(me, context)?.context.synchronize()?))
}

/// Free and total memory of the device in bytes, as its driver counts. Either output may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_context_memory_info(
    context: *mut ContextHandle,
    free: *mut usize,
    total: *mut usize,
) -> Status {
    boundary(|me| {
        let MemoryInfo { free: left, total: all } = CONTEXTS.get(me, context)?.context.memory_info()?;
        for (at, bytes) in [(free, left), (total, all)] {
            if !at.is_null() {
                // SAFETY: not null, and as the header asks of its caller.
                unsafe { at.write(bytes as usize) };
            }
        }
        Ok(())
    })
}

/// What the device is and can do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_context_properties(
    context: *mut ContextHandle,
    properties: *mut DeviceProperties,
) -> Status {
    boundary(|me| {
        let object = CONTEXTS.get(me, context)?;
        let known = object.context.device().properties();
        let value = DeviceProperties {
            size: 0,
            total_memory: known.total_memory as usize,
            granularity: known.granularity as usize,
            kind: kind_code(known.kind) as i32,
            ordinal: i32::try_from(known.ordinal).unwrap_or(i32::MAX),
            virtual_memory: u32::from(known.virtual_memory),
            memory_pools: u32::from(known.memory_pools),
            name: fixed_text(&known.name),
        };
        // SAFETY: as the header asks of its caller.
        unsafe { write_struct(properties, "properties", &value) }
    })
}

fn kind_code(kind: DeviceKind) -> DeviceKindCode {
    match kind {
        DeviceKind::Cuda => DeviceKindCode::Cuda,
        DeviceKind::Host => DeviceKindCode::Host,
        DeviceKind::Sim => DeviceKindCode::Sim,
        _ => DeviceKindCode::Unknown,
    }
}
