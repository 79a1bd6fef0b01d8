//! `nvtx/`: tells tools that watch this process what pools do: profilers, and compute-sanitizer.
//!
//! Uses `lock` and `process`. NVTX is how programs speak to NVIDIA's tools. A tool puts the path of a library into the
//! environment of the program that it starts. Without one, nothing is loaded, and each call here is a load and a branch.
//! `MILLPOND_NVTX=off` has the same effect.
//!
//! | file | concern |
//! | --- | --- |
//! | `injection` | loading the tool's library, and letting it fill in the functions to call |
//! | `events` | ranges of a thread, and marks: what a profiler shows |
//! | `blocks` | which bytes of the device are whose: what compute-sanitizer checks each access of a kernel by |
//!
//! **Who calls it.** `device/cuda` tells of its segments. `record/` tells of tags, and of each pool's blocks and events.
//!
//! **Why not a crate.** `nvtx-sys` 2.0.0, NVIDIA's own, compiles C and needs libclang to build. The few functions that we call
//! are those of its headers (`nvToolsExt.h` of version 3, `nvToolsExtMem.h` of compatibility 1.2).

#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "no other device has segments that a tool checks")
)]
mod blocks;
mod events;
mod injection;

pub(crate) use blocks::{Blocks, Until, blocks};
pub(crate) use events::{Mark, Range, marks, range};
