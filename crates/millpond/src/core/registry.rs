//! The pools of one context: which exist, which outlive their handles, which owns a pointer.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::device::DevicePtr;
use crate::extents::Ranges;
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Registry<P: ?Sized> {
    /// By number, which is in the order in which they were built.
    pools: OfProcess<Mutex<BTreeMap<u64, Known<P>>>>,
    /// Which pool owns which addresses.
    pub(crate) ranges: Arc<Ranges>,
}

#[derive(Debug)]
struct Known<P: ?Sized> {
    pool: Weak<P>,
    /// Set where it outlives its last handle: blocks of it are live, or work on them is pending.
    outliving: Option<Arc<P>>,
}

impl<P: ?Sized> Default for Registry<P> {
    fn default() -> Self {
        Self { pools: OfProcess::new(Mutex::new(BTreeMap::new())), ranges: Arc::default() }
    }
}

impl<P: ?Sized> Registry<P> {
    pub(crate) fn enter(&self, number: u64, pool: Weak<P>) {
        let known = Known { pool, outliving: None };
        self.pools.lock().insert(number, known);
    }

    /// The pool is gone.
    pub(crate) fn leave(&self, number: u64) {
        self.pools.lock().remove(&number);
    }

    /// Keeps a pool, also without a handle, until it is [buried](Self::bury).
    pub(crate) fn outlive(&self, number: u64) {
        if let Some(known) = self.pools.lock().get_mut(&number) {
            known.outliving = known.pool.upgrade();
        }
    }

    /// Lets go of the pools that hold nothing any more.
    pub(crate) fn bury(&self, holds_nothing: impl Fn(&P) -> bool) {
        let next = || {
            let mut pools = self.pools.lock();
            pools.values_mut().find_map(|known| known.outliving.take_if(|pool| holds_nothing(pool)))
        };
        // Their last handles go here, without the lock held.
        while let Some(done) = next() {
            drop(done);
        }
    }

    /// The pool with this number, or the first that was built later.
    pub(crate) fn first_from(&self, number: u64) -> Option<Arc<P>> {
        self.pools.lock().range(number..).find_map(|(_, known)| known.pool.upgrade())
    }

    /// The pool in whose address space the pointer lies. Takes no pool's lock.
    pub(crate) fn owner_of(&self, ptr: DevicePtr) -> Option<Arc<P>> {
        let owner = self.ranges.owner_of(ptr)?;
        self.pools.lock().get(&owner.pool)?.pool.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use crate::device::sim::{SimDevice, SimOptions};
    use crate::error::Error;
    use crate::fixtures::Freeing;
    use crate::pool::{Context, Pool};

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
        assert_eq!(registry.pools.lock().len(), 1);
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
        assert_eq!((only.number, only.others().count()), (next.inner().number, 0));
    }
}
