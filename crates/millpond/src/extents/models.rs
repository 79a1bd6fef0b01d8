//! Models of block descriptors: loom tries every order in which threads may read and write one, and every value that a
//! load may see. `scripts/check-concurrency loom` runs them.
//!
//! **What is real** is `map/block_descriptor.rs`, which is compiled here once more, with loom's atomics. **What is modelled**: a
//! pointer reaches another thread without any ordering, as a program may pass it on.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use self::block_descriptor::{BlockDescriptor, Place};
use super::map::extent;
use super::map::extent::ExtentId;
use crate::device::DevicePtr;

mod atomics {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

#[path = "map/block_descriptor.rs"]
#[expect(dead_code, reason = "models use a part of it")]
mod block_descriptor;

const HERE: DevicePtr = DevicePtr::new(7 << 40);
const ELSEWHERE: DevicePtr = DevicePtr::new(8 << 40);

#[test]
fn a_live_block_is_seen_with_its_lengths_and_class() {
    loom::model(|| {
        let descriptor = Arc::new(BlockDescriptor::modelled());
        let owner = thread::spawn({
            let descriptor = descriptor.clone();
            move || {
                descriptor.open(HERE, ExtentId(5), 1024, 3);
                descriptor.make_live(HERE, 1000);
            }
        });
        if descriptor.is_plain(HERE) {
            let known = (descriptor.requested(), descriptor.bytes(), descriptor.class(), descriptor.id());
            assert_eq!(known, (1000, 1024, 3, ExtentId(5)));
        }
        owner.join().unwrap();
    });
}

#[test]
fn a_length_is_never_that_of_the_next_block() {
    loom::model(|| {
        let descriptor = Arc::new(BlockDescriptor::modelled());
        descriptor.open(HERE, ExtentId(5), 1024, 0);
        descriptor.make_live(HERE, 1000);
        let owner = thread::spawn({
            let descriptor = descriptor.clone();
            move || {
                descriptor.make_cached(Place::BETWEEN, 1);
                descriptor.close();
                descriptor.open(ELSEWHERE, ExtentId(5), 4096, 2);
            }
        });
        // Freed twice: by the owner, and here.
        if let Some(found) = descriptor.plain(HERE, 0) {
            assert_eq!((found.bytes, found.class), (1024, 0));
        }
        owner.join().unwrap();
    });
}

#[test]
fn of_two_magazines_one_has_a_block_that_was_freed_twice() {
    loom::model(|| {
        let descriptor = Arc::new(BlockDescriptor::modelled());
        descriptor.open(HERE, ExtentId(5), 1024, 0);
        descriptor.make_live(HERE, 1000);
        let magazines = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let free = |at: usize| {
            let (descriptor, magazines) = (descriptor.clone(), magazines.clone());
            move || {
                if descriptor.is_plain(HERE) {
                    descriptor.make_cached(Place::of(&magazines[at]), at as u64);
                    magazines[at].store(1, Ordering::Relaxed);
                }
            }
        };
        let second = thread::spawn(free(1));
        free(0)();
        second.join().unwrap();
        let copies = magazines.iter().filter(|magazine| magazine.load(Ordering::Relaxed) == 1);
        let taken = copies.filter(|magazine| descriptor.leave(Place::of(*magazine), HERE));
        assert_eq!(taken.count(), 1);
    });
}
