//! Both traces through every allocator, with a pattern in each block: it is written in stream order
//! when the block is allocated, and is still there when it is freed.

use millpond::device::DevicePtr;
use millpond::device::host::{HostDevice, HostOptions};
use millpond::{Context, Stream};
use millpond_baselines::{NAMES, by_name};

use super::events::{self, Event};

/// Bytes looked at on each side of a block.
const EDGE: u64 = 4096;

struct Block {
    ptr: DevicePtr,
    bytes: u64,
    stream: usize,
}

struct World {
    context: Context,
    streams: Vec<Stream>,
    blocks: Vec<Block>,
}

impl World {
    fn new(context: &Context) -> Self {
        let streams = (0..6).map(|_| context.create_stream().unwrap()).collect();
        Self { context: context.clone(), streams, blocks: Vec::new() }
    }

    fn pattern(block: usize) -> u8 {
        (block % 251) as u8 + 1
    }

    fn write(&self, block: usize) {
        let &Block { ptr, bytes, stream } = &self.blocks[block];
        let stream = self.streams[stream].handle();
        // SAFETY: the block is live and of this size; that its memory is nobody else's is what is tested.
        unsafe { self.context.device().memset(ptr, Self::pattern(block), bytes, stream) }.unwrap();
    }

    fn check(&self, block: usize, name: &str) {
        let &Block { ptr, bytes, stream } = &self.blocks[block];
        let stream = &self.streams[stream];
        let edge = bytes.min(EDGE);
        for at in [ptr, ptr.offset(bytes - edge)] {
            let mut found = vec![0; edge as usize];
            // SAFETY: `found` is as long, and is neither touched nor freed before the synchronise.
            unsafe { self.context.device().copy_to_host(found.as_mut_ptr(), at, edge, stream.handle()) }
                .unwrap();
            stream.synchronize().unwrap();
            let kept = found.iter().all(|&byte| byte == Self::pattern(block));
            assert!(kept, "{name}: block {block} of {bytes} bytes was overwritten");
        }
    }
}

/// Replays a trace with sizes divided by `scale`.
fn replay(context: &Context, name: &str, trace: &str, scale: u64) {
    let allocator = by_name(name, context).unwrap();
    let mut world = World::new(context);
    for event in events::read(trace) {
        match event {
            Event::Alloc { block, stream, bytes } => {
                let bytes = (bytes / scale).max(1);
                let ptr = allocator.allocate(bytes, &world.streams[stream]).unwrap();
                world.blocks.push(Block { ptr, bytes, stream });
                world.write(block);
            }
            Event::Free { block } => {
                world.check(block, name);
                let &Block { ptr, stream, .. } = &world.blocks[block];
                // SAFETY: the block is the test's, and this the stream of all its work.
                unsafe { allocator.free(ptr, &world.streams[stream]) }.unwrap();
            }
            Event::Segment { .. } => {}
        }
    }
    context.synchronize().unwrap();
}

#[test]
fn no_block_of_a_job_is_overwritten_on_the_host() {
    for name in NAMES {
        let options = HostOptions::default().capacity(1 << 30);
        let context = Context::new(HostDevice::with_options(options).unwrap());
        for trace in [events::GNN, events::PIPELINE] {
            replay(&context, name, trace, 512);
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn no_block_of_a_job_is_overwritten_on_a_gpu() {
    let context = Context::cuda(0).unwrap();
    for name in NAMES {
        for trace in [events::GNN, events::PIPELINE] {
            replay(&context, name, trace, 1);
        }
        println!("{name}: every block kept its bytes");
    }
}
