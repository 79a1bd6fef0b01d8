//! `evict/`: a tag's memory serves its pool for a while, in stream order, and comes back to the same addresses.
//!
//! Sleep gives memory away while nobody works. Evict and restore do it behind and before the work that streams are given, and
//! the host does not wait. A tag is a pool of its own ([`Pool::tagged`](crate::Pool::tagged)), so no page has memory of others.
//!
//! **How a tag is evicted** (`evicting`). Its gate is closed. A stream for copies is ordered behind all work given so far. The
//! live bytes are copied to pinned memory there, batch by batch. Each page then passes to the pool that the tag is a part of
//! (`physical/passing.rs`), behind the copy of its batch. There it is parked, and *arrives*: a plan may map it elsewhere at once,
//! and has its stream wait for the copy. The tag's mapping goes once the copy is complete, at a later miss, trim or
//! synchronise. Extents and the places of pages stay as they are, as in a tag that sleeps.
//!
//! **How it is restored** (`restoring`). Pages without a live byte are forgotten. Each of the others gets memory: its own page,
//! if nobody has mapped that since, which is then intact and needs no copy; else one of the same length that the pool has
//! parked or free; else a new one, for which room is made as for any. A free page comes at once, though work may still use it where it
//! is (`lacking`): the copy waits for that work, and the pool removes its mapping later. Each page is mapped where it was, batch by
//! batch. The bytes are copied back on a second stream for copies, and the caller's stream waits for that. The host waits
//! only where the pool uses a page whose copy is under way: two pages cannot be mapped at one address.
//!
//! **When a call fails.** An eviction first gives all copies to the device, and then lets pages pass, which cannot fail. So a
//! failure leaves all as it was. A restore that fails has its pages pass again: the pinned memory has every byte until the end.

mod evicted;
mod evicting;
mod evictor;
mod lacking;
mod restoring;

pub(crate) use evictor::Evict;
