//! A program with a pool, beside whatever else has cudarc in its build: a GPU if there is one, else the CPU.

use millpond::{Buffer, Context, Pool};

fn main() -> millpond::Result<()> {
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

#[cfg(feature = "candle")]
fn candle(ones: &[f32]) {
    let tensor = candle_core::Tensor::new(ones, &candle_core::Device::Cpu).expect("a tensor on the CPU");
    println!("{tensor}");
}
