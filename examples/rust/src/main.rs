//! A program with a pool, beside whatever else has cudarc in its build: a GPU if there is one, else the CPU.

use millpond::{Buffer, Context, Pool};

#[cfg(feature = "linked")]
use millpond_global as _;

fn main() -> millpond::Result<()> {
    #[cfg(feature = "linked")]
    linked()?;
    let device = Context::cuda(0).or_else(|_| Context::host())?;
    let pool = Pool::builder(&device).build()?;
    let stream = pool.create_stream()?;
    let ones = Buffer::from_slice(&pool, &[1.0_f32; 1024], &stream)?;
    assert_eq!(ones.to_vec()?, [1.0; 1024]);
    #[cfg(feature = "candle")]
    candle(&ones.to_vec()?);
    println!("{}", pool.stats());
    Ok(())
}

/// The same stream, for the program's own cudarc and for pools.
#[cfg(feature = "cudarc")]
pub fn with_cudarc(cuda: &std::sync::Arc<cudarc::driver::CudaContext>) -> millpond::Result<Vec<f32>> {
    let (device, stream) = (Context::from_cudarc(cuda)?, cuda.new_stream()?);
    let pool = Pool::builder(&device).build()?;
    let on = millpond::cudarc::Stream::new(&device, &stream)?;
    let zeros = millpond::cudarc::Buffer::<f32>::zeroed(&pool, 1024, &on)?;
    Ok(stream.clone_dtoh(&zeros)?)
}

/// The program's own memory comes from the pool of `millpond-global`.
#[cfg(feature = "linked")]
fn linked() -> millpond::Result<()> {
    let cuda = cudarc::driver::CudaContext::new(0)?;
    // candle's stream.
    let stream = cuda.per_thread_stream();
    // SAFETY: nobody reads it.
    drop(unsafe { stream.alloc::<f32>(1024) }?);
    let stats = millpond_global::pool(0)?.stats();
    assert_eq!((stats.allocations, stats.frees), (1, 1));
    println!("the pool of the line served one allocation");
    Ok(())
}

#[cfg(feature = "candle")]
fn candle(ones: &[f32]) {
    let tensor = candle_core::Tensor::new(ones, &candle_core::Device::Cpu).expect("a tensor on the CPU");
    println!("{tensor}");
}
