//! `core/`: one allocation as one ladder, one free, making room, limits, and giving back. It owns the one lock of a pool.
//!
//! Uses `cache/`, `extents/`, `record/` and what is below them. It names no feature: what stands beside it (`capture`, `sleep/`,
//! `sharing/`, `peers`, `managed`) uses it, and leaves here a hold, a route, a closed gate, or a restore's copies. Their states are
//! `pool/`'s.
//!
//! **The files**, from the ground up. Each uses only files that come before it:
//! - Objects of the memory: `gate` (who may give work on it to the device), `last_restore` (what that work comes behind), `holds`
//!   (what keeps a block where it is).
//! - Objects of requests: `arenas` (where blocks lie), `routes` (which requests go to an arena that keeps its pages), `callbacks`,
//!   `registry` (the pools of a context).
//! - `pool_core`: [`Core`], the state of a pool, with its checks, its figures and its recount.
//! - `slow_path_time`, `limits`: what a pool knows of its time and its limits.
//! - `giving_back`, then `freeing`: how memory goes back to the device, and blocks to the pool.
//! - `making_room`: the steps of a pool that is short of memory.
//! - `recording`: a pool that is recorded has no fast path.
//! - `allocating`: the ladder, from the magazine to the error, also for memory that is taken in advance.

pub(crate) mod allocating;
mod arenas;
mod callbacks;
pub(crate) mod freeing;
mod gate;
pub(crate) mod giving_back;
mod holds;
mod last_restore;
mod limits;
pub(crate) mod making_room;
mod pool_core;
pub(crate) mod recording;
mod registry;
mod routes;
mod slow_path_time;
#[cfg(test)]
mod tests;
mod wrapping;

pub(crate) use arenas::{ArenaId, Arenas};
pub(crate) use callbacks::Callbacks;
pub use callbacks::{ObserverId, ReclaimId};
pub(crate) use gate::Gate;
pub(crate) use holds::{Hold, Holds};
pub(crate) use last_restore::LastRestore;
pub(crate) use pool_core::{Core, HasCore, PoolState};
pub(crate) use registry::Registry;
pub(crate) use routes::{Filter, Route, Routes};
pub(crate) use wrapping::Wrapping;
