//! The calls during which host memory is refused, and what they find.

use std::cell::RefCell;
use std::fmt::Write;
use std::time::Duration;

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{DeviceError, DevicePtr};
use millpond::{
    Advice, Budget, Buffer, CapturePool, Capturing, Context, Error, Event, Keep, Place, Pool, PoolBuilder,
    Result, ReusePolicies, Stream, Workspace,
};

use super::refusing::{Spared, refuse, spared};
use super::shared::{Freeing, KIB, MIB};

/// What a call finds, and leaves as it was but for the blocks.
pub(crate) struct Bench {
    pub sim: std::sync::Arc<SimDevice>,
    pub context: Context,
    pub pool: Pool,
    pub streams: Vec<Stream>,
    /// Blocks, to be freed at the end.
    pub live: RefCell<Vec<DevicePtr>>,
    pub events: Vec<Event>,
    captures: RefCell<Vec<(CapturePool, Option<Capturing>)>>,
    buffers: RefCell<Vec<Buffer<u8>>>,
    text: RefCell<String>,
    /// Which allocation of another thread is refused.
    pub number: u64,
}

/// `None` where the host refused memory. Anything else that is wrong is the test's to find.
fn unless_refused<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::HostMemory { .. } | Error::Device(DeviceError::HostMemory { .. })) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Elements that are read, for which the host may have no memory. The simulated device has none to give.
fn read_or_refused<T>(result: Result<T>) {
    match result {
        Err(Error::HostMemory { .. } | Error::Device(DeviceError::Unsupported { .. })) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a simulated device has no elements"),
    }
}

impl Bench {
    fn with(options: SimOptions, build: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let sim = SimDevice::new(options).unwrap();
        let context = Context::new(std::sync::Arc::new(Spared(sim.clone())));
        let pool = build(Pool::builder(&context)).build().unwrap();
        Self {
            sim,
            pool,
            streams: (0..10).map(|_| context.create_stream().unwrap()).collect(),
            context,
            live: RefCell::new(Vec::with_capacity(10_000)),
            events: Vec::with_capacity(100),
            captures: RefCell::new(Vec::with_capacity(10)),
            buffers: RefCell::new(Vec::with_capacity(10)),
            text: RefCell::new(String::with_capacity(100_000)),
            number: 0,
        }
    }

    fn new() -> Self {
        Self::with(SimOptions::default(), |builder| builder)
    }

    /// With blocks of these lengths.
    fn holding(self, lengths: impl IntoIterator<Item = u64>) -> Self {
        for (at, bytes) in lengths.into_iter().enumerate() {
            let stream = &self.streams[at % 3];
            self.live.borrow_mut().push(self.pool.alloc(bytes, stream).unwrap());
        }
        self
    }

    fn alloc(&self, bytes: u64) {
        self.alloc_on(bytes, 0);
    }

    fn alloc_on(&self, bytes: u64, stream: usize) {
        let ptr = unless_refused(self.pool.alloc(bytes, &self.streams[stream]));
        self.live.borrow_mut().extend(ptr);
    }

    /// Frees what is live and `which` picks, by its number.
    fn free(&self, stream: impl Fn(usize) -> usize, which: impl Fn(usize) -> bool) {
        let mut at = 0;
        self.live.borrow_mut().retain(|ptr| {
            at += 1;
            if which(at) {
                self.pool.free_block(*ptr, &self.streams[stream(at)]).unwrap();
            }
            !which(at)
        });
    }

    fn free_every_other(&self) {
        self.free(|_| 0, |at| at % 2 == 0);
    }

    /// Asserts that what is left is whole: it serves, and goes back.
    pub(crate) fn finish(&self) {
        self.captures.borrow_mut().clear();
        self.buffers.borrow_mut().clear();
        self.pool.wake().unwrap();
        self.pool.check().unwrap();
        self.alloc(4096);
        self.alloc(3 * MIB);
        self.free(|_| 0, |_| true);
        self.context.synchronize().unwrap();
        self.pool.check().unwrap();
        let stats = self.pool.stats();
        assert_eq!((stats.blocks.current, stats.allocated.current), (0, 0));
        self.pool.trim_to(0).unwrap();
        self.pool.check().unwrap();
        assert_eq!(self.pool.reserved().current, 0, "memory is lost");
    }
}

pub(crate) struct Call {
    pub name: &'static str,
    pub bench: fn() -> Bench,
    pub act: fn(&Bench),
}

const fn call(name: &'static str, bench: fn() -> Bench, act: fn(&Bench)) -> Call {
    Call { name, bench, act }
}

/// Blocks of many lengths on several streams.
fn many() -> Bench {
    Bench::new().holding((0..200).map(|at| (3 + at % 7) * MIB))
}

/// Half of them free, in pieces.
fn pieces() -> Bench {
    let bench = many();
    bench.free_every_other();
    bench
}

/// The same, freed on several streams, whose work is not complete.
fn busy() -> Bench {
    let bench = many();
    bench
        .streams
        .iter()
        .for_each(|stream| bench.sim.launch(stream.handle(), Duration::from_secs(1)).unwrap());
    bench.free(|at| at % 10, |at| at % 7 != 0);
    bench
}

fn small() -> Bench {
    Bench::new().holding((0..3000).map(|at| 512 << (at % 4)))
}

fn limited() -> Bench {
    let bench = Bench::with(SimOptions::default(), |builder| builder.hard_limit(600 * MIB));
    let bench = bench.holding((0..90).map(|at| (3 + at % 7) * MIB));
    bench.free_every_other();
    bench
}

/// On a device without virtual memory.
fn segments() -> Bench {
    let bench = Bench::with(SimOptions::default().virtual_memory(false), |builder| builder);
    let bench = bench.holding((0..30).map(|at| (3 + at % 7) * 5 * MIB));
    bench.free_every_other();
    bench
}

fn apart() -> Bench {
    let bench = Bench::with(SimOptions::default(), |builder| builder.reuse(ReusePolicies::NONE));
    let bench = bench.holding((0..200).map(|at| (3 + at % 7) * MIB));
    bench
        .streams
        .iter()
        .for_each(|stream| bench.sim.launch(stream.handle(), Duration::from_micros(1)).unwrap());
    bench.free(|at| at % 10, |_| true);
    bench.sim.advance_to(bench.sim.now() + Duration::from_secs(1));
    bench
}

/// Free side by side, each behind two streams of its own, which still work.
fn side_by_side(reuse: ReusePolicies) -> Bench {
    let bench = Bench::with(SimOptions::default(), |builder| builder.reuse(reuse));
    let bench = bench.holding((0..5).map(|at| 20 * MIB + at * 512));
    bench
        .streams
        .iter()
        .for_each(|stream| bench.sim.launch(stream.handle(), Duration::from_secs(1)).unwrap());
    for (ptr, stream) in bench.live.borrow().iter().zip(&bench.streams[4..]) {
        bench.pool.record_use(*ptr, stream).unwrap();
    }
    bench.free(|at| at - 1, |_| true);
    bench
}

fn with_events() -> Bench {
    let mut bench = busy();
    bench.events = bench.streams.iter().map(|stream| stream.record().unwrap()).collect();
    bench
}

fn with_capture() -> Bench {
    let bench = pieces();
    let memory = bench.pool.capture_pool();
    let capturing = memory.begin(&bench.streams[0]).unwrap();
    bench.captures.borrow_mut().push((memory, Some(capturing)));
    bench
}

fn with_captured() -> Bench {
    let bench = with_capture();
    (1..20).for_each(|at| bench.alloc(at * MIB));
    let from = bench.live.borrow().len() - 19;
    bench.free(|_| 0, |at| at > from);
    bench
}

fn with_buffers() -> Bench {
    let bench = pieces();
    for at in 1..4 {
        let buffer = Buffer::zeroed(&bench.pool, at << 20, &bench.streams[at]).unwrap();
        bench.buffers.borrow_mut().push(buffer);
    }
    bench
}

fn path() -> std::path::PathBuf {
    std::env::temp_dir().join("refusals.mprec")
}

fn recorded() -> Bench {
    let bench = pieces();
    bench.pool.start_recording(path()).unwrap();
    bench
}

/// What another thread does.
fn on_a_thread(bench: &Bench, work: impl FnOnce() + Send) {
    refuse(0);
    let number = bench.number;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            refuse(number);
            work();
            // What ends with the thread is refused too.
        });
    });
}

pub(crate) const CALLS: &[Call] = &[
    call("Context::new", Bench::new, |bench| {
        let sim = bench.sim.clone();
        drop(Context::new(sim));
    }),
    call("PoolBuilder::build", Bench::new, |bench| {
        drop(unless_refused(Pool::builder(&bench.context).build()))
    }),
    call("PoolBuilder::build with each option", Bench::new, |bench| {
        let builder = spared(|| {
            let budget = Budget::bytes(1 << 30);
            Pool::builder(&bench.context).name("a name of its own").budget(&budget)
        });
        let builder =
            builder.hard_limit(1 << 30).headroom(MIB).reuse(ReusePolicies::NONE).growth_allowance(0);
        let builder = builder.release_threshold(0).page_sizes(4 * MIB, 8 * MIB).min_alignment(1024);
        drop(unless_refused(builder.build()));
    }),
    call("PoolBuilder::build with a wrong option", Bench::new, |bench| {
        let builder = spared(|| Pool::builder(&bench.context));
        assert!(builder.min_alignment(3).build().is_err());
    }),
    call("PoolBuilder::build and record", Bench::new, |bench| {
        let builder = spared(|| Pool::builder(&bench.context).record(path()));
        match builder.build() {
            Ok(pool) => drop(pool),
            Err(Error::Recording { .. } | Error::HostMemory { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }),
    call("Context::default_pool, current_pool", Bench::new, |bench| {
        unless_refused(bench.context.default_pool());
        unless_refused(bench.context.set_current_pool(Some(&bench.pool)));
        unless_refused(bench.context.current_pool());
        unless_refused(bench.context.set_current_pool(None));
    }),
    call("Context::create_stream", Bench::new, |bench| drop(unless_refused(bench.context.create_stream()))),
    call("Context::default_stream, foreign_stream", Bench::new, |bench| {
        drop(unless_refused(bench.context.default_stream()));
        drop(unless_refused(bench.context.per_thread_stream()));
        // SAFETY: the stream is there until the end.
        drop(unless_refused(unsafe { bench.context.foreign_stream(bench.streams[1].handle()) }));
    }),
    call("drop of a stream", busy, |bench| {
        let stream = spared(|| bench.context.create_stream().unwrap());
        bench.sim.launch(stream.handle(), Duration::from_secs(1)).unwrap();
        drop(stream);
    }),
    call("Pool::alloc, a small one, the first", Bench::new, |bench| bench.alloc(1000)),
    call("Pool::alloc, a large one, the first", Bench::new, |bench| bench.alloc(3 * MIB)),
    call("Pool::alloc, a huge one, the first", Bench::new, |bench| bench.alloc(20 << 30)),
    call("Pool::alloc_aligned", pieces, |bench| {
        for (bytes, align) in [(1000, 4096), (5 * MIB + 1, 2 * MIB), (100 * KIB, 64 * KIB)] {
            let ptr = unless_refused(bench.pool.alloc_aligned(bytes, align, &bench.streams[0]));
            bench.live.borrow_mut().extend(ptr);
        }
    }),
    call("Pool::alloc_zeroed", pieces, |bench| {
        let ptr = unless_refused(bench.pool.alloc_zeroed(5 * MIB, &bench.streams[0]));
        bench.live.borrow_mut().extend(ptr);
    }),
    call("Pool::alloc, of what is free", pieces, |bench| (1..9).for_each(|at| bench.alloc(at * MIB))),
    call("Pool::alloc, with pages of free blocks", pieces, |bench| bench.alloc(700 * MIB)),
    call("Pool::alloc, with pages of free blocks and new ones", pieces, |bench| bench.alloc(7 << 30)),
    call("Pool::alloc, with pages of several streams", busy, |bench| bench.alloc(700 * MIB)),
    call("Pool::alloc, of what several streams use", busy, |bench| {
        (1..9).for_each(|at| bench.alloc_on(at * MIB, 9));
    }),
    call(
        "Pool::alloc, of what is joined first",
        || side_by_side(ReusePolicies::ALL),
        |bench| {
            bench.alloc_on(90 * MIB, 9);
        },
    ),
    call(
        "Pool::alloc_aligned, within what is joined first",
        || side_by_side(ReusePolicies::ALL),
        |bench| {
            let ptr = unless_refused(bench.pool.alloc_aligned(30 * MIB, 2 * MIB, &bench.streams[9]));
            bench.live.borrow_mut().extend(ptr);
        },
    ),
    call(
        "Pool::alloc, over what stays apart",
        || {
            let bench = side_by_side(ReusePolicies { internal_dependencies: false, ..ReusePolicies::ALL });
            bench.streams[..9].iter().for_each(|stream| bench.streams[9].wait_for(stream).unwrap());
            bench
        },
        |bench| bench.alloc_on(150 * MIB, 9),
    ),
    call("Pool::alloc, many small ones", small, |bench| {
        (0..2000).for_each(|at| bench.alloc(512 << (at % 6)))
    }),
    call("Pool::alloc, many large ones", pieces, |bench| {
        (0..300).for_each(|at| bench.alloc_on((1 + at % 9) * MIB, at as usize % 10));
    }),
    call("Pool::alloc, of segments", segments, |bench| (1..9).for_each(|at| bench.alloc(at * 20 * MIB))),
    call("Pool::alloc, under pressure", limited, |bench| {
        bench.alloc(200 * MIB);
        bench.alloc(2 * MIB);
    }),
    call("Pool::alloc, out of memory", limited, |bench| {
        let error = bench.pool.alloc(500 * MIB, &bench.streams[0]).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(_) | Error::HostMemory { .. }), "{error}");
    }),
    call("Pool::alloc, wrong requests", pieces, |bench| {
        bench.pool.alloc(u64::MAX, &bench.streams[0]).unwrap_err();
        bench.pool.alloc_aligned(1, 3, &bench.streams[0]).unwrap_err();
        assert_eq!(bench.pool.alloc(0, &bench.streams[0]), Ok(DevicePtr::NULL));
    }),
    call("Pool::sleep, free, wake", pieces, |bench| {
        unless_refused(bench.pool.sleep(Keep::InPinnedMemory));
        bench.free_every_other();
        unless_refused(bench.pool.sleep(Keep::InPinnedMemory));
        unless_refused(bench.pool.wake());
        unless_refused(bench.pool.wake());
    }),
    call("Pool::free, of a large block", many, |bench| bench.free(|_| 0, |at| at == 7)),
    call("Pool::free, in no order", many, |bench| {
        bench.free(|_| 0, |at| at % 2 == 0);
        bench.free(|_| 1, |at| at % 3 == 0);
        bench.free(|at| at % 10, |_| true);
    }),
    call("Pool::free, to magazines that are full", small, |bench| bench.free(|at| at % 3, |_| true)),
    call("Pool::free, of what is not live", pieces, |bench| {
        let ptr = bench.live.borrow()[0];
        // SAFETY: all of them are refused.
        unsafe {
            bench.pool.free(ptr.offset(512), &bench.streams[0]).unwrap_err();
            bench.pool.free(DevicePtr::new(512), &bench.streams[0]).unwrap_err();
            bench.context.free(DevicePtr::new(512), &bench.streams[0]).unwrap_err();
        }
    }),
    call("Context::free", pieces, |bench| {
        let ptr = bench.live.borrow_mut().pop().unwrap();
        bench.context.free_block(ptr, &bench.streams[0]).unwrap();
    }),
    call("pairs of Pool::alloc and free", Bench::new, |bench| {
        for at in 0..200 {
            bench.alloc(512 << (at % 13));
            bench.free(|_| at % 3, |_| true);
        }
    }),
    call("Pool::record_use, and the frees", pieces, |bench| {
        for ptr in bench.live.borrow().iter().take(5) {
            bench.streams.iter().for_each(|stream| _ = unless_refused(bench.pool.record_use(*ptr, stream)));
        }
        bench.free(|_| 0, |_| true);
    }),
    call("Pool::size_of, set_reuse, set_release_threshold", pieces, |bench| {
        bench.pool.size_of(bench.live.borrow()[0]).unwrap();
        bench.pool.set_reuse(bench.pool.reuse());
        bench.pool.set_release_threshold(bench.pool.release_threshold());
        bench.pool.reset_high_water();
        bench.pool.memory_info().unwrap();
    }),
    call("Stream::record, and drop of the event", busy, |bench| {
        bench.streams.iter().for_each(|stream| drop(unless_refused(stream.record())));
    }),
    call("Stream::wait, and Event::synchronize", with_events, |bench| {
        for (event, stream) in bench.events.iter().zip(bench.streams.iter().rev()) {
            unless_refused(stream.wait(event));
            unless_refused(event.query());
        }
        bench.events.iter().for_each(|event| _ = unless_refused(event.synchronize()));
    }),
    call("Stream::wait_for, of many", busy, |bench| {
        bench.streams[1..].iter().for_each(|stream| _ = unless_refused(bench.streams[0].wait_for(stream)));
        bench.alloc(50 * MIB);
    }),
    call("Stream::synchronize", busy, |bench| {
        bench.streams.iter().for_each(|stream| _ = unless_refused(stream.synchronize()))
    }),
    call("Context::synchronize", busy, |bench| {
        bench.pool.set_release_threshold(0);
        unless_refused(bench.context.synchronize());
    }),
    call("Pool::trim_to", pieces, |bench| {
        unless_refused(bench.context.synchronize());
        unless_refused(bench.pool.trim_to(800 * MIB));
        unless_refused(bench.pool.trim_to(0));
    }),
    call("Pool::trim_to, while streams work", busy, |bench| _ = unless_refused(bench.pool.trim_to(0))),
    call("Pool::trim_to, of what is apart", apart, |bench| _ = unless_refused(bench.pool.trim_to(0))),
    call("Pool::trim_to, of segments", segments, |bench| _ = unless_refused(bench.pool.trim_to(0))),
    call("Pool::stats", pieces, |bench| assert!(bench.pool.stats().allocations > 0)),
    call("Debug and Display", pieces, |bench| {
        let mut text = bench.text.borrow_mut();
        let Bench { context, pool, streams, .. } = bench;
        let _ = write!(text, "{pool:?} {context:?} {:?} {}", streams[0], pool.stats());
    }),
    call("Pool::check", pieces, |bench| bench.pool.check().unwrap()),
    call("CapturePool::begin, alloc, free, end", pieces, |bench| {
        let memory = bench.pool.capture_pool();
        let capturing = unless_refused(memory.begin(&bench.streams[0]));
        bench.captures.borrow_mut().push((memory, capturing));
        (1..9).for_each(|at| bench.alloc(at * MIB));
        let before = bench.live.borrow().len();
        bench.free(|_| 0, |at| at > before - 4);
        bench.captures.borrow_mut()[0].1 = None;
    }),
    call("drop of a Capturing, and of the CapturePool", with_captured, |bench| {
        bench.captures.borrow_mut()[0].1 = None;
        bench.captures.borrow_mut().clear();
    }),
    call("Buffer::zeroed, from_slice, copies", with_buffers, |bench| {
        let stream = &bench.streams[0];
        let mut elements = [0; 1000];
        let made =
            [Buffer::zeroed(&bench.pool, 1000, stream), Buffer::from_slice(&bench.pool, &elements, stream)];
        for mut buffer in made.into_iter().filter_map(unless_refused) {
            buffer.set_zero().unwrap();
            buffer.copy_from_slice(&elements).unwrap();
            read_or_refused(buffer.copy_to_slice(&mut elements));
            unless_refused(buffer.record_use(&bench.streams[2]));
        }
    }),
    call("Buffer::to_vec", with_buffers, |bench| {
        read_or_refused(bench.buffers.borrow()[0].to_vec());
    }),
    call("Buffer::prefetch, advise, residency", with_buffers, |bench| {
        let pool = spared(|| bench.context.managed().unwrap().build().unwrap());
        let buffer = spared(|| Buffer::<u8>::new(&pool, MIB as usize, &bench.streams[0]).unwrap());
        for stream in &bench.streams[..3] {
            unless_refused(buffer.prefetch(Place::Device, stream));
        }
        unless_refused(buffer.advise(Advice::ReadMostly(true)));
        unless_refused(buffer.residency());
        drop(buffer);
        spared(|| drop(pool));
    }),
    call("drop of a Buffer", with_buffers, |bench| bench.buffers.borrow_mut().clear()),
    call("Workspace", pieces, |bench| {
        if let Some(mut workspace) = unless_refused(Workspace::new(&bench.pool, 5 * MIB, &bench.streams[0])) {
            workspace.alloc::<f32>(100).unwrap();
            workspace.reset();
        }
    }),
    call("Budget::bytes, fraction", Bench::new, |bench| {
        drop(Budget::bytes(1));
        drop(Budget::fraction(bench.context.device().as_ref(), 0.5).unwrap());
        assert!(Budget::fraction(bench.context.device().as_ref(), 2.0).is_err());
    }),
    call("Pool::on_reclaim, on_out_of_memory, and their removal", Bench::new, |bench| {
        let number = bench.number;
        let id = bench.pool.on_reclaim(move |_| number > 0);
        bench.pool.remove_reclaim(id);
        let id = bench.pool.on_out_of_memory(move |_| assert!(number > 0));
        bench.pool.remove_out_of_memory(id);
    }),
    call("Pool::start_recording", pieces, |bench| match bench.pool.start_recording("/dev/null/none") {
        Err(Error::Recording { .. } | Error::HostMemory { .. }) => {}
        other => panic!("{other:?}"),
    }),
    call("Pool::stop_recording", recorded, |bench| drop(bench.pool.stop_recording())),
    call("Pool::alloc and free, recorded", recorded, |bench| {
        (1..20).for_each(|at| bench.alloc(at * 300 * KIB));
        bench.free(|at| at % 4, |at| at % 3 == 0);
    }),
    call("Pool::destroy", busy, |bench| {
        let pool = spared(|| Pool::builder(&bench.context).build().unwrap());
        let ptr = spared(|| pool.alloc(MIB, &bench.streams[0]).unwrap());
        pool.destroy().unwrap_err();
        bench.context.free_block(ptr, &bench.streams[0]).unwrap();
    }),
    call("drop of a Pool", busy, |bench| {
        let pool = spared(|| Pool::builder(&bench.context).build().unwrap());
        spared(|| {
            for at in 1..20 {
                let ptr = pool.alloc(at * MIB, &bench.streams[at as usize % 10]).unwrap();
                pool.free_block(ptr, &bench.streams[at as usize % 7]).unwrap();
            }
        });
        drop(pool);
    }),
    call("a thread's first Pool::alloc, free, and its end", pieces, |bench| {
        let (pool, stream) = (&bench.pool, &bench.streams[0]);
        on_a_thread(bench, || {
            for bytes in [1000, 5 * MIB] {
                if let Some(ptr) = unless_refused(pool.alloc(bytes, stream)) {
                    pool.free_block(ptr, stream).unwrap();
                }
            }
        });
    }),
    call("a thread's end", pieces, |bench| {
        let (pool, stream, number) = (&bench.pool, &bench.streams[0], bench.number);
        refuse(0);
        on_a_thread(bench, move || {
            spared(|| {
                let ptr = pool.alloc(1000, stream).unwrap();
                pool.free_block(ptr, stream).unwrap();
            });
            refuse(number);
        });
    }),
];
