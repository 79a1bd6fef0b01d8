//! Who is told where pages are mapped: libraries that register memory with network cards or with other GPUs.

use std::sync::OnceLock;

use crate::device::{Device, DevicePtr};

/// A page that is mapped, or about to be unmapped.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use millpond::bindings::{Mapping, watch_mappings};
///
/// static MAPPED: AtomicU64 = AtomicU64::new(0);
///
/// fn tell(Mapping { bytes, is_mapped, .. }: Mapping<'_>) {
///     MAPPED.fetch_add(if is_mapped { bytes } else { bytes.wrapping_neg() }, Ordering::Relaxed);
/// }
///
/// assert!(watch_mappings(tell));
/// let device = millpond::Context::host()?;
/// let pool = millpond::Pool::builder(&device).build()?;
/// let stream = device.create_stream()?;
/// let buffer = millpond::Buffer::<u8>::new(&pool, 5 << 20, &stream)?;
/// assert_eq!(MAPPED.load(Ordering::Relaxed), pool.stats().reserved.current);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Mapping<'a> {
    /// Whose memory it is.
    pub device: &'a dyn Device,
    /// The first address.
    pub at: DevicePtr,
    /// The page's bytes.
    pub bytes: u64,
    /// Whether it is mapped now, and can be used. Else nothing uses it here any more: it is unmapped next, or its page may come
    /// back, which is told of then.
    pub is_mapped: bool,
}

/// Called with the lock of a pool held.
type Watcher = fn(Mapping<'_>);

static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Has `tell` called for each page of each pool that is mapped or unmapped from now on. It must not call a pool, nor wait for
/// who may, nor panic. An unmapping may also be told of a page whose mapping failed. There can be one; `false` where there is another.
pub fn watch_mappings(tell: fn(Mapping<'_>)) -> bool {
    WATCHER.set(tell).is_ok()
}

/// Tells of a page.
pub(super) fn tell(mapping: Mapping<'_>) {
    if let Some(tell) = WATCHER.get() {
        tell(mapping);
    }
}
