//! The global allocator of CUDA programs: one line in the program puts a pool of [`millpond`] under all of its GPU memory.
//!
//! ```
//! use millpond_global as _;
//! ```
//!
//! What candle, mistral.rs, kornia, Burn or your own cudarc code then allocates comes from the pool, one for each GPU. The program starts
//! as before: no command, no environment. Without a driver, nothing happens.
//!
//! # How
//! The crate defines the driver's memory functions for the program, and the `dlsym` by which cudarc and the CUDA runtime look
//! them up. So write the line in the program itself, in `main.rs`, and not in a library. It is for Linux with glibc. A program that is
//! started by `millpond run` as well has one pool, which takes the command's options.
//!
//! # Options
//! The environment says what it does for `millpond run`: `MILLPOND_DECAY`, `MILLPOND_RECORD` and the others.
//! A program sets them by [`options`], at the beginning of `main`. What the environment says comes first.
//!
//! ```
//! use std::time::Duration;
//!
//! fn main() -> millpond::Result<()> {
//!     millpond_global::options().limit(20 << 30).decay(Duration::from_secs(5)).set()?;
//!     // … the program, unchanged …
//!     # if millpond_global::pool(0).is_err() { return Ok(()) }
//!     let pool = millpond_global::pool(0)?; // that of GPU 0
//!     println!("{}", pool.stats());
//!     Ok(())
//! }
//! ```

#![cfg_attr(not(all(target_os = "linux", target_env = "gnu")), allow(unused))]

mod options;
mod tag;

// The examples of the page are tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/frameworks.md")]
    mod frameworks {}
    #[doc = include_str!("../../../docs/run.md")]
    mod run {}
}

pub use options::{Options, options};
pub use tag::{Tag, tag};

use millpond::Pool;

/// The pool that serves the program's memory on a GPU, by its number in this process. It is built if the program has not used
/// that GPU yet. It has statistics, callbacks and the rest of its interface. From then on it stays when the program has dropped its
/// last context of cudarc.
///
/// The program's libraries use its memory without asking it. So that stays where it is: [sleep](Pool::sleep) and
/// [evictions](Pool::evict) of the pool and its tags are refused, unless the program has asked for a [`movable_pool`].
///
/// # Errors
/// [`Error::Device`](millpond::Error::Device) where there is no driver or no such GPU, and where the environment leaves memory to the
/// driver (`MILLPOND_DISABLE=1`).
pub fn pool(gpu: usize) -> millpond::Result<Pool> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    return millpond_entry_points::linked::pool(gpu);
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    Err(millpond::device::DeviceError::Unavailable(format!(
        "GPU {gpu} has no pool: it takes Linux with glibc"
    ))
    .into())
}

/// As [`pool`], whose memory [sleep](Pool::sleep) and [evictions](Pool::evict) may move from then on, also that of its tags: until the
/// program resets the GPU.
///
/// ```
/// # if millpond_global::pool(0).is_err() { return Ok(()) }
/// // SAFETY: the cache is not used between its eviction and its restore.
/// let cache = unsafe { millpond_global::movable_pool(0) }?.tagged("kv-cache")?;
/// # Ok::<(), millpond::Error>(())
/// ```
///
/// # Errors
/// As for [`pool`].
///
/// # Safety
/// Nobody uses memory of a pool that sleeps, or of a tag that is evicted: no slice, tensor or kernel of the program and its libraries.
pub unsafe fn movable_pool(gpu: usize) -> millpond::Result<Pool> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the caller's promise.
    return unsafe { millpond_entry_points::linked::movable_pool(gpu) };
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    pool(gpu)
}

/// Before the program begins.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
extern "C" fn begin() {
    // No panic leaves it. Without it, the program's memory is the driver's.
    _ = std::panic::catch_unwind(millpond_entry_points::linked::begin);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
