//! Allocates and frees so many times on the simulated device, and does nothing else: what `scripts/instructions`
//! counts the instructions of. Or measures what a pair costs on each kind of stream, on any device.
//!
//! ```text
//! pairs [ALLOCATOR [BYTES [PAIRS]]]
//! pairs --streams [--device DEVICE]
//! ```

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use millpond::device::{DeviceChoice, DeviceName, StreamHandle};
use millpond::{Buffer, Context, Pool, Stream};
use millpond_bench::{Target, repeat};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--streams"] => streams(DeviceName::SIM.into()),
        ["--streams", "--device", device] => streams(device.parse()?),
        _ => count(&args),
    }
}

fn count(args: &[&str]) -> Result<(), Box<dyn Error>> {
    let allocator = args.first().copied().unwrap_or("millpond");
    let bytes = args.get(1).map_or(Ok(512), |text| text.parse())?;
    let pairs = args.get(2).map_or(Ok(1000), |text| text.parse())?;
    if allocator == OF_THREAD {
        return count_of_thread(bytes, pairs);
    }
    if allocator == BUFFER {
        return count_buffers(bytes, pairs);
    }
    let (target, _) = Target::find(DeviceName::SIM.into())?;
    repeat(&target, allocator, bytes, pairs)?;
    println!("{allocator}: {pairs} pairs of {bytes} bytes");
    Ok(())
}

/// The pool, on the thread's default stream.
const OF_THREAD: &str = "own-stream";

fn count_of_thread(bytes: u64, pairs: usize) -> Result<(), Box<dyn Error>> {
    let context = Context::new(DeviceChoice::from(DeviceName::SIM).find().0.open_with_capacity(None)?);
    let pool = Pool::builder(&context).build()?;
    let stream = context.per_thread_stream()?;
    for _ in 0..pairs {
        let block = pool.alloc(bytes, &stream)?;
        // SAFETY: nobody else has the block, and there is no work on it.
        unsafe { pool.free(block, &stream) }?;
    }
    println!("{OF_THREAD}: {pairs} pairs of {bytes} bytes");
    Ok(())
}

/// Buffers of the pool, which free themselves.
const BUFFER: &str = "buffer";

fn count_buffers(bytes: u64, pairs: usize) -> Result<(), Box<dyn Error>> {
    let context = Context::new(DeviceChoice::from(DeviceName::SIM).find().0.open_with_capacity(None)?);
    let pool = Pool::builder(&context).build()?;
    let stream = pool.create_stream()?;
    for _ in 0..pairs {
        buffer_pair(&pool, bytes, &stream)?;
    }
    println!("{BUFFER}: {pairs} pairs of {bytes} bytes");
    Ok(())
}

/// A buffer that stays where it is made, until it is dropped.
#[inline(always)]
fn buffer_pair(pool: &Pool, bytes: u64, stream: &Stream) -> millpond::Result<()> {
    let buffer = Buffer::<u8>::uninit(pool, black_box(bytes as usize), stream)?;
    black_box(&buffer);
    Ok(())
}

const ROUNDS: usize = 201;
const PAIRS: u32 = 1000;

/// Prints the median of some rounds, in nanoseconds a pair, for each kind of stream.
fn streams(device: DeviceChoice) -> Result<(), Box<dyn Error>> {
    let context = Context::new(device.find().0.open_with_capacity(None)?);
    let pool = Pool::builder(&context).build()?;
    let own = context.create_stream()?;
    let [kept, raw, registered] = [(); 3].map(|()| context.device().create_stream());
    let (kept, raw, registered) = (kept?, raw?, registered?);
    // SAFETY: the streams are destroyed at the end.
    let (kept_stream, registration) =
        unsafe { (context.stream_from_raw(kept)?, context.register_stream(registered)?) };
    // SAFETY: as above.
    let present = |handle: StreamHandle| unsafe { context.foreign_stream(handle) };

    println!("{:<50} {:>10} {:>10}", context.device().properties().name, "512 B", "1 MiB");
    row(&pool, "the legacy default stream", &Given::Kept(&context.default_stream()?))?;
    row(&pool, "created by millpond", &Given::Kept(&own))?;
    row(&pool, "created by millpond, by a Buffer", &Given::Buffer(&own))?;
    row(&pool, "stream_from_raw", &Given::Kept(&kept_stream))?;
    row(&pool, "register_stream", &Given::Kept(&registration))?;
    row(&pool, "registered, foreign_stream in each call", &Given::Presented(&|| present(registered)))?;
    row(&pool, "not registered, foreign_stream in each call", &Given::Presented(&|| present(raw)))?;
    row(&pool, "per_thread_stream", &Given::Kept(&context.per_thread_stream()?))?;
    row(&pool, "per_thread_stream in each call", &Given::Presented(&|| context.per_thread_stream()))?;

    drop((pool, kept_stream, registration));
    for handle in [kept, raw, registered] {
        // SAFETY: nobody uses the stream any more.
        unsafe { context.device().destroy_stream(handle) }?;
    }
    Ok(())
}

/// How a call comes by its stream.
enum Given<'a> {
    /// The program has it.
    Kept(&'a Stream),
    /// It has the stream, and a [`Buffer`] frees itself.
    Buffer(&'a Stream),
    /// It has the driver's handle only.
    Presented(&'a dyn Fn() -> millpond::Result<Stream>),
}

fn row(pool: &Pool, name: &str, given: &Given<'_>) -> Result<(), Box<dyn Error>> {
    let medians = [median(pool, 512, given)?, median(pool, 1 << 20, given)?];
    println!("{name:<50} {:>7.1} ns {:>7.1} ns", medians[0], medians[1]);
    Ok(())
}

fn median(pool: &Pool, bytes: u64, given: &Given<'_>) -> Result<f64, Box<dyn Error>> {
    // SAFETY: nobody else has the block, and there is no work on it.
    let raw = |stream: &Stream| unsafe { pool.free(pool.alloc(bytes, stream)?, stream) };
    let pair = || match given {
        Given::Kept(stream) => raw(stream),
        Given::Buffer(stream) => buffer_pair(pool, bytes, stream),
        Given::Presented(present) => {
            let block = pool.alloc(bytes, &present()?)?;
            // SAFETY: as above.
            unsafe { pool.free(block, &present()?) }
        }
    };
    let round = |_| -> millpond::Result<f64> {
        let began = Instant::now();
        (0..PAIRS).try_for_each(|_| pair())?;
        Ok(began.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS))
    };
    let mut rounds = (0..ROUNDS).map(round).collect::<millpond::Result<Vec<f64>>>()?;
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}
