//! Many blocks on one page, for those who open them: messages and device calls are counted.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millpond::device::DevicePtr;
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::{Buffer, Context, Pool, PoolBuilder, Stream};
use millpond_offers::{Offered, OpenedBlocks, PlacedName, offer_placed, withdraw};

const MIB: u64 = 1 << 20;

/// A process knows its offers by address, and simulated devices have the same ones: so one test runs at a time.
static ONE: Mutex<()> = Mutex::new(());

/// A process that offers blocks, and one that opens them. Here they are one.
struct Bench {
    _alone: MutexGuard<'static, ()>,
    sim: Arc<SimDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
    opened: OpenedBlocks,
    messages: Cell<usize>,
}

impl Bench {
    fn new(options: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let sim = SimDevice::new(SimOptions::default().capacity(16 << 30)).unwrap();
        let context = Context::new(sim.clone());
        let pool = options(Pool::builder(&context)).build().unwrap();
        let stream = context.create_stream().unwrap();
        let (opened, messages) = (OpenedBlocks::default(), Cell::new(0));
        Self { _alone: alone, sim, context, pool, stream, opened, messages }
    }

    fn offers(&self, count: usize, bytes: u64) -> Vec<(DevicePtr, PlacedName)> {
        let offer = |_| {
            let ptr = self.pool.alloc(bytes, &self.stream).unwrap();
            let offered = Offered { pool: self.pool.clone(), ptr, stream: self.stream.clone() };
            (ptr, offer_placed(offered).unwrap())
        };
        (0..count).map(offer).collect()
    }

    fn open(&self, name: &PlacedName) -> DevicePtr {
        let name = PlacedName::read(&name.text()).unwrap();
        let ask = || {
            self.messages.set(self.messages.get() + 1);
            name.open()
        };
        self.opened.open(name.place(), ask, &self.context, &self.stream).unwrap()
    }

    /// Returns whether it was the last on its page.
    fn close(&self, at: DevicePtr) -> bool {
        let Some(closed) = self.opened.close(at) else { return false };
        // SAFETY: nothing uses it.
        unsafe { closed.close(&self.stream) }.unwrap();
        self.context.synchronize().unwrap();
        true
    }

    /// Trims until the pool has so much allocated, and holds so much. The thread that answered has a block a moment longer than who
    /// opened it.
    fn until_left(&self, allocated: u64, reserved: u64) {
        let began = Instant::now();
        loop {
            self.pool.trim_to(0).unwrap();
            let left = (self.pool.allocated().current, self.pool.reserved().current);
            if left == (allocated, reserved) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{left:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// As PyTorch frees what it offered.
    fn free(&self, ptr: DevicePtr) {
        withdraw(ptr.raw());
        // SAFETY: allocated by `offers`, freed once, and nothing uses it.
        unsafe { self.pool.free(ptr, &self.stream) }.unwrap();
    }

    /// Messages, exports and imports of pages since the start.
    fn counts(&self) -> [u64; 3] {
        let calls = self.sim.calls();
        [self.messages.get() as u64, calls[Call::ExportPage], calls[Call::ImportPage]]
    }
}

/// Opens 1,600 blocks, looks at them, and closes them.
fn passes(bench: &Bench, bytes: u64, pages: u64) {
    let offers = bench.offers(1600, bytes);
    let before = bench.sim.calls();
    assert_eq!(before[Call::CreatePage], pages);
    let opened: Vec<_> = offers.iter().map(|(_, name)| bench.open(name)).collect();
    assert_eq!(bench.counts(), [pages; 3]);
    let mapped = bench.sim.calls();
    assert_eq!(mapped[Call::Map] - before[Call::Map], pages);
    let mut starts = opened.clone();
    starts.sort();
    assert!(starts.windows(2).all(|two| two[0].raw() + bytes <= two[1].raw()), "they lie apart");
    let last = opened.into_iter().filter(|at| bench.close(*at)).count();
    assert_eq!(last as u64, pages);
    let unmapped = bench.sim.calls()[Call::Unmap] - mapped[Call::Unmap];
    assert_eq!(unmapped, pages);
    offers.into_iter().for_each(|(ptr, _)| bench.free(ptr));
    bench.until_left(0, 0);
}

#[test]
fn small_blocks_take_a_message_and_an_import_for_each_page() {
    passes(&Bench::new(|pool| pool.page_sizes(2 * MIB, 2 * MIB)), 4096, 4);
}

#[test]
fn blocks_of_2_mib_take_a_message_and_an_import_for_each_long_page() {
    passes(&Bench::new(|pool| pool.page_sizes(32 * MIB, 32 * MIB)), 2 * MIB, 100);
}

#[test]
fn a_page_stays_as_long_as_any_block_on_it_is_open() {
    let bench = Bench::new(|pool| pool.page_sizes(2 * MIB, 2 * MIB));
    let offers = bench.offers(3, 4096);
    let [first, second, third] = [0, 1, 2].map(|at| bench.open(&offers[at].1));
    assert_eq!(bench.counts(), [1; 3]);
    assert_eq!(second.raw().wrapping_sub(first.raw()), offers[1].0.raw().wrapping_sub(offers[0].0.raw()));
    assert!(!bench.close(first));
    // All are freed, and the page is kept by what its first block is shared by.
    offers.iter().for_each(|(ptr, _)| bench.free(*ptr));
    bench.until_left(4096, 2 * MIB);
    assert!(!bench.close(second) && bench.close(third));
    bench.until_left(0, 0);
}

#[test]
fn a_block_that_is_open_twice_is_closed_twice() {
    let bench = Bench::new(|pool| pool);
    let offers = bench.offers(1, 4096);
    let (first, second) = (bench.open(&offers[0].1), bench.open(&offers[0].1));
    assert_eq!((first, bench.counts()[0]), (second, 1));
    assert!(!bench.close(first) && bench.close(second));
    assert!(bench.opened.close(first).is_none(), "nothing is open there");
    // It is asked for again.
    let again = bench.open(&offers[0].1);
    assert_eq!(bench.counts()[0], 2);
    assert!(bench.close(again));
    bench.free(offers[0].0);
}

#[test]
fn a_block_on_several_pages_holds_and_is_held_by_no_other() {
    let bench = Bench::new(|pool| pool.page_sizes(2 * MIB, 2 * MIB));
    let offers = bench.offers(2, 3 * MIB);
    let opened: Vec<_> = offers.iter().map(|(_, name)| bench.open(name)).collect();
    assert_eq!(bench.counts()[0], 2);
    assert!(bench.close(opened[0]));
    bench.free(offers[0].0);
    // The second alone.
    bench.until_left(3 * MIB, 4 * MIB);
    assert!(bench.close(opened[1]));
    bench.free(offers[1].0);
}

#[test]
fn blocks_of_another_pool_at_the_same_place_are_others() {
    let bench = Bench::new(|pool| pool);
    let offers = bench.offers(1, 4096);
    let first = bench.open(&offers[0].1);
    let text = offers[0].1.text();
    let mut parts: Vec<&str> = text.split('/').collect();
    let other = format!("{:x}", u64::from_str_radix(parts[5], 16).unwrap() + 1);
    parts[5] = &other;
    let name = PlacedName::read(&parts.join("/")).unwrap();
    let second = bench.open(&name);
    assert!(bench.counts()[0] == 2 && first != second);
    assert!(bench.close(first) && bench.close(second));
    bench.free(offers[0].0);
}

#[test]
fn what_is_opened_without_a_message_has_its_own_bytes() {
    let context = Context::host().unwrap();
    let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
    let values = [3, 5, 7];
    let blocks = values.map(|value| Buffer::from_slice(&pool, &[value; 4096], &stream).unwrap());
    stream.synchronize().unwrap();
    let (opened, messages) = (OpenedBlocks::default(), Cell::new(0));
    for (value, block) in values.into_iter().zip(&blocks) {
        let offered = Offered { pool: pool.clone(), ptr: block.ptr(), stream: stream.clone() };
        let name = offer_placed(offered).unwrap();
        let ask = || {
            messages.set(messages.get() + 1);
            name.open()
        };
        let at = opened.open(name.place(), ask, &context, &stream).unwrap();
        let bytes = std::ptr::with_exposed_provenance::<[u8; 4096]>(at.raw() as usize);
        // SAFETY: the block is mapped there, has as many bytes, and nothing writes to it.
        assert_eq!(unsafe { *bytes }, [value; 4096]);
        withdraw(block.ptr().raw());
    }
    assert_eq!(messages.get(), 1);
}
