//! What an out-of-memory error says to free is enough, and a page less is not.

use millpond::device::sim::SimOptions;
use millpond::{Budget, Context, Error, Pool, Stream};
use proptest::prelude::*;

use crate::shared::{Freeing, MIB, sim_with};

/// Bytes of a page, and of each block here.
const PAGE: u64 = 2 * MIB;

/// What limits a pool to so many pages.
#[derive(Debug, Clone, Copy)]
enum LimitedBy {
    HardLimit,
    /// Of which another pool has so many pages.
    Budget(u64),
    Headroom,
    Device,
}

/// A pool that may hold so many pages, and what else has to live as long.
fn limited(by: LimitedBy, pages: u64) -> (Context, Stream, Pool, Option<Pool>) {
    let on_device = match by {
        LimitedBy::Device => pages,
        LimitedBy::Headroom => pages + 7,
        LimitedBy::HardLimit | LimitedBy::Budget(_) => 2 * pages + 20,
    };
    let (_, context, stream) = sim_with(SimOptions::default().capacity(on_device * PAGE));
    let builder = Pool::builder(&context).page_sizes(PAGE, PAGE);
    let (pool, other) = match by {
        LimitedBy::Device => (builder.build(), None),
        LimitedBy::Headroom => (builder.headroom(7 * PAGE).build(), None),
        LimitedBy::HardLimit => (builder.hard_limit(pages * PAGE).build(), None),
        LimitedBy::Budget(theirs) => {
            let budget = Budget::bytes((pages + theirs) * PAGE);
            let other = builder.clone().budget(&budget).build().unwrap();
            for _ in 0..theirs {
                _ = other.alloc(PAGE, &stream).unwrap();
            }
            (builder.budget(&budget).build(), Some(other))
        }
    };
    (context, stream, pool.unwrap(), other)
}

proptest! {
    #[test]
    fn what_the_advice_says_to_free_is_enough_and_a_page_less_is_not(
        by in prop_oneof![
            Just(LimitedBy::HardLimit), (0..9_u64).prop_map(LimitedBy::Budget), Just(LimitedBy::Headroom), Just(LimitedBy::Device)
        ],
        pages in 1..40_u64,
        live in 0..40_u64,
        requested in 1..40 * PAGE,
    ) {
        prop_assume!(live <= pages);
        let (_context, stream, pool, _other) = limited(by, pages);
        let mut blocks: Vec<_> = (0..live).map(|_| pool.alloc(PAGE, &stream).unwrap()).collect();
        let report = match pool.alloc(requested, &stream) {
            Ok(_) => {
                prop_assert!(requested.div_ceil(PAGE) <= pages - live);
                return Ok(());
            }
            Err(Error::OutOfMemory(report)) => report,
            Err(error) => panic!("{error}"),
        };
        prop_assert_eq!((report.cached, report.room), (0, (pages - live) * PAGE));
        let Some(free) = report.to_free() else {
            // Not even with all of them.
            prop_assert!(requested > pages * PAGE, "{}", report);
            return Ok(());
        };
        prop_assert!(report.advice().contains("free"), "{}", report.advice());
        // Whole blocks: the last page of the request may be needed in part.
        let needed = free.div_ceil(PAGE);
        prop_assert!((1..=live).contains(&needed), "{}", report);
        blocks.drain(..needed as usize - 1).for_each(|block| pool.free_block(block, &stream).unwrap());
        prop_assert!(pool.alloc(requested, &stream).is_err(), "a page less is enough: {}", report);
        pool.free_block(blocks.pop().unwrap(), &stream).unwrap();
        prop_assert!(pool.alloc(requested, &stream).is_ok(), "it is not enough: {}", report);
    }
}
