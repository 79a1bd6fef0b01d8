//! The suite's hands on a GPU.

use std::sync::{Arc, mpsc};

use millpond::device::cuda::{CudaDevice, CudaOptions};
use millpond::device::{Device, StreamHandle};

use super::harness::{Harness, Hold};

pub(crate) struct CudaHarness(Arc<CudaDevice>, Arc<CudaDevice>);

impl CudaHarness {
    /// GPU 0; without virtual memory, as if it had none.
    pub(crate) fn new(virtual_memory: bool) -> Self {
        let options = CudaOptions::default().virtual_memory((!virtual_memory).then_some(false));
        let open = |ordinal| CudaDevice::with_options(ordinal, options).unwrap();
        Self(open(0), open(CudaDevice::count().unwrap().min(2) - 1))
    }
}

impl Harness for CudaHarness {
    fn keeps_bytes(&self) -> bool {
        true
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn waits(&self) -> bool {
        true
    }

    fn raw(&self) -> &dyn Device {
        &*self.0
    }

    fn peer(&self) -> &dyn Device {
        &*self.1
    }

    fn hold(&self, stream: StreamHandle) -> Hold {
        let (release, released) = mpsc::channel();
        // A hold dropped by a failing test is released too: then `recv` fails, and the stream goes on.
        // SAFETY: the stream is the test's, and there are no captures.
        unsafe { self.0.launch_host(stream, move || _ = released.recv()) }.unwrap();
        Box::new(move || release.send(()).unwrap())
    }

    fn launch(&self, stream: StreamHandle, work: Box<dyn FnOnce() + Send>) -> bool {
        // SAFETY: as above.
        unsafe { self.0.launch_host(stream, work) }.unwrap();
        true
    }
}
