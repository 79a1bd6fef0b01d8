//! `sleep/`: sleep and wake: a pool gives its memory to others, and gets it back at the same addresses.
//!
//! **How a pool falls asleep.** Nobody may give work on its memory to the device any more (the core's gate), and the host waits
//! for the device. Under the pool's lock, the caches are emptied, and what is free goes back. Then page by page: the live
//! bytes are copied to pinned memory (`copies`), and the page goes back once its copies are complete. The copies of later
//! pages run meanwhile. Extents and the places of pages stay as they are.
//!
//! **How it wakes.** Pages that hold no live byte any more are forgotten. Each of the others gets memory, is mapped where it
//! was, and its bytes are copied back, while the next ones are mapped.
//!
//! **When a call fails.** A page whose bytes are *kept* can go and come again at any time, and no other page can go. So
//! wherever a sleep fails, it wakes what has gone. Wherever a wake fails, what has come goes back. If that fails too, the
//! pool sleeps, some of its pages do not, and each call can be made again.

mod asleep;
pub(crate) mod copies;
mod pages;
mod sleeper;

pub use asleep::Keep;
pub(crate) use asleep::{Asleep, AsleepPage};
pub(crate) use sleeper::Sleep;
