//! The pool under random programs, watched by the checker device.
//!
//! A program (`program.rs`) allocates, uses, copies and frees on several streams and pools, records and waits,
//! makes streams come and go, trims, destroys pools, holds streams and makes device calls fail, on devices and
//! pools of all kinds (`options.rs`). It is free of races by construction: `order.rs` knows what the program
//! has ordered, and the steps (`steps.rs`, `block_steps.rs`) order what is not. After every step (`checks.rs`)
//! the checker must be content, the pools' own recount must hold, and their figures must be the model's; at
//! the end (`ending.rs`) every byte, event and stream must have gone back.
//!
//! Two devices have programs of their own (`peers.rs`, `peers_bytes.rs`), over buffers.
//!
//! Tags that are evicted and restored have programs of their own (`evictions.rs`), over the simulated device and the host device,
//! whose bytes are compared.
//!
//! Typed buffers have programs of their own (`typed.rs`), over a host device whose streams are held back.
//!
//! Captures into graphs have programs of their own (`captures.rs`), over the host device with the driver's rules of
//! captures, whose bytes are compared.
//!
//! A failure prints the smallest case found, which runs again when it is pasted into `replays.rs`; its seed
//! is kept in `regressions.txt` and tried first from then on. `MILLPOND_CASES=100000 cargo test --release
//! --test integration properties::` searches for longer; so does `scripts/check-long`.

mod block_steps;
mod captures;
mod checks;
mod ending;
mod evictions;
mod options;
mod order;
mod peers;
mod peers_bytes;
mod program;
mod replays;
mod steps;
mod threads;
mod typed;
mod typed_steps;
mod world;

use program::Case;
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngSeed};
use world::World;

/// Runs one case.
pub(crate) fn run(case: &Case) -> Result<(), String> {
    let mut world = World::new(&case.options)?;
    for (at, step) in case.steps.iter().enumerate() {
        let done = world.step(*step).and_then(|()| world.check());
        done.map_err(|why| format!("step {at}, {step:?}: {why}"))?;
    }
    world.finish().map_err(|why| format!("at the end: {why}"))
}

/// By default the same cases in every run, in a few seconds on two cores; with `MILLPOND_CASES`, that many new
/// ones of each property.
fn config() -> ProptestConfig {
    let cases = std::env::var("MILLPOND_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(2000),
        rng_seed: if cases.is_some() { RngSeed::Random } else { RngSeed::Fixed(20) },
        max_shrink_iters: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/integration/properties/regressions.txt",
        ))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn programs_keep_every_rule(case in program::plain()) {
        run(&case).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn programs_keep_every_rule_while_streams_are_held(case in program::with_held_streams()) {
        run(&case).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn programs_keep_every_rule_when_device_calls_fail(case in program::with_failures()) {
        run(&case).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn programs_with_evictions_keep_every_rule(
        steps in evictions::steps(),
        is_tight in any::<bool>(),
    ) {
        evictions::on_sim(is_tight, steps).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn programs_on_two_devices_keep_every_rule(options in peers::options(), steps in peers::steps(false)) {
        peers::World::new(&options, false).run(steps).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn programs_on_two_devices_keep_every_rule_when_a_call_fails(
        options in peers::options(),
        steps in peers::steps(true),
    ) {
        peers::World::new(&options, true).run(steps).map_err(TestCaseError::fail)?;
    }
}

/// A case moves real bytes, many of them.
fn few() -> ProptestConfig {
    let config = config();
    ProptestConfig { cases: config.cases.div_ceil(20), ..config }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn graphs_replay_correctly_whatever_the_program_does_beside_them(steps in captures::steps()) {
        captures::World::new().run(steps);
    }

    #[test]
    fn evicted_bytes_come_back_whatever_fails_and_whoever_has_the_memory(
        steps in evictions::steps(),
        is_tight in any::<bool>(),
    ) {
        evictions::on_host(is_tight, steps).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn bytes_on_two_devices_are_those_given_last(steps in peers::steps(false)) {
        peers_bytes::World::new().run(steps);
    }

    #[test]
    fn typed_buffers_hold_what_they_were_given_last(steps in typed_steps::steps(), zeroes in any::<bool>()) {
        typed::World::new(zeroes).run(steps);
    }
}
