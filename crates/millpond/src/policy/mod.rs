//! `policy/`: what the pool decides, apart from the mechanisms that do it. Uses nothing.
//!
//! So far only the switches for ablation are here. The decisions themselves still stand beside their mechanisms.

mod ablation;

pub(crate) use ablation::{Mechanism, without};
