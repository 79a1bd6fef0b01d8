//! Random programs over two host devices: whatever is copied, freed, trimmed and remapped, each buffer holds the bytes that the
//! program gave it last.

use millpond::device::host::{HostDevice, HostOptions};
use millpond::{Buffer, Context, Error, Pool, Stream};

use super::peers::Step;
use crate::shared::are_all;

/// Little enough that programs run out of it.
const CAPACITY: u64 = 48 << 20;

struct Gpu {
    context: Context,
    pool: Pool,
    streams: Vec<Stream>,
}

struct Block {
    buffer: Buffer<u8>,
    value: u8,
}

/// See the [module](self).
pub(crate) struct World {
    gpus: [Gpu; 2],
    blocks: Vec<Block>,
    turn: u8,
}

impl World {
    pub(crate) fn new() -> Self {
        let gpus = [0, 1].map(|_| {
            let device = HostDevice::with_options(HostOptions::default().capacity(CAPACITY)).unwrap();
            let context = Context::new(device);
            let pool = Pool::builder(&context).build().unwrap();
            let streams = (0..2).map(|_| context.create_stream().unwrap()).collect();
            Gpu { context, pool, streams }
        });
        Self { gpus, blocks: Vec::new(), turn: 0 }
    }

    pub(crate) fn run(mut self, steps: Vec<Step>) {
        for step in steps {
            self.take(step);
        }
        self.blocks.iter().for_each(Block::check);
        self.blocks.clear();
        for gpu in &self.gpus {
            gpu.context.synchronize().unwrap();
            gpu.pool.trim_to(0).unwrap();
            gpu.pool.check().unwrap();
            assert_eq!(gpu.pool.reserved().current, 0);
        }
    }

    fn pick(&self, block: usize) -> Option<usize> {
        block.checked_rem(self.blocks.len())
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::New { gpu, stream, bytes } => _ = self.new_block(gpu, stream, bytes),
            Step::Drop { block } => {
                if let Some(block) = self.pick(block) {
                    self.blocks.swap_remove(block);
                }
            }
            Step::Write { block } => {
                if let Some(block) = self.pick(block) {
                    self.turn = self.turn.wrapping_add(1);
                    self.blocks[block].write(self.turn);
                }
            }
            Step::Copy { block, gpu, stream } => {
                if let Some(from) = self.pick(block)
                    && let Some(to) = self.new_block(gpu, stream, self.blocks[from].buffer.byte_len())
                {
                    self.copy(from, to);
                }
            }
            Step::CopyOver { block, to } => {
                if let Some((from, to)) = self.pick(block).zip(self.pick(to))
                    && from != to
                    && self.blocks[from].buffer.len() == self.blocks[to].buffer.len()
                {
                    self.copy(from, to);
                }
            }
            // Looks at the bytes, which takes the host a wait.
            Step::Kernel { block, .. } => {
                if let Some(block) = self.pick(block) {
                    self.blocks[block].check();
                }
            }
            Step::Allow { gpu } => self.gpus[gpu].pool.allow_access(&self.gpus[1 - gpu].context).unwrap(),
            Step::TakeBack { gpu } => {
                self.gpus[gpu].pool.take_back_access(&self.gpus[1 - gpu].context).unwrap();
            }
            Step::Trim { gpu } => _ = self.gpus[gpu].pool.trim_to(0).unwrap(),
            Step::Synchronize { gpu } => self.gpus[gpu].context.synchronize().unwrap(),
            Step::Advance { .. } | Step::Hold { .. } | Step::Release | Step::Fail { .. } => {}
        }
    }

    fn new_block(&mut self, gpu: usize, stream: usize, bytes: u64) -> Option<usize> {
        let Gpu { pool, streams, .. } = &self.gpus[gpu];
        let mut block = match Buffer::new(pool, bytes as usize, &streams[stream]) {
            Ok(buffer) => Block { buffer, value: 0 },
            Err(Error::OutOfMemory(_)) => return None,
            Err(error) => panic!("{error}"),
        };
        self.turn = self.turn.wrapping_add(1);
        block.write(self.turn);
        self.blocks.push(block);
        Some(self.blocks.len() - 1)
    }

    fn copy(&mut self, from: usize, to: usize) {
        let mut target = self.blocks.swap_remove(to);
        // The last one took its place.
        let from = if from == self.blocks.len() { to } else { from };
        target.buffer.copy_from(&self.blocks[from].buffer).unwrap();
        target.value = self.blocks[from].value;
        self.blocks.push(target);
    }
}

impl Block {
    fn write(&mut self, value: u8) {
        self.buffer.copy_from_slice(&vec![value; self.buffer.len()]).unwrap();
        self.value = value;
    }

    fn check(&self) {
        let bytes = self.buffer.to_vec().unwrap();
        assert!(are_all(&bytes, self.value), "{:?} is not all {}", self.buffer, self.value);
    }
}
