//! `crates/capi`: libmillpond, the C interface. `include/millpond.h` is generated from this crate.
//!
//! It uses the public interface of `millpond` only, and adds no policy of its own.
//!
//! **Handles.** What C programs hold are not addresses: a handle is a slot and a generation (`handle.rs`), so null,
//! garbage, released handles and handles of another kind are told apart and answered with a status. `in_use.rs`
//! keeps an object alive while any thread is inside a call with it, and `gate.rs` what a callback is called with.
//!
//! **The floors**, from below: the kinds of handles (`kind.rs`) and statuses; who uses what (`holds.rs`, `in_use.rs`, `places.rs`);
//! failures; arguments and handles; contexts; pools and streams; and what is done with those. None uses one above it.
//!
//! **How one request passes through.** Each function is a closure given to `failure::boundary`, which catches
//! panics, turns an error into a [`status::Status`] and keeps its message for `millpond_last_error`. Inside, the
//! arguments are checked ([`arguments`]), the handles looked up, and the Rust interface called. Allocate and free
//! try a shorter way first ([`fast`]).
//!
//! **Safety of all functions.** What the header says at its top: pointers that are not null are valid for what
//! is read or written through them for the time of the call, texts end with a zero byte, and structs that carry
//! their size carry the size that they have. Handles may hold anything.
// Said once, above and at the top of the header, for all functions.
#![allow(clippy::missing_safety_doc)]

pub mod arguments;
pub mod block;
pub mod budget;
pub mod callback;
pub mod capture;
pub mod context;
pub mod copy;
pub mod event;
pub mod evict;
pub mod failure;
pub mod fast;
mod gate;
pub mod handle;
pub mod held;
pub mod holds;
pub mod in_use;
pub mod kind;
pub mod log;
pub mod managed;
pub mod memory;
#[cfg(all(test, loom))]
mod models;
pub mod options;
pub mod peers;
mod place;
mod places;
pub mod pool;
pub mod recording;
pub mod same;
pub mod sharing;
pub mod sleep;
pub mod stats;
pub mod status;
pub mod stream;
mod sync;
pub mod workspace;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("millpond's handles need 64-bit pointers");
