//! A plan says what happens, and a failure at any of its steps leaves everything as it was.

use std::time::Duration;

use proptest::prelude::*;

use super::plan::Step;
use crate::device::sim::Call;
use crate::device::{DeviceError, DevicePtr};
use crate::error::Error;
use crate::figures::stats::Stats;
use crate::fixtures::{Bench, Freeing, MIB};
use crate::order::Stream;

/// What a plan promises, or what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Happened {
    creates: u64,
    maps: u64,
    moves: u64,
    unmaps: u64,
    waits: bool,
}

/// What the last plan that was carried out on this thread promises, and how many mappings had been removed when it was made:
/// before, those go whose work is complete by then.
fn planned() -> Option<(Happened, u64)> {
    let (steps, waits, unmapped) = super::allocation::CARRIED_OUT.take()?;
    let count = |is: fn(&Step) -> bool| steps.iter().filter(|step| is(step)).count() as u64;
    let planned = Happened {
        creates: count(|step| matches!(step, Step::Create { .. })),
        maps: count(|step| matches!(step, Step::Create { .. } | Step::Move { .. } | Step::Unpark { .. })),
        moves: count(|step| matches!(step, Step::Move { .. })),
        unmaps: count(|step| matches!(step, Step::Clear { .. })),
        waits,
    };
    Some((planned, unmapped))
}

fn happened(before: &Stats, after: &Stats, unmapped: u64) -> Happened {
    Happened {
        creates: after.calls.create - before.calls.create,
        maps: after.calls.map - before.calls.map,
        moves: after.pages_remapped - before.pages_remapped,
        unmaps: after.calls.unmap - unmapped,
        waits: after.stream_waits > before.stream_waits,
    }
}

#[derive(Debug, Clone)]
enum Op {
    Alloc { bytes: u64, stream: usize },
    Free { which: prop::sample::Index, stream: usize },
    Work { stream: usize },
    Trim { keep: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bytes = prop_oneof![1..2 * MIB, (1..40u64).prop_map(|pages| pages * 2 * MIB), Just(7 * MIB)];
    let op = prop_oneof![
        5 => (bytes, 0..2usize).prop_map(|(bytes, stream)| Op::Alloc { bytes, stream }),
        4 => (any::<prop::sample::Index>(), 0..2usize).prop_map(|(which, stream)| Op::Free { which, stream }),
        2 => (0..2usize).prop_map(|stream| Op::Work { stream }),
        1 => (0..100u64).prop_map(|pages| Op::Trim { keep: pages * 2 * MIB }),
    ];
    prop::collection::vec(op, 1..if cfg!(miri) { 10 } else { 120 })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 64 }, ..ProptestConfig::default() })]

    #[test]
    fn what_was_planned_is_what_happens(ops in ops()) {
        let bench = Bench::new(|builder| builder.release_threshold(1 << 40));
        let streams = [bench.stream.clone(), bench.context.create_stream().unwrap()];
        let mut live: Vec<DevicePtr> = Vec::new();
        for op in ops {
            match op {
                Op::Alloc { bytes, stream } => {
                    planned();
                    let before = bench.pool.stats();
                    live.push(bench.pool.alloc(bytes, &streams[stream]).unwrap());
                    if let Some((planned, unmapped)) = planned() {
                        prop_assert_eq!(planned, happened(&before, &bench.pool.stats(), unmapped));
                    }
                }
                Op::Free { which, stream } if !live.is_empty() => {
                    let ptr = live.swap_remove(which.index(live.len()));
                    bench.pool.free_block(ptr, &streams[stream]).unwrap();
                }
                Op::Free { .. } => {}
                Op::Work { stream } => {
                    bench.sim.launch(streams[stream].handle(), Duration::from_millis(5)).unwrap();
                }
                Op::Trim { keep } => drop(bench.pool.trim_to(keep).unwrap()),
            }
            bench.pool.check().unwrap();
        }
    }
}

/// A pool whose next miss of 40 MiB takes all kinds of steps.
struct Scene {
    bench: Bench,
    other: Stream,
}

const REQUEST: u64 = 40 * MIB;

impl Scene {
    fn new() -> Self {
        let bench = Bench::new(|builder| builder.page_sizes(2 * MIB, 2 * MIB));
        let other = bench.context.create_stream().unwrap();
        let alloc = |bytes| bench.pool.alloc(bytes, &bench.stream).unwrap();
        // Holes of 4 MiB.
        let blocks: Vec<_> = (0..16).map(|_| alloc(4 * MIB)).collect();
        for ptr in blocks.iter().step_by(2) {
            bench.pool.free_block(*ptr, &other).unwrap();
        }
        Self { bench, other }
    }

    fn plan(&self) -> String {
        let units = self.bench.pool.inner().caches.sizes().units(REQUEST);
        self.bench.pool.inner().state.lock().arenas.own.plan(units, &self.bench.stream)
    }

    fn state(&self) -> (String, u64, u64, Vec<(DevicePtr, u64)>) {
        self.bench.pool.check().unwrap();
        let inner = self.bench.pool.inner();
        // A request that fails has them emptied, too.
        inner.empty_caches(&mut inner.state.lock());
        let backed = inner.state.lock().arenas.own.backed().unwrap();
        // That the stream waited is not undone.
        let plan = self.plan().replace("wait for 1 streams; ", "");
        (plan, self.bench.pool.reserved().current, self.bench.pool.stats().requested.current, backed)
    }
}

#[test]
fn a_plan_can_be_read() {
    let scene = Scene::new();
    let hold = scene.bench.sim.hold(scene.other.handle()).unwrap();
    let plan = scene.plan();
    assert!(plan.contains("wait for 1 streams; move page"), "{plan}");
    assert!(plan.ends_with("create 1 base pages at 51"), "{plan}");
    scene.bench.sim.release(hold);
}

#[test]
fn a_failure_at_any_step_leaves_everything_as_it_was() {
    for call in [Call::RecordEvent, Call::WaitEvent, Call::CreatePage, Call::Map, Call::SetAccess] {
        let mut failures = 0;
        for nth in 1.. {
            let scene = Scene::new();
            let hold = scene.bench.sim.hold(scene.other.handle()).unwrap();
            let before = scene.state();
            scene.bench.sim.fail_next(
                call,
                nth,
                DeviceError::Invalid { call: "test", what: "it fails".into() },
            );
            let result = scene.bench.pool.alloc(REQUEST, &scene.bench.stream);
            scene.bench.sim.fail_no_more();
            match result {
                // What could not be asked was not needed.
                Ok(_) if nth < 2 && call == Call::RecordEvent => {
                    scene.bench.sim.release(hold);
                    continue;
                }
                Ok(_) => {
                    scene.bench.sim.release(hold);
                    break;
                }
                Err(Error::Device(_)) => failures += 1,
                Err(error) => panic!("{call:?} {nth}: {error}"),
            }
            assert_eq!(scene.state(), before, "{call:?} {nth}");
            scene.bench.sim.release(hold);
        }
        assert!(failures > 0, "{call:?}");
    }
}

#[test]
fn a_mapping_that_cannot_be_undone_is_removed_later() {
    let scene = Scene::new();
    let reserved = scene.bench.pool.reserved().current;
    let fails = || DeviceError::Invalid { call: "test", what: "it fails".into() };
    scene.bench.sim.fail_next(Call::Map, 5, fails());
    for nth in 1..=4 {
        scene.bench.sim.fail_next(Call::Unmap, nth, fails());
    }
    assert!(matches!(scene.bench.pool.alloc(REQUEST, &scene.bench.stream), Err(Error::Device(_))));
    scene.bench.pool.check().unwrap();
    scene.bench.sim.fail_no_more();
    let ptr = scene.bench.pool.alloc(REQUEST, &scene.bench.stream).unwrap();
    scene.bench.pool.check().unwrap();
    scene.bench.pool.free_block(ptr, &scene.bench.stream).unwrap();
    scene.bench.context.synchronize().unwrap();
    scene.bench.pool.trim_to(0).unwrap();
    scene.bench.pool.check().unwrap();
    assert!(scene.bench.pool.reserved().current < reserved);
}
