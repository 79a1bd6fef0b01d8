//! What all that has a pool shares: its core, and what stands beside it.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

use super::Handle;
use crate::core::{Core, HasCore};
use crate::decay::Decay;
use crate::evict::Evict;
use crate::guard::Guarding;
use crate::live::LiveSocket;
use crate::peers::PeerCopies;
use crate::sleep::Sleep;

/// See the [module](self). Each feature uses the core, and has its own state here. The core and the other features know none of
/// them.
pub(crate) struct PoolParts {
    /// First: what stands beside it is there until its end.
    pub(super) core: Core,
    pub(super) sleep: Sleep,
    pub(super) evict: Evict,
    pub(crate) peer_copies: PeerCopies,
    pub(crate) decay: Arc<Decay>,
    pub(super) guarding: Option<Arc<Guarding>>,
    /// Where `millpond top` asks, if the pool is shown there.
    pub(super) socket: Option<Arc<LiveSocket>>,
    /// How a block finds the program's pool.
    pub(super) first_handle: OnceLock<Weak<Handle>>,
}

impl PoolParts {
    /// Nobody uses the pool now, and it holds nothing: so it ends in the thread that drops it.
    pub(super) fn leave(&self) {
        if let Some(socket) = &self.socket {
            socket.hide(self);
        }
        self.decay.end(self);
    }
}

impl Deref for PoolParts {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl HasCore for PoolParts {
    fn core(&self) -> &Core {
        &self.core
    }
}

impl fmt::Debug for PoolParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}
