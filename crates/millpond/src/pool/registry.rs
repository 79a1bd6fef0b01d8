//! The pools of one context: which exist, which is the default, which is current, which owns a pointer.

use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use super::Pool;
use super::inner::PoolInner;
use crate::Result;
use crate::device::DevicePtr;
use crate::process::OfProcess;

/// See the [module](self). Holds the default and the current pool, and the pools that outlive their last
/// handle because blocks of theirs are live or work on them is pending.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: OfProcess<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    pools: Vec<Weak<PoolInner>>,
    outliving: Vec<Arc<PoolInner>>,
    default: Option<Pool>,
    current: Option<Pool>,
}

impl Registry {
    pub(super) fn enter(&self, pool: &Arc<PoolInner>) {
        let pools = &mut self.state.lock().pools;
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    /// Keeps a pool whose last handle is gone while memory of it is in use.
    pub(super) fn outlive(&self, pool: Arc<PoolInner>) {
        let outliving = &mut self.state.lock().outliving;
        if !outliving.iter().any(|known| Arc::ptr_eq(known, &pool)) {
            outliving.push(pool);
        }
    }

    /// Lets go of the pools that hold nothing any more.
    pub(super) fn bury(&self) {
        let (done, outliving) = {
            let mut state = self.state.lock();
            let all = std::mem::take(&mut state.outliving);
            all.into_iter().partition::<Vec<_>, _>(|pool| pool.holds_nothing())
        };
        let mut state = self.state.lock();
        state.outliving.extend(outliving);
        drop(state);
        // Their last handles go here, without the lock held.
        drop(done);
    }

    /// The default pool, built now if it is not there yet.
    pub(super) fn default_pool(&self, build: impl FnOnce() -> Result<Pool>) -> Result<Pool> {
        if let Some(pool) = &self.state.lock().default {
            return Ok(pool.clone());
        }
        // Built without the lock: building enters the pool here. Of two that race, the first stays.
        let built = build()?;
        Ok(self.state.lock().default.get_or_insert(built).clone())
    }

    pub(super) fn current_pool(&self) -> Option<Pool> {
        self.state.lock().current.clone()
    }

    pub(super) fn set_current_pool(&self, pool: Option<Pool>) -> Option<Pool> {
        std::mem::replace(&mut self.state.lock().current, pool)
    }

    /// Every pool there is.
    pub(super) fn pools(&self) -> Vec<Arc<PoolInner>> {
        self.state.lock().pools.iter().filter_map(Weak::upgrade).collect()
    }

    /// The pool in whose address space the pointer lies.
    pub(super) fn owner_of(&self, ptr: DevicePtr) -> Option<Arc<PoolInner>> {
        self.pools().into_iter().find(|pool| pool.knows(ptr))
    }
}
