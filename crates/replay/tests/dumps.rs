//! Dumps of pools that ran out of memory, read back as traces.

use std::path::Path;

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::record::Tracking;
use millpond::{Context, Pool, record};
use millpond_replay::trace::Trace;

use crate::shared::only;

const MIB: u64 = 1 << 20;

/// The trace of a pool that had 256 MiB, and ran out with blocks of two tags.
fn run_out(folder: &Path, tracking: Tracking) -> (Trace, String) {
    let path = folder.join("oom.mprec");
    let context = Context::new(SimDevice::new(SimOptions::default().capacity(256 * MIB)).unwrap());
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).name("weights").track(tracking.dump(&path)).build().unwrap();
    let alloc = |tag: &str, bytes: u64| {
        let _tag = record::tag(tag);
        pool.alloc(bytes, &stream).unwrap()
    };
    // Reused by what comes after it.
    let gone = alloc("gone", 40 * MIB);
    // SAFETY: the block is the test's own, and has no work.
    unsafe { pool.free(gone, &stream) }.unwrap();
    _ = alloc("cache", 64 * MIB);
    (0..100).for_each(|_| _ = alloc("small", MIB));
    let error = pool.alloc(200 * MIB, &stream).unwrap_err();
    (only(&path), error.to_string())
}

/// Bytes live at the end, by tag.
fn live_at_end(trace: &Trace, tag: &str) -> u64 {
    use millpond_replay::trace::OpKind;
    let freed = |block: u32| trace.ops.iter().any(|op| op.block == block && op.kind == OpKind::FreeRequested);
    let of_tag = |&block: &u32| {
        let mut frames = trace.stacks.frames(trace.blocks[block as usize].stack);
        frames.any(|frame| &*frame.name == tag) && !freed(block)
    };
    (0..trace.blocks.len() as u32).filter(of_tag).map(|block| trace.blocks[block as usize].size).sum()
}

#[test]
fn a_dump_is_the_trace_of_what_was_live() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, error) = run_out(folder.path(), Tracking::all());
    assert_eq!((trace.blocks.len(), trace.lost_frees, trace.live_before.len()), (103, 0, 0));
    let live = ["gone", "cache", "small"].map(|tag| live_at_end(&trace, tag) / MIB);
    assert_eq!(live, [0, 64, 100]);
    let granted = (0u32..).zip(&trace.blocks).filter(|(number, _)| !trace.is_refused(*number));
    assert!(granted.map(|(_, block)| trace.stacks.frames(block.stack).count()).all(|frames| frames > 1));
    assert_eq!(trace.recorded_ooms.len(), 1);
    assert_eq!(trace.recorded_ooms[0].size, 200 * MIB);
    assert_eq!(trace.remarks, [format!("the program was told: {error}")]);
    assert!(trace.recorded_reserved.unwrap() >= 164 * MIB);
}

#[test]
fn a_dump_of_samples_has_all_live_bytes() {
    let folder = tempfile::tempdir().unwrap();
    // The long blocks are samples all but once in e to the 20th times, and most of the short ones are none.
    let (trace, _) = run_out(folder.path(), Tracking::sampled().every(2 * MIB));
    assert_eq!(live_at_end(&trace, "cache"), 64 * MIB);
    let small = live_at_end(&trace, "small");
    assert!(small > 0 && small < 100 * MIB, "{small}");
    let freed = 40 * MIB;
    let all: u64 = trace.blocks.iter().map(|block| block.size).sum();
    assert_eq!((all, trace.lost_frees), (164 * MIB + freed + 200 * MIB, 0));
}
