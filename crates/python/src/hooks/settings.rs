//! What PyTorch's settings (`PYTORCH_CUDA_ALLOC_CONF`) mean here. `python/millpond/_torch_settings.py` reads them.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

use super::blocks::book;
use super::captures;
use crate::devices;
use crate::failure::Result;
use crate::thread_tag;

/// The part of what a pool may hold that it keeps when the program synchronises, as bits; 0 for none.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// Limits what the pools of all GPUs may hold to a share of the GPU's memory, those that are made later too.
#[pyfunction]
pub(super) fn torch_set_fraction(py: Python<'_>, fraction: f64) -> PyResult<()> {
    devices::set_fraction_of_new(fraction);
    Ok(py.detach(|| -> Result<()> {
        for (ordinal, device) in devices::present() {
            device.set_fraction(fraction)?;
            book(ordinal).lock().fraction = Some(fraction);
        }
        Ok(())
    })?)
}

/// Has ``torch_synchronized`` give back what a pool holds above this part of its limit, between 0 and 1.
#[pyfunction]
pub(super) fn torch_set_kept(part: f64) {
    // Relaxed: a setting, read at the next synchronise.
    KEPT.store(part.to_bits(), Ordering::Relaxed);
}

/// PyTorch has waited for a GPU: the release thresholds take effect.
#[pyfunction]
pub(super) fn torch_synchronized(py: Python<'_>, gpu: usize) -> PyResult<()> {
    Ok(py.detach(|| -> Result<()> {
        // Nothing can be waited for while a graph is captured.
        if captures::is_any_open() {
            return Ok(());
        }
        let part = f64::from_bits(KEPT.load(Ordering::Relaxed));
        if let Some((_, device)) = devices::present().find(|(ordinal, _)| *ordinal == gpu) {
            if part > 0.0 {
                let kept = (device.limit().min(device.total()) as f64 * part) as u64;
                thread_tag::pools(device).iter().for_each(|pool| pool.set_release_threshold(kept));
            }
            device.context.synchronize()?;
        }
        Ok(())
    })?)
}
