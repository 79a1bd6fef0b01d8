//! Two GPUs that work in turns, as the stages of a model over two GPUs do. Without two GPUs, two host devices take their place.
//!
//! The first one fills buffers, the second one copies and reads them. The host waits once, at the end.

use millpond::device::host::HostDevice;
use millpond::{Buffer, Context, HumanBytes, Pool, Result};

const ELEMENTS: usize = 1 << 20;
const ROUNDS: usize = 8;

fn two_devices() -> Result<[Context; 2]> {
    match (Context::cuda(0), Context::cuda(1)) {
        (Ok(first), Ok(second)) => Ok([first, second]),
        _ => Ok([Context::host()?, Context::new(HostDevice::new()?)]),
    }
}

fn main() -> Result<()> {
    let [first, second] = two_devices()?;
    let (pool, other) = (Pool::builder(&first).build()?, Pool::builder(&second).build()?);
    let (produce, consume) = (first.create_stream()?, second.create_stream()?);

    // A buffer for each second round: the next one is filled while the last one is copied.
    let stage = || Buffer::<f32>::zeroed(&pool, ELEMENTS, &produce);
    let mut stages = [stage()?, stage()?];
    let mut results = Vec::new();
    for round in 0..ROUNDS {
        let stage = &mut stages[round % 2];
        // Waits, in stream order, for the copy of two rounds ago.
        stage.copy_from_slice(&vec![round as f32; ELEMENTS])?;
        let mut inputs = Buffer::<f32>::new(&other, ELEMENTS, &consume)?;
        // The first copy gives the second GPU access to the pages of `stage`, where it reaches them.
        inputs.copy_from(stage)?;
        results.push(inputs);
    }
    for (round, inputs) in results.iter().enumerate() {
        assert_eq!(inputs.to_vec()?[ELEMENTS - 1], round as f32);
    }

    // A table that kernels of both GPUs use.
    let table = Buffer::<f32>::zeroed(&pool, ELEMENTS, &produce)?;
    table.allow_access(&second)?;
    consume.wait_for(&produce)?;
    // … launch kernels on `consume` that use the table …
    table.record_use(&consume)?;

    println!(
        "{} on {:?}, {} on {:?}",
        HumanBytes(pool.reserved().high),
        pool.device().properties().name,
        HumanBytes(other.reserved().high),
        other.device().properties().name,
    );
    Ok(())
}
