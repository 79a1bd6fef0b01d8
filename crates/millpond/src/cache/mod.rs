//! `cache/`: magazines of ready blocks, per thread, pool and stream: the fast path of an allocation.
//!
//! Uses `extents/` (the tables that lead from an address to its block) and `order/` (a stream's tick).
//!
//! **Who has what.** Each thread that uses a pool has a [`ThreadCache`](thread::ThreadCache) in it, found through the
//! thread's index. It has a *stream cache* per stream, and that has a *magazine* per size class: a stack of blocks that
//! this thread freed on this stream. So work given to the stream later may use them at once. Sizes below 1 MiB are
//! rounded to eight classes a doubling (at most 1/8 is wasted, 1/16 on average). Longer blocks keep their exact size,
//! and the thread keeps one of them at most ([`Caches::open_to_free`]). In throughput mode, those of up to 512 MiB are rounded and
//! cached, too. What a magazine has no room for goes to the pool's [depot], where other threads find it. What that does not take goes
//! to the arena. All caches together are a pool's [`Caches`]: `caches.rs` has what needs no lock, `under_lock.rs` what holds the
//! pool's.
//!
//! **How one request passes through.** [`Caches::alloc`] and [`Caches::free`] touch only what belongs to the thread,
//! and the block's descriptor. They take no lock, no atomic read-modify-write and no device call. Where they cannot,
//! the thread exchanges half a magazine with the depot, which has locks of its own ([`Caches::alloc_searching`],
//! [`Caches::free_without_entry`]). What that cannot serve takes the pool's lock. There
//! the thread's cache is made and opened ([`Caches::open`]), and the same is tried again.
//!
//! **Taking back.** Before the pool remaps, trims or reports that memory ran out, it takes back what every thread caches,
//! idle ones included ([`Caches::revoke`]). It does so before it grows, too, unless it is in throughput mode
//! (`policy/ledger.rs`). The cache's *asymmetric lock* makes that safe: see `asymmetric_lock`. Whoever revokes holds
//! the pool's lock. A thread whose cache is closed takes the slow path, and so waits for the pool's lock. A thread that
//! holds that may use its own cache as it is.
//!
//! **Counting.** Each thread counts what it allocates and frees ([`Tally`](tally::Tally)); the pool's figures are sums. Their
//! high-water marks are in the [totals].
//!
//! Magazines and depot are Bonwick's (*Magazines and Vmem*, USENIX 2001). With asymmetric locks (Dice, Huang, Yang
//! 2001), the rare side pays for both, by a barrier in all threads at once.

mod asymmetric_lock;
mod atomics;
mod caches;
mod depot;
mod locked;
mod magazine;
#[cfg(all(test, loom))]
mod models;
mod shortcut;
mod sizes;
mod stream_cache;
mod sync;
mod table;
#[cfg(all(test, loom))]
mod table_models;
mod tally;
mod thread;
mod thread_index;
mod threads;
mod totals;
#[cfg(all(test, loom))]
mod totals_models;
mod under_lock;

pub(crate) use caches::Caches;
pub(crate) use locked::Locked;
pub use shortcut::Shortcut;
pub(crate) use sizes::Sizes;
pub use thread_index::on_thread_end;
