//! A pool as the objects of Python share it, with the streams that their calls are given.

use std::sync::OnceLock;

use millpond::Context;
use millpond::bindings::Shortcut;
use millpond::device::DevicePtr;
use pyo3::prelude::*;

use crate::gil::Detached;
use crate::stream::StreamArgument;

/// A pool and its device.
#[derive(Debug)]
pub(crate) struct Handle {
    /// The legacy default stream, once it was asked for: the most usual one, which needs no look at the device then.
    default: Detached<OnceLock<millpond::Stream>>,
    pub(crate) pool: Detached<millpond::Pool>,
    pub(crate) context: Detached<Context>,
}

/// A stream that a call was given.
pub(crate) struct Given {
    pub(crate) stream: millpond::Stream,
    /// Whether the pool's handle, or the object that the call was given, keeps it. Then to drop this is no more than to count.
    pub(crate) is_kept: bool,
}

impl Handle {
    pub(crate) fn new(pool: millpond::Pool, context: Context) -> Self {
        Self { default: OnceLock::new().into(), pool: pool.into(), context: context.into() }
    }

    /// The stream that an argument means.
    pub(crate) fn stream(&self, py: Python<'_>, argument: Option<&Bound<'_, PyAny>>) -> PyResult<Given> {
        let argument = match StreamArgument::read(argument)? {
            StreamArgument::Ours(stream) => return Ok(Given { stream, is_kept: true }),
            StreamArgument::Raw(0 | 1) => {
                let stream = match self.default.get() {
                    Some(stream) => stream.clone(),
                    None => {
                        let found = py.detach(|| StreamArgument::Raw(0).find(&self.context))?;
                        self.default.get_or_init(|| found).clone()
                    }
                };
                return Ok(Given { stream, is_kept: true });
            }
            other => other,
        };
        let stream = py.detach(|| argument.find(&self.context))?;
        Ok(Given { stream, is_kept: false })
    }

    /// A block that this thread has ready. It never waits.
    pub(crate) fn alloc_ready(&self, bytes: u64, stream: &millpond::Stream) -> Option<DevicePtr> {
        // SAFETY: pool and stream are there until this returns, and it is this thread's.
        unsafe { Shortcut::new(&self.pool, stream)?.alloc(bytes) }
    }

    /// Frees a block, if this thread keeps it ready for the next request. It never waits.
    ///
    /// # Safety
    /// As for [`millpond::Pool::free`].
    #[must_use]
    pub(crate) unsafe fn free_ready(&self, ptr: DevicePtr, stream: &millpond::Stream) -> bool {
        // SAFETY: as in `alloc_ready`.
        Shortcut::new(&self.pool, stream).is_some_and(|shortcut| unsafe { shortcut.free(ptr) })
    }
}
