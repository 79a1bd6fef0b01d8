//! Programs that once broke a rule, each with what was wrong.

use super::options::{Ending, Options};
use super::program::{Case, How, Kind, Step};
use super::run;

/// A pool as most are, on a device of so many pages.
fn plain(capacity: u64) -> Options {
    Options {
        capacity,
        virtual_memory: true,
        other: None,
        reuse: (false, false, false),
        pages: (0, 0),
        min_alignment: 512,
        release_threshold: None,
        hard_limit: None,
        headroom: 0,
        budget: None,
        failures: 0,
        seed: 0,
        ending: Ending::Orderly,
    }
}

#[test]
fn a_block_as_large_as_the_device_fits() {
    let options = Options { pages: (0, 1), ..plain(11) };
    let steps = vec![
        Step::Alloc { pool: 1, stream: 0, bytes: 1, how: How::Plain },
        Step::Free { block: 0, stream: 0, by_context: false },
        Step::Alloc { pool: 1, stream: 0, bytes: 11 << 21, how: How::Plain },
    ];
    run(&Case { options, steps }).unwrap();
}

#[test]
fn another_threads_wait_for_a_default_stream_tells_nothing() {
    let steps = vec![
        Step::NewStream { stream: 1, kind: Kind::PerThread },
        Step::Alloc { pool: 0, stream: 1, bytes: 4 << 20, how: How::Plain },
        Step::Hold { stream: 1 },
        Step::Free { block: 0, stream: 1, by_context: false },
        Step::SyncElsewhere { stream: 1 },
        Step::Alloc { pool: 0, stream: 0, bytes: 4 << 20, how: How::Plain },
    ];
    run(&Case { options: plain(6), steps }).unwrap();
}

#[test]
fn a_copy_on_a_default_stream_keeps_its_buffer() {
    let steps = vec![
        Step::NewStream { stream: 3, kind: Kind::PerThread },
        Step::Alloc { pool: 0, stream: 0, bytes: 1_048_577, how: How::Buffer },
        Step::CopyBuffer { pool: 0, stream: 3, block: 0 },
        Step::Free { block: 216, stream: 0, by_context: false },
        Step::Alloc { pool: 0, stream: 0, bytes: 12_582_912, how: How::Plain },
    ];
    run(&Case { options: plain(6), steps }).unwrap();
}
