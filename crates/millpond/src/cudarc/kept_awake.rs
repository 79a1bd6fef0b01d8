//! Memory of a pool that safe code of others uses without a question to the pool.

use std::ops::Deref;
use std::sync::Arc;

use crate::core::Core;
use crate::error::Result;
use crate::pool::PoolParts;

/// A pool that is not put to sleep as long as this lives.
pub(super) struct KeptAwake {
    core: Arc<PoolParts>,
    _resident: Arc<()>,
}

impl KeptAwake {
    pub(super) fn new(core: &Arc<PoolParts>) -> Result<Self> {
        Ok(Self { _resident: core.keep_in_place()?, core: core.clone() })
    }

    pub(super) fn core(&self) -> &Arc<PoolParts> {
        &self.core
    }
}

impl Deref for KeptAwake {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::fixtures::{Bench, Freeing};
    use crate::sleep::Keep;

    #[test]
    fn a_pool_is_not_put_to_sleep_while_it_is_kept_awake() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let block = pool.alloc(1 << 20, &stream).unwrap();
        let held = pool.reserved().current;
        let kept = [KeptAwake::new(pool.inner()).unwrap(), KeptAwake::new(pool.inner()).unwrap()];
        for kept in kept {
            let refused = pool.sleep(Keep::Nothing).unwrap_err();
            assert!(matches!(refused, Error::CannotSleep { why, .. } if why.contains("drop them first")));
            assert_eq!((pool.is_asleep(), pool.reserved().current), (false, held));
            assert!(pool.inner().stay_awake().is_ok(), "its memory can be used");
            drop(kept);
        }
        assert_eq!(pool.sleep(Keep::Nothing), Ok(held));
        assert!(matches!(KeptAwake::new(pool.inner()), Err(Error::Asleep { .. })));
        pool.wake().unwrap();
        drop(KeptAwake::new(pool.inner()).unwrap());
        pool.free_block(block, &stream).unwrap();
    }
}
