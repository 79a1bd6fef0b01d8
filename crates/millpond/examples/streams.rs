//! One pool, two streams: memory passes from one to the other, and a buffer is used on both.

use millpond::{Buffer, Context, HumanBytes, Pool, Result, ReusePolicies};

const ELEMENTS: usize = 1 << 20;

fn main() -> Result<()> {
    let device = Context::host()?;
    let pool = Pool::builder(&device).name("shared").reuse(ReusePolicies::ALL).build()?;
    let (load, compute) = (device.create_stream()?, device.create_stream()?);

    // Freed on one stream, allocated on the other: the pool finds that the memory is ready, or makes the second
    // stream wait for the first. The host does not wait, and nothing new is reserved.
    let staging = Buffer::from_slice(&pool, &vec![1.0f32; ELEMENTS], &load)?;
    let reserved = pool.reserved().current;
    drop(staging);
    let scratch = Buffer::<f32>::zeroed(&pool, ELEMENTS, &compute)?;
    assert_eq!(pool.reserved().current, reserved);

    // Here the buffer is used on another stream. An event orders the work. The recorded use makes the free wait for
    // that stream, too. (`copy_from` does both itself; a kernel of your own needs them.)
    let batch = Buffer::from_slice(&pool, &vec![2.0f32; ELEMENTS], &load)?;
    compute.wait(&load.record()?)?;
    batch.record_use(&compute)?;
    let mut result = scratch;
    result.copy_from(&batch)?;
    drop(batch);
    assert_eq!(result.to_vec()?, vec![2.0; ELEMENTS]);

    let stats = pool.stats();
    println!(
        "{} requested at most, {} reserved; {} hits, {} misses, {} waits between streams",
        HumanBytes(stats.requested.high),
        HumanBytes(stats.reserved.high),
        stats.hits,
        stats.misses,
        stats.stream_waits
    );
    Ok(())
}
