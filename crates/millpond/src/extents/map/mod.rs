//! `extents/map/`: what lies where: all extents, the index of holes, the regions of addresses with the pages that back them, and
//! the way from an address to its block.
//!
//! Knows nothing of streams and of time. Uses no file of the folder above it.
//!
//! A place in it is found so: the `index` names the hole that fits best, by its first extent. The `extent_map` has that extent and
//! its neighbours, in `sparse` tables; an `extent_list` links those that are free. `regions` say which page backs an address.
//! What is allocated there gets a `block_descriptor`, which the `page_map` finds by its address.

pub(in crate::extents) mod atomics;
pub(in crate::extents) mod block_descriptor;
pub(in crate::extents) mod extent;
pub(in crate::extents) mod extent_list;
pub(in crate::extents) mod extent_map;
pub(in crate::extents) mod index;
pub(in crate::extents) mod layout;
pub(in crate::extents) mod page_map;
pub(in crate::extents) mod ranges;
pub(in crate::extents) mod regions;
mod sparse;

pub(crate) use block_descriptor::{BlockDescriptor, MOST_UNITS, Place, Plain};
pub(crate) use extent::ExtentId;
pub(crate) use layout::Layout;
pub(crate) use page_map::{DescriptorRef, PageMap};
pub(crate) use ranges::{Owner, Ranges};
