//! The primary context: kept alive by us, current only while a call needs it.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::api::Api;
use crate::device::{DeviceError, DeviceResult};
use crate::log::log;
use crate::system::process::Process;

const ENDED: &str = "the program has ended the GPU's primary context (cudaDeviceReset): open the GPU anew";

/// The device's primary context, which the CUDA runtime, PyTorch and cudarc use too.
#[derive(Debug)]
pub(super) struct Context {
    api: &'static Api,
    device: CUdevice,
    raw: CUcontext,
    process: Process,
    /// Whether the program has ended it, and with it all that was made in it.
    has_ended: AtomicBool,
}

// SAFETY: a CUcontext is a handle that any thread may use; the driver locks what needs it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Creates the primary context, or counts one more user of it.
    pub(super) fn retain(api: &'static Api, device: CUdevice) -> DeviceResult<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable and the device came from cuDeviceGet.
        unsafe { api.cuDevicePrimaryCtxRetain(&mut raw, device) }?;
        Ok(Self { api, device, raw, process: Process::here(), has_ended: AtomicBool::new(false) })
    }

    /// The GPU that it is of.
    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Makes this context current on the calling thread until the guard goes.
    ///
    /// Remembering per thread what we made current last would be cheaper and wrong: others change it without
    /// telling us. So the driver is asked, which costs about 10 ns.
    pub(super) fn enter(&self) -> DeviceResult<Entered> {
        self.check_alive()?;
        let mut current = ptr::null_mut();
        // SAFETY: `current` is writable.
        unsafe { self.api.cuCtxGetCurrent(&mut current) }?;
        if current == self.raw {
            return Ok(Entered { pushed_by: None, on_this_thread: PhantomData });
        }
        // SAFETY: the context is retained as long as `self` is.
        unsafe { self.api.cuCtxPushCurrent_v2(self.raw) }?;
        Ok(Entered { pushed_by: Some(self.api), on_this_thread: PhantomData })
    }

    /// CUDA does not work in a process that was forked from one that uses it: no call reaches the driver there.
    #[inline]
    pub(super) fn check_process(&self) -> DeviceResult<()> {
        Ok(self.process.check()?)
    }

    /// As [`check_process`](Self::check_process). A stream or an event of a context that has ended must not reach the driver either.
    #[inline]
    pub(super) fn check_alive(&self) -> DeviceResult<()> {
        self.check_process()?;
        if self.has_ended() { Err(DeviceError::Unavailable(ENDED.to_owned())) } else { Ok(()) }
    }

    /// Whether the program has [ended](Self::end) it.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        // Acquire: who sees it sees what the program did before.
        self.has_ended.load(Ordering::Acquire)
    }

    /// The program ends it next. Whoever has it does not keep it any more.
    pub(super) fn end(&self) {
        if !self.has_ended.swap(true, Ordering::AcqRel) {
            self.release();
        }
    }

    fn release(&self) {
        if self.check_process().is_err() {
            // The context is the parent's.
            return;
        }
        // SAFETY: one release for the one retain: of `end` and of the drop, only the first comes here.
        if let Err(failure) = unsafe { self.api.cuDevicePrimaryCtxRelease_v2(self.device) } {
            // At process exit the driver may be gone already; there is nobody left to tell.
            log!(DEBUG, "the primary context was not released", failure = format_args!("{failure:?}"));
        }
    }

    /// Makes this context current on the calling thread, for good.
    pub(super) fn make_current(&self) -> DeviceResult<()> {
        self.check_alive()?;
        // SAFETY: the context is retained as long as `self` is.
        Ok(unsafe { self.api.cuCtxSetCurrent(self.raw) }?)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !*self.has_ended.get_mut() {
            self.release();
        }
    }
}

/// While this lives the context is current on this thread.
#[must_use]
pub(super) struct Entered {
    pushed_by: Option<&'static Api>,
    // The context stack belongs to the thread, so the guard must not leave it.
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(api) = self.pushed_by {
            let mut popped = ptr::null_mut();
            // SAFETY: `popped` is writable, and the top of this thread's stack is what `enter` pushed.
            if let Err(failure) = unsafe { api.cuCtxPopCurrent_v2(&mut popped) } {
                log!(ERROR, "the caller's context was not restored", failure = format_args!("{failure:?}"));
            }
        }
    }
}
