//! The GIL, and calls that may wait.
//!
//! What a call waits for may need the GIL itself: a host function that a stream is to run, or a callback on another thread.
//! So nothing that can wait is done with the GIL held: no call, and no end of a value. Where a call cannot wait, the GIL
//! stays: to hand it over costs more than the call.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use pyo3::Python;

/// Calls without the GIL, on a thread that has it or not.
pub(crate) fn detached<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    let mut call = Some(call);
    let mut once = || call.take().map(|call| call());
    let done = Python::try_attach(|py| py.detach(&mut once)).flatten();
    // Not called yet where Python is ending: then nobody else gets the GIL.
    done.or_else(once).expect("it was not called before")
}

/// A value whose end may wait: of a pool, a stream, a context. It is dropped without the GIL.
#[derive(Debug)]
pub(crate) struct Detached<T: Send>(ManuallyDrop<T>);

impl<T: Send> From<T> for Detached<T> {
    fn from(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let value = unsafe { ManuallyDrop::take(&mut self.0) };
        detached(move || drop(value));
    }
}
