//! A GPU's memory, read by kernels.
//!
//! `kernels` has the GPU with its kernels, and times one. `reads` has strides and layouts, `latency` follows a chain,
//! `managed` reads managed memory and moves it.

mod kernels;
mod latency;
mod managed;
mod reads;

pub(crate) use self::kernels::Gpu;
pub(crate) use self::latency::measure as latency;
pub(crate) use self::managed::measure as managed;
pub(crate) use self::reads::measure as reads;
