//! A limit that several pools share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use crate::{Error, Result};

/// A limit on the physical bytes that all pools with this budget hold together. Clones are the same budget.
///
/// ```
/// use millpond::{Budget, Context, Pool, device::sim::{SimDevice, SimOptions}};
/// let device = Context::new(SimDevice::new(SimOptions::default())?);
/// let budget = Budget::bytes(64 << 20);
/// let activations = Pool::builder(&device).name("activations").budget(&budget).build()?;
/// let weights = Pool::builder(&device).name("weights").budget(&budget).build()?;
/// let stream = device.create_stream()?;
/// let kept = activations.alloc(40 << 20, &stream)?;
/// assert!(weights.alloc(40 << 20, &stream).is_err());
/// # unsafe { activations.free(kept, &stream) }?;
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Clone)]
pub struct Budget {
    inner: Arc<Inner>,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit()).field("held", &self.held()).finish()
    }
}

struct Inner {
    limit: AtomicU64,
    held: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn bytes(limit: u64) -> Self {
        Self { inner: Arc::new(Inner { limit: AtomicU64::new(limit), held: AtomicU64::new(0) }) }
    }

    /// A budget of a `fraction` (0 to 1) of the device's memory.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a fraction outside 0 to 1.
    pub fn fraction(device: &dyn Device, fraction: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::BadOption {
                option: "budget",
                why: format!("the fraction is {fraction}: use one between 0 and 1"),
            });
        }
        Ok(Self::bytes((device.properties().total_memory as f64 * fraction) as u64))
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        // Relaxed: a setting; nothing is concluded from when it is seen.
        self.inner.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit, for what the pools take from now on. What they hold beyond it stays theirs until they
    /// give it back.
    pub fn set_limit(&self, bytes: u64) {
        // Relaxed: as for `limit`.
        self.inner.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that the pools hold now.
    pub fn held(&self) -> u64 {
        // Relaxed: a figure to read; nothing is concluded from it.
        self.inner.held.load(Ordering::Relaxed)
    }

    /// Whether the two are the same budget.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Takes `bytes` of what is left, or nothing.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let take = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit);
        // Relaxed: the counter guards nothing but itself; read-modify-writes never lose an update.
        self.inner.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    pub(super) fn give_back(&self, bytes: u64) {
        // Relaxed: as for `take`.
        self.inner.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}
