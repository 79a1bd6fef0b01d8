//! The pools of one context: which exist, which is the default, which is current, which owns a pointer.

use std::sync::Weak;

use parking_lot::Mutex;

use super::{Pool, WeakPool};
use crate::Result;
use crate::device::DevicePtr;

/// See the [module](self). Holds the default and the current pool, and those that outlive their last handle
/// because blocks of theirs are live.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pools: Vec<WeakPool>,
    default: Option<Pool>,
    current: Option<Pool>,
}
