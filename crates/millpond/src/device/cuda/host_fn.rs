//! Running Rust closures in stream order.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::device::{CudaDevice, stream_of};
use crate::device::{DeviceResult, StreamHandle};
use crate::log::log;

type Work = Box<dyn FnOnce() + Send>;

impl CudaDevice {
    /// Runs `work` on a thread of the driver, once all work given to `stream` so far is complete. Later work on the
    /// stream waits for it. It must not call CUDA, nor wait for anything that does (the driver's rule for
    /// `cuLaunchHostFunc`). A panic inside is logged and goes no further.
    ///
    /// # Errors
    /// Those of the driver; `work` is dropped without having run.
    ///
    /// # Safety
    /// The stream is [valid](crate::device), and is not being captured: a graph would run `work` at each replay.
    pub unsafe fn launch_host(
        &self,
        stream: StreamHandle,
        work: impl FnOnce() + Send + 'static,
    ) -> DeviceResult<()> {
        let _entered = self.enter_for(stream)?;
        // Twice boxed, because the driver passes on one thin pointer.
        let data = Box::into_raw(Box::new(Box::new(work) as Work)).cast::<c_void>();
        // SAFETY: `run` takes what `data` points to, and the driver calls it once, since the stream is not captured.
        let launched = unsafe { self.api().cuLaunchHostFunc(stream_of(stream), Some(run), data) };
        if let Err(failure) = launched {
            // SAFETY: the driver refused, so it never calls `run`, and the box is ours again.
            drop(unsafe { Box::from_raw(data.cast::<Work>()) });
            return Err(failure.into());
        }
        Ok(())
    }
}

/// # Safety
/// `data` came from `Box::into_raw` of a boxed [`Work`] and is not used again.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: the caller's promise.
    let work = unsafe { Box::from_raw(data.cast::<Work>()) };
    // Unwinding into the driver's C frames would abort the process.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        // Its drop could panic, too.
        std::mem::forget(panic);
        log!(ERROR, "a host function panicked on its stream");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn raw(work: impl FnOnce() + Send + 'static) -> *mut c_void {
        Box::into_raw(Box::new(Box::new(work) as Work)).cast()
    }

    #[test]
    fn the_trampoline_runs_its_closure_once_and_catches_a_panic() {
        let count = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&count);
        // SAFETY: a fresh box, used once.
        unsafe {
            run(raw(move || {
                seen.fetch_add(1, Ordering::Relaxed);
            }))
        };
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&count), 1, "the closure was dropped");
        // SAFETY: a fresh box, used once.
        unsafe { run(raw(|| panic!("expected by the test"))) };
    }
}
