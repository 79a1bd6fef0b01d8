//! `physical/`: physical memory: pages are created, mapped, parked and released here, and nowhere else.
//!
//! Uses `order/` and `device/`. It knows nothing of blocks or of who uses an address.
//!
//! A page is one driver handle (`cuMemCreate`), a whole number of *base pages* long, and is mapped whole. A *segment*, which
//! the driver allocated whole, is a page that never moves. Others may be mapped at several addresses, of which the arena
//! uses one. When the arena remaps a page, the new mapping is made at once. The old one goes later, or is used again. A page
//! that is mapped nowhere is *parked*: held, counted as reserved, and the first to be used again.
//!
//! **How one request passes through.** The arena needs a run of base pages backed. It takes a parked page
//! ([`Pages::unpark`]) or creates one ([`Pages::create`], which asks [`Limits`] first). Then it maps the page
//! ([`Pages::map`]). When memory is given back, [`Pages::lay_aside`], [`Pages::unmap`] and [`Pages::release`] undo this. Each
//! step either happens whole or leaves everything as it was, so a failure anywhere loses no page.

mod handover;
pub(crate) mod mapped;
mod page;
mod pages;
mod parked;
pub(crate) mod passing;
mod sleeping;
pub(crate) mod staging;
mod watch;

pub(crate) use handover::Handover;
pub(crate) use page::{Home, MapFailure, PageId, Refusal};
pub(crate) use pages::{IdleMapping, Pages};
pub(crate) use parked::{ParkedCursor, release_parked};
pub(crate) use passing::Passing;
pub(crate) use sleeping::OtherMappings;
pub use watch::{Mapping, watch_mappings};
