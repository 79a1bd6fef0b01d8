//! What the pool calls in place of `record/` where the feature `record` is off: nothing is recorded.

use std::sync::Arc;

use crate::Result;
use crate::counters::Counters;
use crate::device::{Device, DevicePtr};
use crate::order::Stream;
use crate::out_of_memory::OutOfMemory;

pub(crate) struct Recording;

impl Recording {
    pub(crate) fn new(_name: &str, _device: &dyn Device, _counters: Arc<Counters>) -> Self {
        // The same variable as that of `record::Options`.
        if std::env::var_os("MILLPOND_RECORD").is_some_and(|path| !path.is_empty()) {
            tracing::warn!(
                "MILLPOND_RECORD is not followed: millpond was built without its feature `record`"
            );
        }
        Self
    }

    #[inline]
    pub(crate) const fn is_on(&self) -> bool {
        false
    }

    #[inline]
    pub(crate) const fn asks_free_of(&self, _ptr: DevicePtr) -> bool {
        false
    }

    pub(crate) fn alloc(&self, _ptr: DevicePtr, _bytes: u64, _stream: &Stream) {}

    pub(crate) fn free(&self, _ptr: DevicePtr, _bytes: u64, _stream: &Stream, _before: Moment) {}

    pub(crate) fn record_use(&self, _ptr: DevicePtr, _stream: &Stream) {}

    pub(crate) fn trim(&self, _keep: u64, _released: u64) {}

    pub(crate) fn out_of_memory(&self, _bytes: u64, _device_free: u64, _stream: &Stream) {}

    pub(crate) fn account(&self, _report: &OutOfMemory, _live: impl FnOnce() -> Vec<(DevicePtr, u64)>) {}

    pub(crate) fn end(&self) {}

    pub(crate) fn stop(&self) -> Result<()> {
        Ok(())
    }
}

pub(crate) struct Moment;

impl Moment {
    #[inline]
    pub(crate) fn now() -> Self {
        Self
    }
}
