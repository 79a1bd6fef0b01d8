use millpond::device::DevicePtr;
use millpond::{Context, Stream};
use millpond_baselines::{Allocator, ChoiceError};

use super::run::PLAYS;
use super::*;
use crate::fixtures::{GNN, PIPELINE, named, recorded};

#[test]
fn a_trace_is_replayed_through_every_allocator() {
    let trace = recorded(GNN);
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in millpond_baselines::NAMES {
        let outcome = on_sim(&trace, &program, &named(allocator), UNLIMITED).unwrap();
        assert_eq!(outcome.peak_requested, 10_499_491_208, "{allocator}");
        assert_eq!(outcome.oom, None, "{allocator}");
        assert_eq!(outcome.events, program.steps.len(), "{allocator}");
        assert!(outcome.peak_reserved >= outcome.peak_requested, "{allocator}");
    }
}

#[test]
fn a_short_replay_is_timed_several_times_with_equal_results() {
    let trace = recorded(GNN);
    let program = Program::new(&trace, FreeWhen::Completed);
    let plays = std::cell::RefCell::new(Vec::new());
    let choose = |context: &Context| {
        plays.borrow_mut().push(context.device().now());
        named("millpond")(context)
    };
    let once = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
    let timed = on_sim_timed(&trace, &program, &choose, UNLIMITED).unwrap();
    assert!(timed.replay_s > 0.0);
    assert_eq!(format!("{:?}", Outcome { replay_s: once.replay_s, ..timed }), format!("{once:?}"));
    let plays = plays.into_inner();
    assert!((2..=1 + PLAYS).contains(&plays.len()), "{}", plays.len());
    assert!(plays.windows(2).all(|pair| pair[0] == pair[1]), "each on a device of its own");
}

#[test]
fn a_block_of_several_streams_lives_until_its_free_completes() {
    let trace = recorded(PIPELINE);
    let completed = Program::new(&trace, FreeWhen::Completed).peak_requested().0;
    let requested = Program::new(&trace, FreeWhen::Requested).peak_requested().0;
    assert_eq!(completed, 6_173_473_808);
    assert!(requested < completed);
}

/// Twice the same job, by hosts of which one is slower, now and then.
#[test]
fn without_times_needs_do_not_depend_on_the_host() {
    let slow = recorded(PIPELINE);
    let mut slower = slow.clone();
    for (at, op) in slower.ops.iter_mut().enumerate() {
        op.time_us = 3 * op.time_us + at as u64 % 17;
    }
    let [one, other] = [&slow, &slower].map(|trace| {
        let program = Program::new(trace, FreeWhen::Completed).without_times();
        let choose = |context: &Context| millpond_baselines::by_name("millpond", context);
        let outcome = on_sim(trace, &program, &choose, UNLIMITED).unwrap();
        (outcome.peak_reserved, crate::fit::Need::of(&program, &choose, &outcome).unwrap(), program.steps)
    });
    assert_eq!(one.0, other.0);
    assert_eq!(one.1, other.1);
    assert_eq!(one.2, other.2);
}

#[test]
fn a_replay_ends_at_the_request_without_memory() {
    let trace = recorded(GNN);
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in millpond_baselines::NAMES {
        let outcome = on_sim(&trace, &program, &named(allocator), 4 << 30).unwrap();
        let oom = outcome.oom.unwrap_or_else(|| panic!("{allocator} fits"));
        assert_eq!(program.steps[oom.event].size, oom.bytes);
    }
}

#[test]
fn no_allocator_holds_more_than_the_device_has() {
    let trace = recorded(PIPELINE);
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in millpond_baselines::NAMES {
        for capacity in [2 << 30, 6 << 30, 7 << 30, 10 << 30] {
            let outcome = on_sim(&trace, &program, &named(allocator), capacity).unwrap();
            assert!(outcome.peak_reserved <= capacity, "{allocator} in {capacity}: {outcome:?}");
        }
    }
}

#[test]
fn the_smallest_capacity_fits_and_a_step_less_does_not() {
    let trace = recorded(GNN);
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in ["millpond", "caching", "stream-ordered"] {
        let choose = named(allocator);
        let unlimited = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
        let smallest = crate::fit::Need::of(&program, &choose, &unlimited).unwrap().unwrap().bytes;
        let outcome = |capacity| on_sim(&trace, &program, &choose, capacity).unwrap().oom;
        assert_eq!(outcome(smallest), None, "{allocator}");
        assert!(smallest >= unlimited.peak_requested);
        let step = (unlimited.peak_requested / 1000).next_multiple_of(2 << 20);
        assert!(outcome(smallest - step).is_some(), "{allocator}");
    }
}

#[test]
fn what_is_needed_is_what_plain_bisection_finds() {
    for name in [GNN, PIPELINE] {
        let program = Program::new(&recorded(name), FreeWhen::Completed);
        for allocator in millpond_baselines::NAMES {
            let choose = named(allocator);
            let unlimited = on_sim(&recorded(name), &program, &choose, UNLIMITED).unwrap();
            let need = crate::fit::Need::of(&program, &choose, &unlimited).unwrap().unwrap();
            assert_eq!(retries_by_usage(&program, &choose, need.bytes), Some(need.retries), "{allocator}");
            let resolution = crate::fit::resolution(unlimited.peak_requested);
            let mut enough = unlimited.peak_reserved.next_multiple_of(2 << 20);
            let mut too_small = (unlimited.peak_requested - 1) / (2 << 20) * (2 << 20);
            while enough - too_small > resolution {
                let middle = (too_small + (enough - too_small) / 2).next_multiple_of(2 << 20);
                let fits = retries_by_usage(&program, &choose, middle).is_some();
                *(if fits { &mut enough } else { &mut too_small }) = middle;
            }
            assert!(
                need.bytes.abs_diff(enough) <= resolution,
                "{allocator}: {need:?}, {enough} by bisection"
            );
        }
    }
}

/// Allocations that gave memory back, by the allocator's own count after each step; `None` where it does not end well.
fn retries_by_usage(program: &Program, choose: &Choose<'_>, capacity: u64) -> Option<u64> {
    let stage = Stage::sim(program, capacity).unwrap();
    let allocator = choose(stage.context()).unwrap();
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let (mut retries, mut before) = (0, 0);
    let played = stage.play_watched(&*allocator, &program.steps, &mut blocks, |_, step, _| {
        let calls = allocator.usage().calls;
        let given_back = calls.release + calls.free;
        retries += u64::from(step.alloc && given_back > before);
        before = given_back;
    });
    let played = played.unwrap();
    stage.clear(&*allocator, program, &mut blocks).unwrap();
    played.oom.is_none().then_some(retries)
}

#[test]
fn real_memory_keeps_every_mark_on_the_host() {
    use millpond::device::host::{HostDevice, HostOptions};
    let trace = recorded(PIPELINE);
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in ["millpond", "caching"] {
        let device = HostDevice::with_options(HostOptions::default().capacity(1 << 40));
        let (outcome, marks) = on_device(&trace, &program, &named(allocator), device.unwrap(), true).unwrap();
        assert_eq!(outcome.peak_requested, 6_173_473_808, "{allocator}");
        assert_eq!(outcome.device, "host");
        assert!(marks > 1000, "{allocator}: {marks}");
        assert!(outcome.device_us.is_some_and(|us| us > 0.0));
        let driver = outcome.driver.unwrap();
        assert_eq!((driver.free_before, driver.used_after), (1 << 40, 0), "{allocator}");
        assert_eq!(driver.used_peak, outcome.peak_reserved, "{allocator}");
    }
}

#[test]
fn every_allocators_books_agree_with_the_devices_own() {
    use millpond::device::host::{HostDevice, HostOptions};
    let trace = recorded(GNN);
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in millpond_baselines::NAMES {
        let device = HostDevice::with_options(HostOptions::default().capacity(1 << 40));
        let (outcome, _) = on_device(&trace, &program, &named(allocator), device.unwrap(), false).unwrap();
        let off = outcome.driver.unwrap().disagreement(outcome.peak_reserved);
        assert!(off.abs() < 0.01, "{allocator}: {off:+.4}, {outcome:?}");
        let json = serde_json::to_value(&outcome).unwrap();
        assert_eq!(json["driver_used_peak"].as_u64(), outcome.driver.map(|driver| driver.used_peak));
    }
}

#[test]
fn an_allocator_that_gives_memory_out_twice_is_found() {
    /// Gives every block of a size the same memory.
    #[derive(Debug)]
    struct Careless(Box<dyn Allocator>, parking_lot::Mutex<std::collections::HashMap<u64, DevicePtr>>);
    impl Allocator for Careless {
        fn name(&self) -> &'static str {
            "careless"
        }
        fn allocate(&self, bytes: u64, stream: &Stream) -> millpond::Result<DevicePtr> {
            if let Some(&known) = self.1.lock().get(&bytes) {
                return Ok(known);
            }
            let ptr = self.0.allocate(bytes, stream)?;
            self.1.lock().insert(bytes, ptr);
            Ok(ptr)
        }
        unsafe fn free(&self, _: DevicePtr, _: &Stream) -> millpond::Result<()> {
            Ok(())
        }
        fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> millpond::Result<()> {
            self.0.record_use(ptr, stream)
        }
        fn trim(&self) -> millpond::Result<()> {
            self.0.trim()
        }
        fn usage(&self) -> millpond_baselines::Usage {
            self.0.usage()
        }
    }
    use millpond::device::host::{HostDevice, HostOptions};
    let trace = recorded(GNN);
    let program = Program::new(&trace, FreeWhen::Completed);
    let device = HostDevice::with_options(HostOptions::default().capacity(1 << 40));
    let choose = |context: &Context| -> Result<Box<dyn Allocator>, ChoiceError> {
        Ok(Box::new(Careless(millpond_baselines::by_name("driver", context)?, Default::default())))
    };
    let result = on_device(&trace, &program, &choose, device.unwrap(), true);
    assert!(matches!(result, Err(ReplayError::Corrupt { .. })), "{result:?}");
}

#[test]
fn the_order_of_segments_moves_what_some_allocators_need() {
    use crate::fit::Need;
    let trace = recorded(PIPELINE);
    let program = Program::new(&trace, FreeWhen::Completed);
    for name in ["millpond", "expandable", "driver", "caching", "first-fit"] {
        let choose = named(name);
        let unlimited = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
        let need = Need::of(&program, &choose, &unlimited).unwrap().unwrap();
        let has_segments = ["caching", "first-fit"].contains(&name);
        assert!(has_segments || need.range().is_none(), "{name}: {need:?}");
        assert!(
            need.elsewhere >= program.peak_requested().0 && need.elsewhere <= need.unlimited * 2,
            "{name}"
        );
        assert!(need.range().is_none_or(|(least, most)| least < most && most == need.most()), "{name}");
    }
}

#[test]
fn every_reserved_byte_at_the_peak_is_accounted_for() {
    let trace = recorded(PIPELINE);
    let program = Program::new(&trace, FreeWhen::Completed);
    for name in millpond_baselines::NAMES {
        let choose = named(name);
        let most = on_sim(&trace, &program, &choose, UNLIMITED).unwrap().peak_reserved;
        let waste = map_at_peak(&program, &choose, most).unwrap().0;
        assert_eq!(
            waste,
            map_at_peak(&program, &choose, u64::MAX).unwrap().0,
            "whether the most is known or not"
        );
        let outcome = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
        assert_eq!(waste.reserved, outcome.peak_reserved, "{name}");
        let sum = waste.requested + waste.rounding + waste.holes + waste.caches + waste.other_streams;
        assert_eq!(sum, waste.reserved, "{name}: {waste:?}");
    }
    // PyTorch keeps a pool for each stream, and this job has six of them.
    let caching = map_at_peak(&program, &named("caching"), u64::MAX).unwrap().0;
    assert!(caching.other_streams > caching.reserved / 4, "{caching:?}");
}

#[test]
fn a_job_larger_than_the_card_moves_and_a_smaller_one_does_not() {
    let trace = recorded(GNN);
    let program = Program::new(&trace, FreeWhen::Completed);
    let on = |card: u64| in_managed_memory(&trace, &program, &named("millpond"), card).unwrap();
    let (small, large) = (on(8 << 30), on(64 << 30));
    assert_eq!((small.0.oom, large.0.oom, small.0.events), (None, None, program.steps.len()));
    assert!(small.0.peak_reserved > 8 << 30, "the job is larger");
    assert!(small.1.bytes_to_host > 0 && small.1.resident_peak == 8 << 30, "{:?}", small.1);
    assert_eq!((large.1.bytes_to_card, large.1.bytes_to_host), (0, 0));
    assert!(large.1.page_faults > 0 && small.1.waited_us > large.1.waited_us, "{:?}", large.1);
}
