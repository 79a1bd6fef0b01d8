//! The pools of one context: which exist, which outlive their handles, which owns a pointer.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use crate::device::DevicePtr;
use crate::extents::Ranges;
use crate::process::OfProcess;

/// What the registry asks of a pool.
pub(crate) trait Registered {
    /// Unlike any other pool's.
    fn number(&self) -> u64;

    /// Whether nothing of the pool has to outlive its last handle.
    fn holds_nothing(&self) -> bool;
}

/// See the [module](self). Holds the pools that outlive their last handle because blocks of theirs are live or work on
/// them is pending.
#[derive(Debug)]
pub(crate) struct Registry<P> {
    state: OfProcess<Mutex<RegistryState<P>>>,
    ranges: Arc<Ranges>,
}

#[derive(Debug)]
struct RegistryState<P> {
    /// By number, which is in the order in which they were built.
    pools: BTreeMap<u64, Weak<P>>,
    outliving: Vec<Arc<P>>,
}

impl<P> Default for Registry<P> {
    fn default() -> Self {
        let state = RegistryState { pools: BTreeMap::new(), outliving: Vec::new() };
        Self { state: OfProcess::new(Mutex::new(state)), ranges: Arc::default() }
    }
}

impl<P: Registered> Registry<P> {
    pub(crate) fn enter(&self, pool: &Arc<P>) {
        let mut state = self.state.lock();
        state.pools.insert(pool.number(), Arc::downgrade(pool));
        // Reserved while the pool can still be refused: closing it takes no memory.
        let RegistryState { pools, outliving, .. } = &mut *state;
        outliving.reserve(pools.len() - outliving.len().min(pools.len()));
    }

    /// The pool is gone.
    pub(crate) fn leave(&self, number: u64) {
        self.state.lock().pools.remove(&number);
    }

    /// Which pool owns which addresses.
    pub(crate) fn ranges(&self) -> &Arc<Ranges> {
        &self.ranges
    }

    /// Keeps a pool, also without a handle, as long as it [holds](Registered::holds_nothing) anything.
    pub(crate) fn outlive(&self, pool: Arc<P>) {
        let outliving = &mut self.state.lock().outliving;
        if !outliving.iter().any(|known| Arc::ptr_eq(known, &pool)) {
            outliving.push(pool);
        }
    }

    /// Lets go of the pools that hold nothing any more.
    pub(crate) fn bury(&self) {
        let next = || {
            let outliving = &mut self.state.lock().outliving;
            let at = outliving.iter().position(|pool| pool.holds_nothing())?;
            Some(outliving.remove(at))
        };
        // Their last handles go here, without the lock held.
        while let Some(done) = next() {
            drop(done);
        }
    }

    /// The pool with this number, or the first that was built later.
    pub(crate) fn first_from(&self, number: u64) -> Option<Arc<P>> {
        self.state.lock().pools.range(number..).find_map(|(_, pool)| pool.upgrade())
    }

    /// The pool in whose address space the pointer lies. Takes no pool's lock.
    pub(crate) fn owner_of(&self, ptr: DevicePtr) -> Option<Arc<P>> {
        let owner = self.ranges.owner_of(ptr)?;
        self.state.lock().pools.get(&owner.pool).and_then(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use crate::device::sim::{SimDevice, SimOptions};
    use crate::fixtures::Freeing;
    use crate::{Context, Error, Pool};

    #[test]
    fn a_free_through_the_context_takes_no_other_pools_lock() {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let stream = context.create_stream().unwrap();
        let pools: Vec<_> = (0..10).map(|_| Pool::builder(&context).build().unwrap()).collect();
        let blocks: Vec<_> = pools.iter().map(|pool| pool.alloc(3 << 20, &stream).unwrap()).collect();
        let (last, others) = pools.split_last().unwrap();
        let locks: Vec<_> = others.iter().map(|pool| pool.inner().state.lock()).collect();
        let (done, is_done) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let freed = context.free_block(blocks[9], &stream);
                let unknown = context.free_block(crate::device::DevicePtr::new(64), &stream);
                done.send((freed, unknown)).unwrap();
            });
            let freed = is_done.recv_timeout(Duration::from_secs(20));
            drop(locks);
            let (freed, unknown) = freed.expect("it waits for another pool's lock");
            assert_eq!(freed, Ok(()));
            assert!(matches!(unknown, Err(Error::ForeignPointer { .. })));
        });
        assert_eq!(last.stats().blocks.current, 0);
        for (pool, block) in others.iter().zip(blocks) {
            assert!(matches!(last.free_block(block, &stream), Err(Error::WrongPool { .. })));
            context.free_block(block, &stream).unwrap();
            assert_eq!(pool.stats().blocks.current, 0);
        }
    }

    #[test]
    fn pools_that_are_gone_are_forgotten() {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let kept = Pool::builder(&context).build().unwrap();
        (0..10).for_each(|_| drop(Pool::builder(&context).build().unwrap()));
        let registry = kept.inner().registry.upgrade().unwrap();
        assert_eq!(registry.state.lock().pools.len(), 1);
    }

    #[test]
    fn addresses_that_were_given_back_are_nobodys() {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let stream = context.create_stream().unwrap();
        let gone = {
            let pool = Pool::builder(&context).build().unwrap();
            let block = pool.alloc(3 << 20, &stream).unwrap();
            pool.free_block(block, &stream).unwrap();
            assert!(matches!(context.free_block(block, &stream), Err(Error::DoubleFree { .. })));
            block
        };
        assert!(matches!(context.free_block(gone, &stream), Err(Error::ForeignPointer { .. })));
        let next = Pool::builder(&context).build().unwrap();
        assert_eq!(next.alloc(3 << 20, &stream), Ok(gone), "the same addresses");
        context.free_block(gone, &stream).unwrap();
        let only = context.registry().first_from(0).unwrap();
        assert_eq!((only.number, crate::core::others(&only).count()), (next.inner().number, 0));
    }
}
