//! The calling thread's capture mode: what captures of streams forbid it.

use std::marker::PhantomData;

use super::api::{Api, CaptureMode};
use crate::log::log;

/// While this lives, the thread may allocate, free and ask although streams are being captured.
///
/// A capture in the default mode (*global*) forbids all threads of the process the calls that might wait for it. Such a
/// call ends it with an error. A pool's calls concern other memory and other streams; that they do not concern the
/// capture is the pool's own care (`Device::capture_of`).
#[must_use]
pub(super) struct Relaxed {
    api: &'static Api,
    /// `None` where the driver did not change it.
    before: Option<CaptureMode>,
    // The mode belongs to the thread, so the guard must not leave it.
    on_this_thread: PhantomData<*const ()>,
}

impl Relaxed {
    pub(super) fn enter(api: &'static Api) -> Self {
        let before = exchange(api, CaptureMode::RELAXED);
        Self { api, before, on_this_thread: PhantomData }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            exchange(self.api, before);
        }
    }
}

/// Sets the thread's mode; returns the one that it had. `None` where it stays as it was: the call that follows says
/// what it is refused for.
fn exchange(api: &Api, mut mode: CaptureMode) -> Option<CaptureMode> {
    // SAFETY: `mode` is writable, and a mode that the driver knows.
    match unsafe { api.cuThreadExchangeStreamCaptureMode(&mut mode) } {
        Ok(()) => Some(mode),
        Err(failure) => {
            log!(DEBUG, "the thread's capture mode was not changed", failure = format_args!("{failure:?}"));
            None
        }
    }
}
