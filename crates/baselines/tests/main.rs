//! Tests of the other allocators.

mod checked;
#[path = "pytorch/main.rs"]
mod pytorch;
mod shared;
