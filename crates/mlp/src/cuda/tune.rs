//! Choosing an algorithm for a product, by rule.
//!
//! Nothing is timed: two runs choose the same, and round the same.

use super::cublaslt::{Candidate, Described, Operands, Scratch};
use crate::{Error, Memory, Result};

/// Suggestions of the library that are looked at.
const CANDIDATES: usize = 12;
/// Scratch memory that an algorithm may need, in bytes: a product of 64 × 784 split over 32 parts fits.
const WORKSPACE: usize = 8 << 20;

/// A product and the way to compute it.
#[derive(Debug)]
pub(super) struct Plan {
    described: Described,
    candidate: Candidate,
}

impl Plan {
    /// Bytes of scratch memory that it needs.
    pub(super) fn workspace(&self) -> usize {
        self.candidate.workspace
    }

    /// Queues the product.
    ///
    /// # Safety
    /// As for [`Described::run`].
    pub(super) unsafe fn run(&self, operands: Operands, scratch: Scratch, memory: &Memory) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.described.run(&self.candidate, operands, scratch, memory.stream().handle()) }
    }
}

/// The way to compute a product.
pub(super) fn choose(described: Described) -> Result<Plan> {
    let candidates = described.candidates::<CANDIDATES>(WORKSPACE)?;
    let Some(candidate) = candidates.first().copied() else {
        return Err(Error::Library {
            library: "cuBLASLt",
            what: String::from("it has no algorithm for a product of this shape"),
        });
    };
    Ok(Plan { described, candidate })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t as Setting;
    use millpond::{Context, Pool};

    use super::super::cublaslt::Product;
    use super::super::driver::{self, TimedEvent};
    use super::super::engine::Engine;
    use super::*;

    const RUNS: usize = 20;

    /// Prints what each way to compute the products of a step takes, in a graph of many.
    #[test]
    #[ignore = "needs a CUDA GPU; prints times, and is slow under compute-sanitizer"]
    fn ways_to_multiply_are_timed() {
        let device = millpond::device::DeviceName::cuda(0).open().unwrap();
        let context = Context::new(device);
        let pool = Pool::builder(&context).build().unwrap();
        let memory = Memory::new(Arc::new(pool), context.create_stream().unwrap());
        let n = 784;
        for tf32 in [false, true] {
            let engine = Engine::shared(0, tf32).unwrap();
            engine.enter().unwrap();
            for (name, product, parts) in [
                ("forward", Product::plain((64, n), (n, n), true), 1),
                ("dx whole", Product::right_transposed((64, n), (n, n), 1), 1),
                ("dx 7 parts", Product::right_transposed((64, n), (n, n), 7), 7),
                ("dx 4 parts", Product::right_transposed((64, n), (n, n), 4), 4),
                ("dw", Product::left_transposed((64, n), (64, n)), 1),
                ("dw head", Product::left_transposed((64, n), (64, 10)), 1),
                ("head", Product::plain((64, n), (n, 10), false), 1),
                ("forward 1000", Product::plain((1000, n), (n, n), true), 1),
            ] {
                let described = engine.lt.describe(product).unwrap();
                let mut all = described.candidates::<CANDIDATES>(WORKSPACE).unwrap();
                let splits: Vec<_> = all
                    .iter()
                    .flat_map(|whole| {
                        [2, 3, 4, 6, 7, 12, 14].map(|parts| described.split(whole, parts, WORKSPACE))
                    })
                    .flatten()
                    .collect();
                let first = all.len();
                all.extend(splits);
                let [left, right] = [0, 1].map(|_| memory.zeroed::<f32>(1000, n).unwrap());
                let out = memory.zeroed::<f32>(1000 * parts, n).unwrap();
                let scratch = memory.zeroed::<u8>(1, WORKSPACE).unwrap();
                let scratch = Scratch { at: scratch.ptr(), bytes: WORKSPACE };
                let added = name.starts_with("dw").then_some(-0.0);
                let operands = Operands { left: left.ptr(), right: right.ptr(), out: out.ptr(), added };
                let mut rows = Vec::new();
                for (at, candidate) in all.iter().enumerate() {
                    // SAFETY: the operands are large enough for each of the products.
                    let run =
                        || unsafe { described.run(candidate, operands, scratch, memory.stream().handle()) };
                    if run().is_err() {
                        continue;
                    }
                    driver::begin_capture(memory.stream()).unwrap();
                    for _ in 0..RUNS {
                        run().unwrap();
                    }
                    let graph = driver::end_capture(memory.stream()).unwrap();
                    let mut least = f32::INFINITY;
                    for _ in 0..3 {
                        let (start, end) = (TimedEvent::new().unwrap(), TimedEvent::new().unwrap());
                        start.record(memory.stream()).unwrap();
                        // SAFETY: as above.
                        unsafe { graph.launch(memory.stream()) }.unwrap();
                        end.record(memory.stream()).unwrap();
                        least = least.min(end.since(&start).unwrap());
                    }
                    rows.push((least * 1e3 / RUNS as f32, at, candidate));
                }
                let show = |(time, at, candidate): &(f32, usize, &Candidate)| {
                    let setting = |which| candidate.setting(which).map_or(-1, i64::from);
                    println!(
                        "{name:12} tf32={tf32} #{at:<3}{} {time:7.2} us id {} tile {} stages {} splitk {} red {} swz {} custom {} inner {} cluster {} ws {}",
                        if *at < first { ' ' } else { 's' },
                        setting(Setting::CUBLASLT_ALGO_CONFIG_ID),
                        setting(Setting::CUBLASLT_ALGO_CONFIG_TILE_ID),
                        setting(Setting::CUBLASLT_ALGO_CONFIG_STAGES_ID),
                        setting(Setting::CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                        setting(Setting::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                        setting(Setting::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
                        setting(Setting::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
                        setting(Setting::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
                        setting(Setting::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
                        candidate.workspace
                    );
                };
                rows.iter().filter(|(_, at, _)| *at < 3).for_each(show);
                rows.sort_by(|a, b| a.0.total_cmp(&b.0));
                rows.iter().take(5).for_each(show);
            }
        }
    }
}
