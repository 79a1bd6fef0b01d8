//! Inference lends its memory to training: the weights go to pinned memory, the cache is dropped, and both come back.

use millpond::{Buffer, Context, Keep, Pool, Result};

const MIB: usize = 1 << 20;

fn main() -> Result<()> {
    let device = Context::host()?; // or Context::cuda(0)?
    let stream = device.create_stream()?;

    // The engine may hold 100 MiB. Each tag sleeps on its own.
    let engine = Pool::builder(&device).name("engine").hard_limit(100 << 20).build()?;
    let (weights, cache) = (engine.tagged("weights")?, engine.tagged("cache")?);
    let model = Buffer::from_slice(&weights, &vec![7_u8; 48 * MIB], &stream)?;
    let mut keys = Buffer::<u8>::new(&cache, 32 * MIB, &stream)?;
    let at = model.ptr();

    let trainer = Pool::builder(&device).name("trainer").build()?;
    for round in 1..=3 {
        let lent = weights.sleep(Keep::InPinnedMemory)? + cache.sleep(Keep::Nothing)?;
        println!("round {round}: {} MiB are the trainer's", lent >> 20);

        let activations = Buffer::<f32>::zeroed(&trainer, 16 * MIB, &stream)?;
        drop(activations);
        trainer.trim_to(0)?; // before the engine needs the memory

        engine.wake()?; // with its tags
        keys.set_zero()?; // what was dropped has no defined content
    }
    assert_eq!(model.ptr(), at, "pointers and graphs stay valid");
    assert!(model.to_vec()?.iter().all(|byte| *byte == 7));
    println!("{} MiB of pinned memory go back", engine.trim_staging()? >> 20);
    Ok(())
}
