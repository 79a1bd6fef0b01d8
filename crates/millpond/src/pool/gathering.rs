//! When the free pages of a pool are gathered: before a large block is looked for in the arena, where that is due
//! (see `arena/gather.rs`). Caches are emptied first, since what they hold would be left behind, in the way of all
//! that is placed there later. There, too, long pages are exchanged for short ones ([`shortening`](super::shortening)).

use super::inner::{PoolInner, State};
use crate::order::Stream;

impl PoolInner {
    /// Moves what is free to one place, or shortens its pages, if that is due. A pool in haste grows rather than move.
    #[inline]
    pub(super) fn gather_if_due(&self, state: &mut State, units: u64, stream: &Stream) {
        if !state.arena.is_large(units) {
            return;
        }
        if state.arena.is_gathering_due(stream) && !state.haste.is_on() {
            self.gather(state, stream);
        } else if state.arena.is_shortening_due() && !state.haste.is_on() {
            self.shorten(state);
        }
    }

    #[cold]
    pub(super) fn gather(&self, state: &mut State, stream: &Stream) {
        let device = self.timelines.device();
        let began = device.now();
        self.empty_caches(state);
        if let Err(refusal) = state.arena.gather(stream) {
            tracing::warn!(pool = self.name, ?refusal, "not all free pages could be moved to one place");
        }
        self.adapt(state);
        self.note_waste(state, device.now().saturating_sub(began));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use crate::device::checker::{BlockId, CheckerDevice};
    use crate::device::sim::{Call, SimDevice, SimOptions};
    use crate::device::{DeviceError, DevicePtr};
    use crate::{Context, Pool, Stream};

    const MIB: u64 = 1 << 20;

    /// A pool that is never in haste, whatever little its program computes.
    fn bench() -> (Arc<SimDevice>, Pool, Stream) {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let context = Context::new(sim.clone());
        let pool = Pool::builder(&context).spare(0).build().unwrap();
        let stream = context.create_stream().unwrap();
        (sim, pool, stream)
    }

    /// As if it were due.
    fn gather(pool: &Pool, stream: &Stream) {
        let inner = pool.inner();
        inner.gather(&mut inner.state.lock(), stream);
    }

    fn free(pool: &Pool, stream: &Stream, blocks: impl IntoIterator<Item = DevicePtr>) {
        blocks.into_iter().for_each(|ptr| pool.free(ptr, stream).unwrap());
    }

    // ---- jobs that repeat themselves -------------------------------------------------------------------

    /// A small GPT of six layers, width 512, as a framework asks for it: four bytes a number.
    struct Job {
        pool: Pool,
        stream: Stream,
        gradients: Vec<DevicePtr>,
    }

    const WIDTH: u64 = 512;
    const VOCABULARY: u64 = 8192;
    const LAYERS: usize = 6;

    impl Job {
        fn new() -> Self {
            let (_, pool, stream) = bench();
            let job = Self { pool, stream, gradients: Vec::new() };
            for _ in 0..LAYERS {
                // Weights and two moments of the optimizer.
                for factor in [3, 1, 4, 4] {
                    (0..3).for_each(|_| _ = job.alloc(factor * WIDTH * WIDTH));
                }
            }
            job
        }

        fn alloc(&self, numbers: u64) -> DevicePtr {
            self.pool.alloc(numbers * 4, &self.stream).unwrap()
        }

        fn free(&self, blocks: impl IntoIterator<Item = DevicePtr>) {
            free(&self.pool, &self.stream, blocks);
        }

        /// One step of training over so many tokens.
        fn step(&mut self, tokens: u64) {
            let old = std::mem::take(&mut self.gradients);
            self.free(old);
            let of_width = |factor: u64| factor * tokens * WIDTH;
            let mut saved = Vec::new();
            for _ in 0..LAYERS {
                let kept = [1, 3, 1, 1, 1, 4, 4].map(|factor| self.alloc(of_width(factor)));
                let passing = self.alloc(of_width(1));
                self.free([passing]);
                saved.push(kept);
            }
            let logits = [(); 3].map(|()| self.alloc(tokens * VOCABULARY));
            self.gradients.push(self.alloc(VOCABULARY * WIDTH));
            let mut gradient = self.alloc(of_width(1));
            self.free(logits);
            while let Some(kept) = saved.pop() {
                for (block, factor) in kept.into_iter().rev().zip([4, 4, 1, 1, 1, 3, 1]) {
                    let of_block = self.alloc(of_width(factor));
                    self.free([gradient, block]);
                    gradient = of_block;
                }
                self.gradients.extend([3, 1, 4, 4].map(|factor| self.alloc(factor * WIDTH * WIDTH)));
            }
            self.free([gradient]);
        }

        /// Runs a step for each, and returns the misses and the device's calls that it took.
        fn pass(&mut self, steps: impl IntoIterator<Item = u64>) -> (u64, u64) {
            let before = self.pool.stats();
            steps.into_iter().for_each(|tokens| self.step(tokens));
            let after = self.pool.stats();
            (after.misses - before.misses, after.calls.memory() - before.calls.memory())
        }

        fn ratio(&self) -> f64 {
            let stats = self.pool.stats();
            stats.reserved.high as f64 / stats.requested.high as f64
        }
    }

    /// Forty lengths, all different.
    fn lengths() -> Vec<u64> {
        (0..40).map(|at| 1024 + 331 * (at * 17 % 40)).collect()
    }

    /// Passes over all lengths, each with another stride.
    fn assert_calls_end(strides: [u64; 4]) {
        let mut job = Job::new();
        let passes = strides.map(|stride| job.pass((0..40).map(|at| lengths()[(at * stride % 40) as usize])));
        assert!(passes[0].0 > 100 && passes[1].0 < passes[0].0 / 10, "{passes:?}");
        assert_eq!(passes[2..], [(0, 0); 2], "misses and calls");
        let ratio = job.ratio();
        assert!(ratio < 1.02, "{ratio}");
        job.pool.check().unwrap();
    }

    #[test]
    fn a_job_that_repeats_its_steps_stops_calling_the_device() {
        assert_calls_end([1; 4]);
    }

    #[test]
    fn so_does_one_whose_steps_come_in_another_order_each_time() {
        assert_calls_end([1, 3, 7, 9]);
    }

    // ---- jobs with large blocks of a moment, and with much that stays --------------------------------

    /// Blocks of 32 MiB that stay, as cuBLAS and its like hold, and so many MiB of weights.
    fn stay(pool: &Pool, stream: &Stream, weights: u64) {
        let workspaces = [32 * MIB; 2];
        let rest = (0..weights / 6).map(|_| 6 * MIB + 200_000);
        workspaces.into_iter().chain(rest).for_each(|bytes| _ = pool.alloc(bytes, stream).unwrap());
    }

    /// One step of the convolutional net of `crates/python/tests/gpu`, as PyTorch asks for it, over 64 images of so
    /// many pixels a side: to compute a layer takes a workspace for a moment, which is longer than what it keeps.
    fn convolve(pool: &Pool, stream: &Stream, side: u64) {
        let alloc = |bytes: u64| pool.alloc(bytes, stream).unwrap();
        let work = |bytes: u64| free(pool, stream, [alloc(bytes + 300_000)]);
        let images = 64 * 3 * 4 * side * side;
        let layers = [16, 8, 4].map(|factor| 256 * factor * side * side);
        let input = alloc(images);
        let mut kept = Vec::new();
        for (times, bytes) in (1..).zip(layers) {
            let convolved = alloc(bytes);
            if times > 1 {
                work(times * bytes);
            }
            let normed = alloc(bytes);
            kept.push([convolved, alloc(bytes)]);
            free(pool, stream, [normed]);
        }
        let mut gradient = alloc(layers[2]);
        for (at, [convolved, rectified]) in kept.into_iter().enumerate().rev() {
            let of_rectified = alloc(layers[at]);
            free(pool, stream, [gradient, rectified]);
            let of_normed = alloc(layers[at]);
            free(pool, stream, [of_rectified, convolved]);
            let below = if at > 0 { layers[at - 1] } else { images };
            gradient = alloc(below);
            work(below + layers[at]);
            work(below + layers[at] + 4 * MIB);
            free(pool, stream, [of_normed]);
        }
        free(pool, stream, [gradient, input]);
    }

    /// Misses of each of so many rounds over the steps.
    fn misses(pool: &Pool, rounds: usize, mut round: impl FnMut()) -> Vec<u64> {
        let mut before = 0;
        let mut of_round = || {
            round();
            let all = pool.stats().misses;
            all - std::mem::replace(&mut before, all)
        };
        (0..rounds).map(|_| of_round()).collect()
    }

    #[test]
    fn large_blocks_of_a_moment_hide_no_low_water() {
        let (_, pool, stream) = bench();
        stay(&pool, &stream, 0);
        let rounds = misses(&pool, 80, || (0..5).for_each(|at| convolve(&pool, &stream, 128 + 32 * at)));
        assert!(rounds[0] > 10, "{rounds:?}");
        assert_eq!(rounds[12..].iter().sum::<u64>(), 0, "{rounds:?}");
        pool.check().unwrap();
    }

    #[test]
    fn a_job_of_which_most_stays_stops_calling_the_device_too() {
        let (_, pool, stream) = bench();
        stay(&pool, &stream, 2000);
        let rounds = misses(&pool, 80, || (0..5).for_each(|at| convolve(&pool, &stream, 128 + 32 * at)));
        assert_eq!(rounds[12..].iter().sum::<u64>(), 0, "{rounds:?}");
        pool.check().unwrap();
    }

    // ---- what is gathered --------------------------------------------------------------------------

    #[test]
    fn what_was_free_in_pieces_lies_in_one_and_nothing_more_is_held() {
        let (_, pool, stream) = bench();
        let blocks: Vec<_> = (0..64).map(|_| pool.alloc(32 * MIB, &stream).unwrap()).collect();
        let (keep, give): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 4 == 0);
        free(&pool, &stream, give.into_iter().map(|(_, ptr)| ptr));
        let reserved = pool.reserved().high;
        gather(&pool, &stream);
        pool.check().unwrap();
        let misses = pool.stats().misses;
        let whole = pool.alloc(48 * 32 * MIB, &stream).unwrap();
        assert_eq!((pool.stats().misses, pool.reserved().high), (misses, reserved));
        free(&pool, &stream, keep.into_iter().map(|(_, ptr)| ptr).chain([whole]));
        pool.check().unwrap();
    }

    #[test]
    fn a_call_that_fails_amid_gathering_loses_nothing() {
        for nth in 1..12 {
            let (sim, pool, stream) = bench();
            // Free in two pieces.
            let [low, kept, high] =
                [256, 2, 256].map(|mebibytes| pool.alloc(mebibytes * MIB, &stream).unwrap());
            free(&pool, &stream, [low, high]);
            let reserved = pool.reserved().current;
            let call = "cuMemMap";
            sim.fail_next(Call::Map, nth, DeviceError::OutOfMemory { call, requested: 32 * MIB });
            gather(&pool, &stream);
            pool.check().unwrap();
            assert_eq!(pool.reserved().current, reserved);
            let again = pool.alloc(512 * MIB, &stream).unwrap();
            assert_eq!(pool.reserved().high, reserved);
            free(&pool, &stream, [again, kept]);
        }
    }

    #[test]
    fn what_lies_in_one_place_already_is_not_moved() {
        let (_, pool, stream) = bench();
        let [rest, kept, most] = [64, 2, 512].map(|mebibytes| pool.alloc(mebibytes * MIB, &stream).unwrap());
        free(&pool, &stream, [most, rest]);
        let moved = || pool.stats().pages_stolen;
        gather(&pool, &stream);
        let first = moved();
        assert!((1..=7).contains(&first), "the pages of the shorter one: {first}");
        gather(&pool, &stream);
        assert_eq!(moved(), first);
        free(&pool, &stream, [kept]);
        pool.check().unwrap();
    }

    #[test]
    fn leniency_ends_where_the_pool_grows_for_it() {
        let (_, pool, stream) = bench();
        let block = pool.alloc(1024 * MIB, &stream).unwrap();
        free(&pool, &stream, [block]);
        gather(&pool, &stream);
        // Two blocks share each page of 32 MiB in the middle, and one of them stays.
        let blocks: Vec<_> = (0..60).map(|_| pool.alloc(17 * MIB, &stream).unwrap()).collect();
        let (keep, give): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        free(&pool, &stream, give.into_iter().map(|(_, ptr)| ptr));
        let is_lenient = || pool.inner().state.lock().arena.is_lenient();
        assert!(is_lenient());
        let long = pool.alloc(500 * MIB, &stream).unwrap();
        assert!(pool.reserved().high > 1056 * MIB);
        assert!(!is_lenient());
        free(&pool, &stream, keep.into_iter().map(|(_, ptr)| ptr).chain([long]));
        pool.check().unwrap();
    }

    #[test]
    fn leniency_ends_where_blocks_that_stay_pin_much() {
        let (_, pool, stream) = bench();
        let alloc = |mebibytes: u64| pool.alloc(mebibytes * MIB, &stream).unwrap();
        let is_lenient = || pool.inner().state.lock().arena.is_lenient();
        // Each of another length, so that no magazine has it.
        let tide = |at: u64| free(&pool, &stream, [alloc(600 + at)]);
        free(&pool, &stream, [alloc(1024)]);
        (0..12).for_each(tide);
        gather(&pool, &stream);
        (12..14).for_each(tide);
        assert!(is_lenient());
        // One in three short blocks stays, amid long ones that go.
        let pairs: Vec<_> = (0..30).map(|_| (alloc(1), alloc(31))).collect();
        let stay: Vec<_> = pairs.iter().map(|pair| pair.0).step_by(3).collect();
        let go = pairs.into_iter().flat_map(|(short, long)| [short, long]).filter(|ptr| !stay.contains(ptr));
        free(&pool, &stream, go);
        let reserved = pool.reserved().high;
        tide(14);
        assert!(!is_lenient());
        assert_eq!(pool.reserved().high, reserved, "before it costs memory");
        free(&pool, &stream, stay);
        pool.check().unwrap();
    }

    // ---- at any time ---------------------------------------------------------------------------------

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Alloc { units: u64, stream: usize },
        Free { which: prop::sample::Index },
        Gather { stream: usize },
        Shorten,
        Order,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (1u64..200, 0usize..2).prop_map(|(units, stream)| Step::Alloc { units, stream }),
            5 => any::<prop::sample::Index>().prop_map(|which| Step::Free { which }),
            1 => (0usize..2).prop_map(|stream| Step::Gather { stream }),
            1 => Just(Step::Shorten),
            1 => Just(Step::Order),
        ];
        prop::collection::vec(step, 1..120)
    }

    fn run(steps: &[Step]) {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let checker = CheckerDevice::new(sim.clone());
        let context = Context::new(checker.clone());
        let pool = Pool::builder(&context).build().unwrap();
        let streams = [(); 2].map(|()| context.create_stream().unwrap());
        let mut live: Vec<(DevicePtr, BlockId, usize)> = Vec::new();
        let release = |(ptr, block, stream): (DevicePtr, BlockId, usize)| {
            checker.used(block, streams[stream].handle());
            _ = checker.freed(block, streams[stream].handle());
            pool.free(ptr, &streams[stream]).unwrap();
        };
        for step in steps {
            match *step {
                Step::Alloc { units, stream } => {
                    let bytes = units * 300_000;
                    let ptr = pool.alloc(bytes, &streams[stream]).unwrap();
                    let block = checker.allocated(ptr, bytes, streams[stream].handle());
                    checker.used(block, streams[stream].handle());
                    live.push((ptr, block, stream));
                }
                Step::Free { which } if !live.is_empty() => {
                    release(live.swap_remove(which.index(live.len())));
                }
                Step::Free { .. } => {}
                Step::Gather { stream } => gather(&pool, &streams[stream]),
                Step::Shorten => {
                    sim.advance_to(sim.now() + Duration::from_secs(10));
                    pool.inner().shorten(&mut pool.inner().state.lock());
                }
                Step::Order => streams[0].synchronize().unwrap(),
            }
            pool.check().unwrap();
            checker.verify().unwrap();
        }
        live.drain(..).for_each(release);
        context.synchronize().unwrap();
        pool.destroy().unwrap();
        checker.verify().unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pages_may_be_gathered_and_shortened_at_any_time(steps in steps()) {
            run(&steps);
        }
    }
}
