//! What pinned host memory costs and gives on a device: the time to have it ready, copies beside pageable memory, and a
//! pair of allocate and free.
//!
//! ```text
//! cargo run --release -p millpond-bench --example pinned -- [DEVICE [GIB [LARGEST_COPY_MIB]]]
//! ```
//!
//! By default it takes 256 MiB, and copies 16 MiB at most: a try of some seconds on any machine. On a GPU, `cuda 16 1024`
//! shows more.

use std::error::Error;
use std::time::{Duration, Instant};

use millpond::device::{DeviceChoice, DeviceName};
use millpond::{Buffer, Context, HumanBytes, Pool, Stream};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let device: DeviceChoice = args.next().unwrap_or_else(|| "auto".to_owned()).parse()?;
    let bytes = args.next().map_or(Ok(256 << 20), |gib| gib.parse().map(|gib: u64| gib << 30))?;
    let largest: usize = args.next().map_or(Ok(16), |mib| mib.parse())?;
    let (name, why_no_gpu) = device.find();
    if let Some(error) = why_no_gpu {
        eprintln!("using {name}: {error}");
    }
    let context = open(name)?;
    let stream = context.create_stream()?;
    let (pool, pinned) = (Pool::builder(&context).build()?, context.pinned()?.build()?);
    println!("{}, {} threads", context.device().properties().name, std::thread::available_parallelism()?);
    println!("pages of pinned memory: {}", pinned.device().properties().virtual_memory);
    ready(&pinned, bytes, &stream)?;
    pairs(&pool, &pinned, &stream)?;
    pinned.trim_to(0)?;
    copies(&pool, &pinned, &stream, largest << 20)
}

fn open(name: DeviceName) -> Result<Context> {
    Ok(Context::new(name.open()?))
}

/// How long it takes until so many bytes are ready, and what they hold.
fn ready(pinned: &Pool, bytes: u64, stream: &Stream) -> Result<()> {
    let began = Instant::now();
    pinned.reserve(bytes, stream)?;
    let took = began.elapsed();
    let began = Instant::now();
    let block = Buffer::<u8>::new(pinned, bytes as usize, stream)?;
    let allocated = began.elapsed();
    let reserved = pinned.reserved().current;
    let waste = (reserved as f64 / bytes as f64 - 1.0) * 100.0;
    println!(
        "{} ready in {took:.2?}, allocated then in {allocated:.2?}; {} reserved, {waste:.2} % more",
        HumanBytes(bytes),
        HumanBytes(reserved)
    );
    drop(block);
    Ok(())
}

/// What a pair of allocate and free costs in each pool, by turns.
fn pairs(pool: &Pool, pinned: &Pool, stream: &Stream) -> Result<()> {
    const PAIRS: u32 = 10_000;
    const ROUNDS: usize = 21;
    println!("\n{:>12} {:>14} {:>14}", "pair of", "device", "pinned");
    for bytes in [512, 64 << 10, 1 << 20, 64 << 20] {
        let mut times = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for (times, pool) in times.iter_mut().zip([pool, pinned]) {
                let began = Instant::now();
                for _ in 0..PAIRS {
                    let block = pool.alloc(bytes, stream)?;
                    // SAFETY: nobody else has the block, and there is no work on it.
                    unsafe { pool.free(block, stream) }?;
                }
                times.push(began.elapsed());
            }
        }
        let [device, pinned] = times.map(|times| median(times).as_nanos() as f64 / f64::from(PAIRS));
        println!("{:>12} {device:>11.1} ns {pinned:>11.1} ns", HumanBytes(bytes).to_string());
    }
    Ok(())
}

/// The bandwidth of copies in both directions, from pinned and from pageable memory, in GB/s. The host waits once after
/// many copies of pinned memory, and after each of pageable memory where the device makes it wait.
fn copies(pool: &Pool, pinned: &Pool, stream: &Stream, largest: usize) -> Result<()> {
    if !pinned.device().properties().host_access {
        println!("\nthis device has no bytes to copy");
        return Ok(());
    }
    println!(
        "\n{:>12} {:>12} {:>12} {:>12} {:>12}   GB/s",
        "copy of", "pinned in", "pinned out", "pageable in", "out"
    );
    let mut bytes = 4 << 10;
    while bytes <= largest {
        let mut on_device = Buffer::<u8>::zeroed(pool, bytes, stream)?;
        let mut on_host = Buffer::<u8>::zeroed(pinned, bytes, stream)?;
        on_host.as_mut_slice()?.fill(7);
        let mut pageable = vec![7_u8; bytes];
        let pinned_in = speed(bytes, stream, || Ok(on_device.copy_from_pinned(&on_host)?))?;
        on_host.as_mut_slice()?.fill(0);
        let pinned_out = speed(bytes, stream, || Ok(on_device.copy_to_pinned(&mut on_host)?))?;
        if !on_host.as_slice()?.iter().all(|byte| *byte == 7) {
            return Err("a copy came back with other bytes".into());
        }
        let pageable_in = speed(bytes, stream, || Ok(on_device.copy_from_slice(&pageable)?))?;
        let pageable_out = speed(bytes, stream, || Ok(on_device.copy_to_slice(&mut pageable)?))?;
        println!(
            "{:>12} {pinned_in:>12.2} {pinned_out:>12.2} {pageable_in:>12.2} {pageable_out:>12.2}",
            HumanBytes(bytes as u64).to_string()
        );
        bytes *= 4;
    }
    Ok(())
}

/// The median of several rounds, each of as many copies as take some milliseconds, in GB/s.
fn speed(bytes: usize, stream: &Stream, mut copy: impl FnMut() -> Result<()>) -> Result<f64> {
    const ROUNDS: usize = 5;
    let copies = ((64 << 20) / bytes).clamp(2, 1000) as u32;
    copy()?;
    stream.synchronize()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..copies {
            copy()?;
        }
        stream.synchronize()?;
        times.push(began.elapsed() / copies);
    }
    Ok(bytes as f64 / median(times).as_secs_f64() / 1e9)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
