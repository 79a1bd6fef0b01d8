//! Who holds memory: by call stack, now and at the pool's end.

use millpond::{Buffer, Context, Pool, Result, Stream, record};

/// Activations of a step that a later step will not need.
fn forward(pool: &Pool, stream: &Stream, kept: &mut Vec<Buffer<u8>>) -> Result<()> {
    let _tag = record::tag("forward");
    let _scratch = Buffer::<u8>::new(pool, 8 << 20, stream)?;
    kept.push(Buffer::new(pool, 1 << 20, stream)?);
    Ok(())
}

fn main() -> Result<()> {
    let device = Context::host()?; // or Context::cuda(0)?
    // Every block. In a long run, `Tracking::sampled()` costs next to nothing.
    let tracking = record::Tracking::all().report_leaks(true).no_dump();
    let pool = Pool::builder(&device).name("activations").track(tracking).build()?;
    let stream = device.create_stream()?;

    let mut kept = Vec::new();
    for _ in 0..3 {
        forward(&pool, &stream, &mut kept)?;
    }
    let weights = Buffer::<f32>::zeroed(&pool, 1 << 20, &stream)?;

    println!("live now:");
    for holder in record::holders(&pool.live_blocks()?) {
        println!("{holder}");
    }
    drop(weights);
    // Who gave plain blocks to others may forget to free them: here, on purpose.
    kept.into_iter().for_each(|buffer| _ = buffer.into_raw());
    Ok(())
}
