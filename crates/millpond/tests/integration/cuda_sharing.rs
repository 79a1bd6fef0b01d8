//! Memory that two processes share, on GPUs: `sharing.rs` has the rest, without one.
//!
//! On a machine with a GPU: `cargo test -p millpond --test integration cuda_sharing:: -- --ignored --test-threads=1 --nocapture`, or
//! `scripts/gpu-test`, which leaves the tests of `two_gpus` out where there is one.

use std::thread::sleep;
use std::time::{Duration, Instant};

use millpond::{Buffer, Context, Error, Opened, Pool, Received, Stream};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::processes::{MEASURED, Other, hear, open_here, say, until};

const MIB: u64 = 1 << 20;
const FOR_EVER: Duration = Duration::from_secs(1000);

fn gpu(ordinal: usize) -> (Context, Pool, Stream) {
    let context = Context::cuda(ordinal).expect("a GPU");
    let pool = Pool::builder(&context).build().unwrap();
    let stream = context.create_stream().unwrap();
    (context, pool, stream)
}

fn numbers(count: usize) -> Vec<u32> {
    (0..count as u32).map(|number| number.wrapping_mul(2_654_435_761)).collect()
}

/// Work that takes a while: `rounds` times, 1 GiB is written.
fn keep_busy(pool: &Pool, stream: &Stream, rounds: usize) {
    let mut scratch = Buffer::<u8>::new(pool, 1 << 30, stream).unwrap();
    (0..rounds).for_each(|_| scratch.set_zero().unwrap());
}

/// Bytes go both ways between the GPUs with these numbers, in the order of the work.
fn both_ways(name: &str, (here, there): (usize, usize)) {
    const COUNT: usize = 20 << 20;
    Other::with(
        name,
        |other| {
            let (_context, pool, stream) = gpu(here);
            // So that the next begins inside a page.
            let _before = Buffer::<u8>::new(&pool, 3 << 20, &stream).unwrap();
            let mut buffer = Buffer::from_slice(&pool, &vec![0; COUNT], &stream).unwrap();
            stream.synchronize().unwrap();
            keep_busy(&pool, &stream, 200);
            buffer.copy_from_slice(&numbers(COUNT)).unwrap();
            let shared = buffer.share().unwrap();
            shared.send(&other.socket).unwrap();
            hear(&other.socket);
            shared.event().wait(&stream).unwrap();
            let doubled: Vec<_> = numbers(COUNT).iter().map(|number| number.wrapping_mul(2)).collect();
            assert!(buffer.to_vec().unwrap() == doubled);
            // And once more, from here, with work under way.
            keep_busy(&pool, &stream, 200);
            buffer.set_zero().unwrap();
            shared.event().record(&stream).unwrap();
            assert!(!shared.event().query().unwrap(), "its work is pending");
            say(&other.socket);
            hear(&other.socket);
            pool.check().unwrap();
        },
        |socket| {
            let (context, pool, stream) = gpu(there);
            let received = Received::receive(&socket).unwrap();
            let Opened { mut buffer, event, .. } = context.open_shared::<u32>(received, &stream).unwrap();
            let mut found = buffer.to_vec().unwrap();
            assert!(found == numbers(COUNT));
            found.iter_mut().for_each(|number| *number = number.wrapping_mul(2));
            keep_busy(&pool, &stream, 200);
            buffer.copy_from_slice(&found).unwrap();
            event.record(&stream).unwrap();
            say(&socket);
            hear(&socket);
            event.wait(&stream).unwrap();
            assert!(buffer.to_vec().unwrap().iter().all(|number| *number == 0));
            say(&socket);
        },
    );
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn bytes_go_both_ways_in_order() {
    both_ways("bytes_go_both_ways_in_order", (0, 0));
}

mod two_gpus {
    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn bytes_go_both_ways_between_them() {
        super::both_ways("two_gpus::bytes_go_both_ways_between_them", (0, 1));
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_process_that_is_killed_leaves_nothing_behind() {
    Other::with(
        "cuda_sharing::a_process_that_is_killed_leaves_nothing_behind",
        |other| {
            let (_context, pool, stream) = gpu(0);
            let buffer = Buffer::from_slice(&pool, &numbers(64 << 20), &stream).unwrap();
            let shared = buffer.share().unwrap();
            shared.send(&other.socket).unwrap();
            hear(&other.socket);
            drop((buffer, shared));
            stream.synchronize().unwrap();
            pool.trim_to(0).unwrap();
            assert_eq!(
                (pool.allocated().current, pool.reserved().current),
                (256 * MIB, 256 * MIB),
                "it is kept"
            );
            other.kill();
            until("the memory goes back", || {
                pool.trim_to(0).unwrap();
                pool.reserved().current == 0
            });
            pool.check().unwrap();
            let buffer = Buffer::from_slice(&pool, &numbers(64 << 20), &stream).unwrap();
            assert!(buffer.to_vec().unwrap() == numbers(64 << 20));
        },
        |socket| {
            let (context, pool, stream) = gpu(0);
            let received = Received::receive(&socket).unwrap();
            let mut opened = context.open_shared::<u32>(received, &stream).unwrap();
            // It dies while it writes.
            keep_busy(&pool, &stream, 5000);
            opened.buffer.set_zero().unwrap();
            say(&socket);
            sleep(FOR_EVER);
        },
    );
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn memory_outlives_the_process_that_shared_it() {
    Other::with(
        "cuda_sharing::memory_outlives_the_process_that_shared_it",
        |other| {
            let (context, _pool, stream) = gpu(0);
            let received = Received::receive(&other.socket).unwrap();
            let Opened { mut buffer, event, .. } = context.open_shared::<u32>(received, &stream).unwrap();
            stream.synchronize().unwrap();
            other.kill();
            assert!(buffer.to_vec().unwrap() == numbers(1 << 20));
            buffer.set_zero().unwrap();
            assert!(buffer.to_vec().unwrap().iter().all(|number| *number == 0));
            assert_eq!(event.record(&stream), Err(Error::OwnerGone));
            let free = context.memory_info().unwrap().free;
            drop((buffer, event));
            stream.synchronize().unwrap();
            until("the memory goes back", || context.memory_info().unwrap().free >= free + 4 * MIB);
        },
        |socket| {
            let (_context, pool, stream) = gpu(0);
            let buffer = Buffer::from_slice(&pool, &numbers(1 << 20), &stream).unwrap();
            let shared = buffer.share().unwrap();
            shared.send(&socket).unwrap();
            sleep(FOR_EVER);
        },
    );
}

/// After thousands of imports: no descriptor more, and of mappings those that the heap may have made.
fn assert_nothing_left((descriptors, mappings): (usize, usize), before: (usize, usize)) {
    assert_eq!(descriptors, before.0);
    assert!(mappings <= before.1 + 10, "{mappings} mappings, and {} before", before.1);
}

/// Prints what an import costs.
#[test]
#[ignore = "needs a CUDA GPU"]
fn ten_thousand_imports_leave_nothing_behind() {
    const ROUNDS: usize = 10_000;
    // The driver opens what it keeps during the first ones.
    const FIRST: usize = 10;
    Other::with(
        "cuda_sharing::ten_thousand_imports_leave_nothing_behind",
        |other| {
            let (_context, pool, stream) = gpu(0);
            let buffer = Buffer::from_slice(&pool, &numbers(1 << 20), &stream).unwrap();
            let shared = buffer.share().unwrap();
            let pages = shared.token().descriptors() - 2;
            let mut before = None;
            for round in 0..ROUNDS {
                shared.send(&other.socket).unwrap();
                hear(&other.socket);
                if round == FIRST {
                    before = Some(open_here());
                }
            }
            assert_nothing_left(open_here(), before.unwrap());
            drop(shared);
            let began = Instant::now();
            (0..100).for_each(|_| drop(buffer.share().unwrap()));
            println!("{MEASURED}to share {pages} pages of 4 MiB in all: {:?}", began.elapsed() / 100);
            drop(buffer);
            stream.synchronize().unwrap();
            pool.trim_to(0).unwrap();
            assert_eq!((pool.allocated().current, pool.reserved().current), (0, 0));
        },
        |socket| {
            let (context, _pool, stream) = gpu(0);
            let (mut before, mut free) = (None, 0);
            let (mut opening, mut closing) = (Duration::ZERO, Duration::ZERO);
            for round in 0..ROUNDS {
                let received = Received::receive(&socket).unwrap();
                let began = Instant::now();
                let opened = context.open_shared::<u32>(received, &stream).unwrap();
                opening += began.elapsed();
                if round % 1000 == 0 {
                    assert!(opened.buffer.to_vec().unwrap() == numbers(1 << 20));
                }
                stream.synchronize().unwrap();
                let began = Instant::now();
                drop(opened);
                closing += began.elapsed();
                stream.synchronize().unwrap();
                if round == FIRST {
                    before = Some(open_here());
                    free = context.memory_info().unwrap().free;
                }
                say(&socket);
            }
            assert_nothing_left(open_here(), before.unwrap());
            let left = context.memory_info().unwrap().free;
            // The other process takes and gives back.
            assert!(left + 64 * MIB >= free, "{free} bytes were free, and {left} are");
            let rounds = ROUNDS as u32;
            println!("{MEASURED}to open them {:?}, to close them {:?}", opening / rounds, closing / rounds);
        },
    );
}

/// What each step of a block takes that has a page of its own, in the order of its steps.
#[derive(Default)]
struct Steps(Vec<(&'static str, Vec<Duration>)>);

impl Steps {
    fn time<R>(&mut self, name: &'static str, step: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = step();
        let took = began.elapsed();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, times)) => times.push(took),
            None => self.0.push((name, vec![took])),
        }
        result
    }

    fn say(&mut self) {
        for (name, times) in &mut self.0 {
            times.sort();
            let (median, all): (_, Duration) = (times[times.len() / 2], times.iter().sum());
            println!("{MEASURED}{name}: {median:?} in the median of {}, {all:?} in all", times.len());
        }
    }
}

/// Prints where the time goes.
#[test]
#[ignore = "needs a CUDA GPU"]
fn many_pages_are_shared_opened_and_closed() {
    const PAGES: usize = 1600;
    // Here, and in the process that is started: each has a descriptor for each block that is open.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    Other::with(
        "cuda_sharing::many_pages_are_shared_opened_and_closed",
        |other| {
            let (_context, pool, stream) = gpu(0);
            let buffers: Vec<_> =
                (0..PAGES).map(|_| Buffer::<u8>::new(&pool, 2 * MIB as usize, &stream).unwrap()).collect();
            let mut steps = Steps::default();
            for buffer in &buffers {
                let shared = steps.time("share", || buffer.share().unwrap());
                steps.time("send", || shared.send(&other.socket).unwrap());
                hear(&other.socket);
                steps.time("let go of what was sent", || drop(shared));
            }
            for buffer in &buffers[..100] {
                let shared = steps.time("share again", || buffer.share().unwrap());
                steps.time("let go again", || drop(shared));
            }
            steps.say();
            hear(&other.socket);
            drop(buffers);
            stream.synchronize().unwrap();
            pool.trim_to(0).unwrap();
            assert_eq!((pool.allocated().current, pool.reserved().current), (0, 0));
        },
        |socket| {
            let (context, _pool, stream) = gpu(0);
            let mut steps = Steps::default();
            let mut opened = Vec::new();
            for _ in 0..PAGES {
                let received =
                    steps.time("receive, with the wait for it", || Received::receive(&socket).unwrap());
                opened.push(steps.time("open", || context.open_shared::<u8>(received, &stream).unwrap()));
                say(&socket);
            }
            stream.synchronize().unwrap();
            opened.into_iter().for_each(|one| steps.time("close", || drop(one)));
            stream.synchronize().unwrap();
            steps.say();
            say(&socket);
        },
    );
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn what_was_not_shared_like_that_is_not_opened() {
    Other::with(
        "cuda_sharing::what_was_not_shared_like_that_is_not_opened",
        |other| {
            let (_context, pool, stream) = gpu(0);
            let buffer = Buffer::from_slice(&pool, &numbers(1 << 20), &stream).unwrap();
            let shared = buffer.share().unwrap();
            for _ in 0..4 {
                shared.send(&other.socket).unwrap();
            }
            hear(&other.socket);
        },
        |socket| {
            let (context, _pool, stream) = gpu(0);
            let error = |received| context.open_shared::<u32>(received, &stream).unwrap_err();
            // A page that is no page, one that is longer, and an event that is none.
            let received = Received::receive(&socket).unwrap();
            let (token, pages) = (received.token().clone(), received.token().descriptors() - 1);
            let not_pages = (0..=pages).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
            assert!(matches!(error(Received::new(token, not_pages).unwrap()), Error::BadToken { .. }));
            let received = Received::receive(&socket).unwrap();
            let bytes = received.token().to_bytes();
            let with = |part: std::ops::Range<usize>, value: &[u8]| {
                let mut bytes = bytes.clone();
                bytes[part].copy_from_slice(value);
                millpond::SharedToken::from_bytes(&bytes).unwrap()
            };
            let descriptors = || Received::receive(&socket).unwrap().into_descriptors();
            let longer = with(bytes.len() - 8..bytes.len(), &(1_u64 << 47).to_le_bytes());
            let no_event = with(24..88, &[0xff; 64]);
            for wrong in [longer, no_event] {
                let error = error(Received::new(wrong, descriptors()).unwrap());
                assert!(matches!(error, Error::BadToken { .. } | Error::Device(_)), "{error}");
            }
            // All is well after that.
            context.open_shared::<u32>(received, &stream).unwrap();
            say(&socket);
        },
    );
}
