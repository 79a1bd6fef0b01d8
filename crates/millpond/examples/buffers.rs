//! Typed buffers from a pool, freed in stream order. The README shows this file.

use millpond::{Buffer, Context, Pool};

fn main() -> millpond::Result<()> {
    let device = Context::cuda(0).or_else(|_| Context::host())?; // a GPU, else the CPU as a device
    let pool = Pool::builder(&device).name("activations").build()?;
    let stream = device.create_stream()?;
    let mut inputs = Buffer::<f32>::zeroed(&pool, 1 << 20, &stream)?;
    inputs.copy_from_slice(&vec![1.0; 1 << 20])?; // in stream order
    drop(inputs); // freed after the work given to the stream; the host does not wait
    let outputs = Buffer::<f32>::new(&pool, 1 << 20, &stream)?; // the same memory, without a device call
    assert_eq!((pool.reserved().current, pool.stats().hits), (outputs.byte_len(), 1));
    Ok(())
}
