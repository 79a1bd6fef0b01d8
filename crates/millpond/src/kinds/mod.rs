//! `kinds/`: what a pool of another kind of memory can do besides allocate. The core knows each kind as a device.
//!
//! Uses `core/`.

pub(crate) mod managed;
