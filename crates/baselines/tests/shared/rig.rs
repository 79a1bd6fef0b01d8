//! One allocator on one device, and late work to put on its streams.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{DeviceError, DevicePtr};
use millpond::{Context, Error, Result, Stream};
use millpond_baselines::{Allocator, by_name};

/// Bytes of memory of every device here: small, so that it can run out.
pub(crate) const CAPACITY: u64 = 512 << 20;
/// How long late work takes.
const LATE: Duration = Duration::from_millis(30);

pub(crate) enum Machine {
    Host(Arc<HostDevice>),
    Sim(Arc<SimDevice>),
}

impl Machine {
    pub(crate) fn host() -> Self {
        let options = HostOptions::default().capacity(CAPACITY);
        Self::Host(HostDevice::with_options(options).unwrap())
    }

    pub(crate) fn sim() -> Self {
        Self::Sim(SimDevice::new(SimOptions::default().capacity(CAPACITY)).unwrap())
    }

    fn context(&self) -> Context {
        match self {
            Self::Host(device) => Context::new(device.clone()),
            Self::Sim(device) => Context::new(device.clone()),
        }
    }
}

pub(crate) struct Rig {
    pub(crate) machine: Machine,
    pub(crate) context: Context,
    pub(crate) allocator: Box<dyn Allocator>,
}

impl Rig {
    pub(crate) fn new(machine: Machine, name: &str) -> Self {
        let context = machine.context();
        let allocator = by_name(name, &context).unwrap();
        assert_eq!(allocator.name(), name);
        Self { machine, context, allocator }
    }

    pub(crate) fn stream(&self) -> Stream {
        self.context.create_stream().unwrap()
    }

    pub(crate) fn allocate(&self, bytes: u64, stream: &Stream) -> DevicePtr {
        self.allocator.allocate(bytes, stream).unwrap()
    }

    pub(crate) fn free(&self, ptr: DevicePtr, stream: &Stream) {
        self.try_free(ptr, stream).unwrap();
    }

    pub(crate) fn try_free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: the tests free blocks of their own, and order their work. What is no live block is refused.
        unsafe { self.allocator.free(ptr, stream) }
    }

    /// Allocates blocks of `bytes` until the device is full.
    pub(crate) fn fill(&self, bytes: u64, stream: &Stream) -> Vec<DevicePtr> {
        let mut blocks = Vec::new();
        loop {
            match self.allocator.allocate(bytes, stream) {
                Ok(ptr) => blocks.push(ptr),
                Err(error) => {
                    assert!(is_out_of_memory(&error), "{error}");
                    return blocks;
                }
            }
            assert!(blocks.len() as u64 * bytes <= CAPACITY, "more was handed out than there is");
        }
    }

    /// Has `stream` write `value` over a block, after a while.
    pub(crate) fn write_late(&self, ptr: DevicePtr, value: u8, bytes: u64, stream: &Stream) {
        match &self.machine {
            Machine::Host(device) => device.launch(stream.handle(), || std::thread::sleep(LATE)).unwrap(),
            Machine::Sim(device) => device.launch(stream.handle(), LATE).unwrap(),
        }
        self.write(ptr, value, bytes, stream);
    }

    /// Has `stream` write `value` over a block.
    pub(crate) fn write(&self, ptr: DevicePtr, value: u8, bytes: u64, stream: &Stream) {
        // SAFETY: each test writes to live blocks of at least `bytes` only; that their memory is not used by
        // unordered work is what the test finds out.
        unsafe { self.context.device().memset(ptr, value, bytes, stream.handle()) }.unwrap();
    }

    /// Whether the block holds `value` throughout, once all work is complete. Without bytes: yes.
    pub(crate) fn holds(&self, ptr: DevicePtr, value: u8, bytes: u64, stream: &Stream) -> bool {
        self.context.synchronize().unwrap();
        if matches!(self.machine, Machine::Sim(_)) {
            return true;
        }
        let mut found = vec![!value; bytes as usize];
        // SAFETY: `found` holds `bytes`, and is neither touched nor freed before the synchronise.
        unsafe { self.context.device().copy_to_host(found.as_mut_ptr(), ptr, bytes, stream.handle()) }
            .unwrap();
        stream.synchronize().unwrap();
        found.iter().all(|&byte| byte == value)
    }
}

pub(crate) fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory(_) | Error::Device(DeviceError::OutOfMemory { .. }))
}

/// What `result` failed with.
pub(crate) fn error_of<T: std::fmt::Debug>(result: Result<T>) -> Error {
    result.expect_err("misuse is an error")
}
