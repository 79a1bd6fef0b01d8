//! The blocks that PyTorch has of each GPU's pool, and the figures that PyTorch asks for.
//!
//! PyTorch frees by address only, and means the stream of the allocation. It wants figures by its own names, split by the
//! size of blocks, and the blocks themselves in a snapshot. So there is one table a GPU, behind one lock.

use millpond::bindings::{Mutex, PerProcess};
use rustc_hash::FxHashMap;

use super::captures::PoolId;
use crate::devices::Device;
use crate::failure::MOST_DEVICES;
use crate::thread_tag;

/// What PyTorch rounds sizes to, in bytes.
const UNIT: u64 = 512;
/// Blocks up to this size are in PyTorch's small pool, in bytes.
const MOST_SMALL: u64 = 1 << 20;

/// A block that PyTorch has.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct TorchBlock {
    /// Bytes that were asked for.
    pub(super) requested: u64,
    /// The handle of the stream of the allocation.
    pub(super) stream: u64,
    /// The pool that it belongs to; zeros for the device's own memory.
    pub(super) pool: PoolId,
    /// Whether streams of other GPUs use it.
    pub(super) is_used_elsewhere: bool,
    /// Whether other processes were told of it.
    pub(super) is_shared: bool,
}

impl TorchBlock {
    /// Its size as PyTorch counts it.
    pub(super) fn bytes(&self) -> u64 {
        self.requested.next_multiple_of(UNIT)
    }

    fn kinds(&self) -> [usize; 2] {
        [0, if self.bytes() <= MOST_SMALL { 1 } else { 2 }]
    }
}

/// `c10::CachingAllocator::Stat`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Stat {
    pub(super) current: i64,
    pub(super) peak: i64,
    pub(super) allocated: i64,
    pub(super) freed: i64,
}

impl Stat {
    pub(super) fn raise(&mut self, by: u64) {
        self.current += by as i64;
        self.allocated += by as i64;
        self.peak = self.peak.max(self.current);
    }

    pub(super) fn lower(&mut self, by: u64) {
        self.current -= by as i64;
        self.freed += by as i64;
    }

    /// Lets what is counted up begin anew.
    pub(super) fn begin_anew(&mut self) {
        (self.allocated, self.freed) = (0, 0);
    }
}

/// `c10::CachingAllocator::StatArray`: of all blocks, the small ones, the large ones.
pub(super) type StatArray = [Stat; 3];

fn raise(stats: &mut StatArray, block: &TorchBlock, by: u64) {
    for stat in block.kinds() {
        stats[stat].raise(by);
    }
}

fn lower(stats: &mut StatArray, block: &TorchBlock, by: u64) {
    for stat in block.kinds() {
        stats[stat].lower(by);
    }
}

/// What the shim makes a `c10::CachingDeviceAllocator::DeviceStats` of.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Figures {
    /// Of live blocks: how many, their bytes rounded to 512, and the bytes asked for.
    pub(super) blocks: StatArray,
    pub(super) allocated: StatArray,
    pub(super) requested: StatArray,
    /// Physical pages, and their bytes.
    pub(super) pages: Stat,
    pub(super) reserved: Stat,
    pub(super) retries: i64,
    pub(super) out_of_memory: i64,
    pub(super) device_allocs: i64,
    pub(super) device_frees: i64,
}

/// Counts of the pool at the last reset.
#[derive(Debug, Default)]
struct Since {
    retries: u64,
    out_of_memory: u64,
    device_allocs: u64,
    device_frees: u64,
}

/// One GPU's.
#[derive(Debug, Default)]
pub(super) struct Book {
    live: FxHashMap<u64, TorchBlock>,
    /// By address: the GPUs and streams elsewhere that use a block.
    uses_elsewhere: FxHashMap<u64, Vec<(i32, u64)>>,
    counted: Figures,
    since: Since,
    /// The share of the GPU's memory that the program allowed itself, if it said so.
    pub(super) fraction: Option<f64>,
}

struct Books([Mutex<Book>; MOST_DEVICES]);

impl Default for Books {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

/// Of this process; a forked child has none of its parent's blocks.
static BOOKS: PerProcess<Books> = PerProcess::new(Default::default);

/// The book of a GPU.
pub(super) fn book(ordinal: usize) -> &'static Mutex<Book> {
    &BOOKS.get().0[ordinal]
}

impl Book {
    pub(super) fn enter(&mut self, ptr: u64, block: TorchBlock) {
        raise(&mut self.counted.blocks, &block, 1);
        raise(&mut self.counted.allocated, &block, block.bytes());
        raise(&mut self.counted.requested, &block, block.requested);
        self.live.insert(ptr, block);
    }

    /// Strikes a block out, with its uses by other GPUs.
    pub(super) fn strike(&mut self, ptr: u64) -> Option<(TorchBlock, Vec<(i32, u64)>)> {
        let block = self.live.remove(&ptr)?;
        lower(&mut self.counted.blocks, &block, 1);
        lower(&mut self.counted.allocated, &block, block.bytes());
        lower(&mut self.counted.requested, &block, block.requested);
        let uses = if block.is_used_elsewhere { self.uses_elsewhere.remove(&ptr) } else { None };
        Some((block, uses.unwrap_or_default()))
    }

    pub(super) fn get(&self, ptr: u64) -> Option<TorchBlock> {
        self.live.get(&ptr).copied()
    }

    /// Notes that other processes are told of the block. `false` where it is none.
    pub(super) fn note_shared(&mut self, ptr: u64) -> bool {
        let Some(block) = self.live.get_mut(&ptr) else { return false };
        block.is_shared = true;
        true
    }

    /// Notes that a stream of another GPU uses the block.
    pub(super) fn note_use_elsewhere(&mut self, ptr: u64, gpu: i32, stream: u64) {
        if let Some(block) = self.live.get_mut(&ptr) {
            block.is_used_elsewhere = true;
            let uses = self.uses_elsewhere.entry(ptr).or_default();
            if !uses.contains(&(gpu, stream)) {
                uses.push((gpu, stream));
            }
        }
    }

    /// The live blocks of one pool, or of all, in the order of their addresses.
    pub(super) fn live(&self, of: Option<PoolId>) -> Vec<(u64, TorchBlock)> {
        let wanted = self.live.iter().filter(|(_, block)| of.is_none_or(|of| block.pool == of));
        let mut live: Vec<_> = wanted.map(|(ptr, block)| (*ptr, *block)).collect();
        live.sort_unstable_by_key(|(ptr, _)| *ptr);
        live
    }

    /// Bytes in live blocks now.
    pub(super) fn allocated(&self) -> u64 {
        self.counted.allocated[0].current as u64
    }

    /// All figures, with those that the pool counts.
    pub(super) fn figures(&self, device: &Device) -> Figures {
        let stats = device.pool.stats();
        let (made, gone) = (stats.calls.create + stats.calls.alloc, stats.calls.release + stats.calls.free);
        let pages = made.saturating_sub(gone) as i64;
        let (reserved, most) = thread_tag::reserved(device);
        Figures {
            pages: Stat { current: pages, peak: pages, allocated: made as i64, freed: gone as i64 },
            reserved: Stat { current: reserved as i64, peak: most as i64, ..Stat::default() },
            retries: (stats.retries - self.since.retries) as i64,
            out_of_memory: (stats.out_of_memory - self.since.out_of_memory) as i64,
            device_allocs: (made - self.since.device_allocs) as i64,
            device_frees: (gone - self.since.device_frees) as i64,
            ..self.counted
        }
    }

    pub(super) fn reset_peaks(&mut self, device: &Device) {
        device.pool.reset_high_water();
        let Figures { blocks, allocated, requested, .. } = &mut self.counted;
        for stat in [blocks, allocated, requested].into_iter().flatten() {
            stat.peak = stat.current;
        }
    }

    pub(super) fn reset_accumulated(&mut self, device: &Device) {
        let stats = device.pool.stats();
        self.since = Since {
            retries: stats.retries,
            out_of_memory: stats.out_of_memory,
            device_allocs: stats.calls.create + stats.calls.alloc,
            device_frees: stats.calls.release + stats.calls.free,
        };
        let Figures { blocks, allocated, requested, .. } = &mut self.counted;
        for stat in [blocks, allocated, requested].into_iter().flatten() {
            stat.begin_anew();
        }
    }
}
