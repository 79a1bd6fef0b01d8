//! Random programs over two simulated devices: copies between them, kernels that use the other's memory, and access that is
//! given and taken back. The checker knows which device has access to what, and what is ordered.
//!
//! The program owns buffers, so that the library orders what it does. A kernel of the other device is ordered by the program
//! as the documentation says: the stream waits for the buffer's, the buffer is given to the device, and the use is recorded.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::sim::{Call, Hold, SimDevice, SimOptions};
use millpond::device::{DeviceError, StreamHandle};
use millpond::testing::checker::{BlockId, CheckerDevice};
use millpond::{Buffer, Context, Error, Pool, ReusePolicies, Stream};
use proptest::prelude::*;

use super::options::GRANULARITY;

/// Streams of each device.
const STREAMS: usize = 2;

#[derive(Debug, Clone)]
pub(crate) struct Options {
    capacity: u64,
    virtual_memory: bool,
    reuse: (bool, bool, bool),
    /// Who may use each pool: nobody else, the other device, all.
    for_peers: [u8; 2],
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    New {
        gpu: usize,
        stream: usize,
        bytes: u64,
    },
    Drop {
        block: usize,
    },
    Write {
        block: usize,
    },
    /// To a new buffer.
    Copy {
        block: usize,
        gpu: usize,
        stream: usize,
    },
    /// To a buffer that there is, if one has the length.
    CopyOver {
        block: usize,
        to: usize,
    },
    Kernel {
        block: usize,
        gpu: usize,
        stream: usize,
    },
    Allow {
        gpu: usize,
    },
    TakeBack {
        gpu: usize,
    },
    Trim {
        gpu: usize,
    },
    Synchronize {
        gpu: usize,
    },
    Advance {
        micros: u64,
    },
    Hold {
        gpu: usize,
        stream: usize,
    },
    Release,
    /// The next call but so many of a kind fails.
    Fail {
        call: usize,
        nth: u64,
    },
}

pub(crate) fn options() -> impl Strategy<Value = Options> {
    let all = (6..24_u64, prop::bool::weighted(0.8), any::<(bool, bool, bool)>(), [0..3_u8, 0..3_u8]);
    all.prop_map(|(capacity, virtual_memory, reuse, for_peers)| Options {
        capacity,
        virtual_memory,
        reuse,
        for_peers,
    })
}

/// Programs whose streams are held, or whose calls fail.
pub(crate) fn steps(fails: bool) -> impl Strategy<Value = Vec<Step>> {
    let (gpu, stream, block) = (0..2_usize, 0..STREAMS, any::<usize>());
    let place = (gpu.clone(), stream.clone());
    let bytes = prop_oneof![1..20_000_u64, 900_000..1_200_000_u64, 1_048_576..9_437_184_u64];
    let disturb = if fails {
        (any::<usize>(), 1..6_u64).prop_map(|(call, nth)| Step::Fail { call, nth }).boxed()
    } else {
        let hold = place.clone().prop_map(|(gpu, stream)| Step::Hold { gpu, stream });
        prop_oneof![hold, Just(Step::Release)].boxed()
    };
    let step = prop_oneof![
        6 => (place.clone(), bytes).prop_map(|((gpu, stream), bytes)| Step::New { gpu, stream, bytes }),
        5 => block.prop_map(|block| Step::Drop { block }),
        2 => block.prop_map(|block| Step::Write { block }),
        5 => (block, place.clone()).prop_map(|(block, (gpu, stream))| Step::Copy { block, gpu, stream }),
        3 => (block, block).prop_map(|(block, to)| Step::CopyOver { block, to }),
        4 => (block, place).prop_map(|(block, (gpu, stream))| Step::Kernel { block, gpu, stream }),
        1 => gpu.clone().prop_map(|gpu| Step::Allow { gpu }),
        1 => gpu.clone().prop_map(|gpu| Step::TakeBack { gpu }),
        1 => gpu.clone().prop_map(|gpu| Step::Trim { gpu }),
        1 => gpu.prop_map(|gpu| Step::Synchronize { gpu }),
        1 => (0..5000_u64).prop_map(|micros| Step::Advance { micros }),
        2 => disturb,
    ];
    prop::collection::vec(step, 1..60)
}

struct Gpu {
    sim: Arc<SimDevice>,
    checker: Arc<CheckerDevice>,
    context: Context,
    pool: Pool,
    streams: Vec<Stream>,
}

struct Block {
    gpu: usize,
    buffer: Buffer<u8>,
    checked: BlockId,
}

/// See the [module](self).
pub(crate) struct World {
    gpus: Vec<Gpu>,
    blocks: Vec<Block>,
    holds: Vec<(usize, Hold)>,
    fails: bool,
}

impl World {
    pub(crate) fn new(options: &Options, fails: bool) -> Self {
        let of_sim = SimOptions::default()
            .capacity(options.capacity * GRANULARITY)
            .virtual_memory(options.virtual_memory);
        let sims = SimDevice::group(2, of_sim).unwrap();
        let checkers = CheckerDevice::group(sims.iter().map(|sim| sim.clone() as _));
        let contexts = [0, 1].map(|gpu: usize| Context::new(checkers[gpu].clone()));
        let (follow_event_dependencies, opportunistic, internal_dependencies) = options.reuse;
        let reuse = ReusePolicies { follow_event_dependencies, opportunistic, internal_dependencies };
        let gpu = |gpu: usize| {
            let context = contexts[gpu].clone();
            let builder = Pool::builder(&context).live(false).reuse(reuse);
            let builder = match options.for_peers[gpu] {
                0 => builder,
                1 => builder.accessible_from([&contexts[1 - gpu]]),
                _ => builder.accessible_from_all(),
            };
            let streams = (0..STREAMS).map(|_| context.create_stream().unwrap()).collect();
            let (sim, checker) = (sims[gpu].clone(), checkers[gpu].clone());
            Gpu { sim, checker, pool: builder.build().unwrap(), context, streams }
        };
        Self { gpus: vec![gpu(0), gpu(1)], blocks: Vec::new(), holds: Vec::new(), fails }
    }

    pub(crate) fn run(mut self, steps: Vec<Step>) -> Result<(), String> {
        for (at, step) in steps.into_iter().enumerate() {
            let shown = format!("step {at}, {step:?}");
            self.take(step).and_then(|()| self.check()).map_err(|why| format!("{shown}: {why}"))?;
        }
        self.end().map_err(|why| format!("at the end: {why}"))
    }

    fn check(&self) -> Result<(), String> {
        self.gpus.iter().try_for_each(|gpu| gpu.pool.check()).map_err(|error| error.to_string())?;
        self.gpus[0].checker.verify().map_err(|report| report.to_string())
    }

    /// What a call gave, if the program can go on without it.
    fn allow<T>(&self, result: Result<T, impl Into<Error>>) -> Result<Option<T>, String> {
        let error = match result {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error.into(),
        };
        match &error {
            Error::OutOfMemory(_) | Error::BadOption { .. } => Ok(None),
            Error::Device(DeviceError::Driver { .. }) if self.fails => Ok(None),
            Error::Device(DeviceError::Invalid { what, .. })
                if !self.holds.is_empty() && what.contains("held") =>
            {
                Ok(None)
            }
            _ => Err(error.to_string()),
        }
    }

    fn pick(&self, block: usize) -> Option<usize> {
        block.checked_rem(self.blocks.len())
    }

    fn handle(&self, gpu: usize, stream: usize) -> StreamHandle {
        self.gpus[gpu].streams[stream].handle()
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::New { gpu, stream, bytes } => _ = self.new_block(gpu, stream, bytes)?,
            Step::Drop { block } => {
                if let Some(block) = self.pick(block) {
                    self.drop_block(block);
                }
            }
            Step::Write { block } => {
                if let Some(block) = self.pick(block) {
                    let written = self.blocks[block].buffer.set_zero();
                    self.allow(written)?;
                }
            }
            Step::Copy { block, gpu, stream } => {
                if let Some(from) = self.pick(block)
                    && let Some(to) = self.new_block(gpu, stream, self.blocks[from].buffer.byte_len())?
                {
                    self.copy(from, to)?;
                }
            }
            Step::CopyOver { block, to } => {
                if let Some((from, to)) = self.pick(block).zip(self.pick(to))
                    && from != to
                    && self.blocks[from].buffer.len() == self.blocks[to].buffer.len()
                {
                    self.copy(from, to)?;
                }
            }
            Step::Kernel { block, gpu, stream } => {
                if let Some(block) = self.pick(block) {
                    self.kernel(block, gpu, stream)?;
                }
            }
            Step::Allow { gpu } => {
                let allowed = self.gpus[gpu].pool.allow_access(&self.gpus[1 - gpu].context);
                self.allow(allowed)?;
            }
            Step::TakeBack { gpu } => {
                let taken = self.gpus[gpu].pool.take_back_access(&self.gpus[1 - gpu].context);
                self.allow(taken)?;
            }
            Step::Trim { gpu } => _ = self.allow(self.gpus[gpu].pool.trim_to(0))?,
            Step::Synchronize { gpu } => _ = self.allow(self.gpus[gpu].context.synchronize())?,
            Step::Advance { micros } => {
                let sim = &self.gpus[0].sim;
                sim.advance_to(sim.now() + Duration::from_micros(micros));
            }
            Step::Hold { gpu, stream } => {
                if self.holds.len() < 8 {
                    self.holds.push((gpu, self.gpus[gpu].sim.hold(self.handle(gpu, stream)).unwrap()));
                }
            }
            Step::Release => self.release(),
            Step::Fail { call, nth } => {
                // One at a time: what a program does about a failure may not fail, too.
                self.gpus[0].sim.fail_no_more();
                let call = Call::ALL[call % Call::ALL.len()];
                let (code, name) = (1, "PLANNED".to_owned());
                let error = DeviceError::Driver { call: call.name(), code, name, text: String::new() };
                self.gpus[0].sim.fail_next(call, nth, error);
            }
        }
        Ok(())
    }

    fn release(&mut self) {
        for (gpu, hold) in self.holds.drain(..) {
            self.gpus[gpu].sim.release(hold);
        }
    }

    fn new_block(&mut self, gpu: usize, stream: usize, bytes: u64) -> Result<Option<usize>, String> {
        let Gpu { pool, streams, checker, .. } = &self.gpus[gpu];
        let made = self.allow(Buffer::new(pool, bytes as usize, &streams[stream]))?;
        let Some(buffer) = made else { return Ok(None) };
        let checked = checker.allocated(buffer.ptr(), bytes, streams[stream].handle());
        self.blocks.push(Block { gpu, buffer, checked });
        Ok(Some(self.blocks.len() - 1))
    }

    fn drop_block(&mut self, block: usize) {
        let Block { gpu, buffer, checked } = self.blocks.swap_remove(block);
        let _freed = self.gpus[gpu].checker.freed(checked, buffer.stream().handle());
        drop(buffer);
    }

    fn copy(&mut self, from: usize, to: usize) -> Result<(), String> {
        let mut target = self.blocks.swap_remove(to);
        // The last one took its place.
        let from = if from == self.blocks.len() { to } else { from };
        let source = &self.blocks[from];
        let copied = target.buffer.copy_from(&source.buffer);
        let (checker, handle) = (&self.gpus[target.gpu].checker, target.buffer.stream().handle());
        // Where it failed, it was waited for.
        if copied.is_ok() && (source.gpu, source.buffer.stream().handle()) != (target.gpu, handle) {
            checker.use_recorded(source.checked, handle);
        }
        self.blocks.push(target);
        self.allow(copied).map(drop)
    }

    /// A kernel of any device.
    fn kernel(&mut self, block: usize, gpu: usize, stream: usize) -> Result<(), String> {
        let Block { gpu: owner, buffer, checked } = &self.blocks[block];
        let (peer, stream) = (&self.gpus[gpu], &self.gpus[gpu].streams[stream]);
        if *owner != gpu && self.allow(buffer.allow_access(&peer.context))?.is_none() {
            return Ok(());
        }
        if self.allow(stream.wait_for(buffer.stream()))?.is_none() {
            return Ok(());
        }
        // Beside the calls that may fail.
        peer.sim.launch(stream.handle(), Duration::from_micros(50)).map_err(|error| error.to_string())?;
        peer.checker.used(*checked, stream.handle());
        if self.allow(buffer.record_use(stream))?.is_none() {
            peer.sim.fail_no_more();
            buffer.record_use(stream).map_err(|error| error.to_string())?;
        }
        peer.checker.use_recorded(*checked, stream.handle());
        Ok(())
    }

    fn end(mut self) -> Result<(), String> {
        self.gpus[0].sim.fail_no_more();
        self.release();
        while !self.blocks.is_empty() {
            self.drop_block(0);
        }
        for gpu in &self.gpus {
            gpu.context.synchronize().map_err(|error| error.to_string())?;
        }
        for gpu in &self.gpus {
            gpu.pool.trim_to(0).map_err(|error| error.to_string())?;
            if gpu.pool.reserved().current > 0 {
                return Err(format!("{} bytes are still held", gpu.pool.reserved().current));
            }
        }
        self.check()?;
        let checker = self.gpus[0].checker.clone();
        drop(self);
        checker.verify_nothing_left().map_err(|report| report.to_string())
    }
}
