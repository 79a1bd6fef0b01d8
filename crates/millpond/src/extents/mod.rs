//! `extents/`: addresses: where a block lies, which page backs which address, and what is free.
//!
//! Uses `policy/`, `physical/`, `order/` and `device/`. One [`Arena`] belongs to one pool and is used under its lock.
//!
//! **Base pages and extents.** Address space comes in *regions*, cut into *base pages*, as long as the smallest page.
//! Every byte of a region belongs to one *extent*. It is allocated (a *block*, live or in a magazine of `cache/`), free
//! (backed by pages), unmapped, or the old mapping of a page that moved. That is *dormant*, if the page may come back, or
//! *pending unmap*. A dormant one is *idle* once the work on it is complete: only then can it be removed.
//! Extents are cut at the pool's minimum alignment and linked in address order. Free ones carry a fence. What lies between two
//! blocks is a *hole*, whatever backs it.
//!
//! **Zones.** Small blocks live in regions of their own, over the smallest pages. So a long-lived small block cannot pin
//! a large page. Physical pages pass freely between the zones.
//!
//! **The objects**, from the ground up. A file uses only files that come before it:
//! - `map/`: all extents in its `extent_map`, the `index` of holes, and the `regions` of addresses, with the pages that back
//!   them. Its `page_map` leads from an address to its block, of which `block_descriptor` says what is known. It knows nothing
//!   of time.
//! - `reuse_rules`: which free memory a stream may use, and when. `old_mappings`: which page backed which address before.
//! - `arena`: holds all of these and the pages. It says what there is, and moves pages. What follows works on an arena.
//! - `coalescing` joins what is free, and `search` finds it. `segments`: memory that never moves.
//! - `plan`: what a miss will do. `planning` makes it, with `donors` and `placement`, and only reads. `commit` carries it out.
//! - `trim`: what gives pages back. `giving`: pages for another pool. `check`: what always holds.
//! - `allocation`: one allocation and one free.
//!
//! **How one allocation passes through** ([`Arena::alloc`]):
//! 1. A free extent that the stream may use, in the hole that fits best (`search`), or in one that fits a little worse and lacks
//!    no page. Where a better one might be ready by now, the device is asked (*opportunistic*).
//! 2. The same by making the stream wait (*internal dependencies*).
//! 3. The same after joining neighbours that were kept apart because different streams freed them.
//! 4. A *miss* is planned first (`planning`). The place is the hole that fits best, unless it lacks many more pages than another
//!    (`placement`). Pages come back to their old mappings there. Then come parked pages, pages that free extents elsewhere
//!    give (`donors`), and only then new ones.
//! 5. The plan is carried out (`commit`). The host's memory for it is ensured. New pages are created. Then come
//!    the mappings; if one fails, those before it are removed as old ones are, and new pages are parked. Then it is noted what lies where, which cannot
//!    fail. Where no region has room, one is reserved, and the miss is planned anew. So it is with shorter pages where memory is
//!    too short for long ones.
//!
//! Blocks lie as if all addresses were backed: pages follow. So holes stay long, and there are few. What is free on a page that a live block shares is *pinned*: it can be neither moved nor given back.
//! Short pages pin less and take more calls. Their length depends on the time there is (`policy/ledger.rs`).
//!
//! **How one free passes through** ([`Arena::free`]): the block, found through the `page_map`, becomes
//! free behind the fence given, and coalesces with its neighbours.
//!
//! Best fit with coalescing is Knuth's (TAOCP 2.5), with address order as the tie-break. Boundary tags are kept out of
//! band, since the memory is the device's.

mod allocation;
mod arena;
mod check;
mod coalescing;
mod commit;
mod donors;
mod giving;
mod map;
#[cfg(all(test, loom))]
mod models;
mod old_mappings;
mod placement;
mod plan;
#[cfg(test)]
mod plan_tests;
mod planning;
mod reuse_rules;
mod search;
mod segments;
#[cfg(test)]
mod tests;
mod trim;

pub(crate) use allocation::Allocation;
#[cfg(test)]
pub(crate) use arena::LOOKS;
pub(crate) use arena::{Arena, PageAtHome, Pointer};
pub(crate) use check::check;
pub(crate) use giving::{Receiver, give_free};
pub(crate) use map::{
    BlockDescriptor, DescriptorRef, ExtentId, Layout, MOST_UNITS, Owner, PageMap, Place, Plain, Ranges,
};
pub(crate) use search::Effort;
pub(crate) use segments::{Gone, Leaving, settle, take_leaving};
pub(crate) use trim::{fence_of_all_free, forget_gone, reap, tear_down, trim};
