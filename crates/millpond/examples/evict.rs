//! A training loop whose optimizer does not fit beside its activations: it is on the device around the steps only.

use millpond::{Buffer, Context, Pool, Result};

const MIB: usize = 1 << 20;

fn main() -> Result<()> {
    let device = Context::host()?; // or Context::cuda(0)?
    let stream = device.create_stream()?;

    // The state of 48 MiB and the activations of 40 MiB do not fit at the same time.
    let pool = Pool::builder(&device).name("training").hard_limit(64 << 20).build()?;
    let optimizer = pool.tagged("optimizer")?;
    let mut moments = Buffer::<u8>::zeroed(&optimizer, 48 * MIB, &stream)?;
    let at = moments.ptr();

    for step in 1..=3_u8 {
        optimizer.evict(&stream)?; // behind the last step: the host does not wait
        let activations = Buffer::<f32>::zeroed(&pool, 10 * MIB, &stream)?; // forward and backward
        drop(activations);
        optimizer.restore(&stream)?; // before the next one
        moments.copy_from_slice(&vec![step; 48 * MIB])?;
        println!("step {step}: {} MiB were held at most", pool.reserved().high >> 20);
    }
    assert_eq!(moments.ptr(), at, "pointers and graphs stay valid");
    assert!(moments.to_vec()?.iter().all(|byte| *byte == 3));
    Ok(())
}
