//! kornia: frames of varying sizes, made smaller, blurred and searched for edges. Each call takes its memory anew, as kornia's own code does.

use cudarc::driver::CudaContext;
use job::{Job, Numbers, add};
use kornia_image::{Image, ImageSize};
use kornia_imgproc::filter::{gaussian_blur, sobel};
use kornia_imgproc::interpolation::InterpolationMode;
use kornia_imgproc::resize::resize;

const FRAMES: usize = 400;
const WIDEST: usize = 2560;
const HIGHEST: usize = 1440;

/// Runs the job.
pub fn main() -> job::Outcome {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    // kornia raises the default pool's threshold at its first allocation.
    drop(Image::<f32, 1>::zeros_cuda(ImageSize { width: 16, height: 16 }, &stream)?);
    let mut numbers = Numbers::new(3);
    let noise: Vec<f32> = (0..WIDEST * HIGHEST * 3).map(|_| numbers.unit()).collect();
    Job::new("kornia")?.run(|| {
        let (mut numbers, mut checksum) = (Numbers::new(17), 0);
        for _ in 0..FRAMES {
            let size = ImageSize { width: numbers.within(320, WIDEST), height: numbers.within(240, HIGHEST) };
            let smaller = ImageSize {
                width: numbers.within(160, size.width),
                height: numbers.within(120, size.height),
            };
            let pixels = noise[..size.width * size.height * 3].to_vec();
            let frame = Image::<f32, 3>::new(size, pixels)?.to_cuda(&stream)?;
            let mut small = Image::<f32, 3>::zeros_cuda(smaller, &stream)?;
            resize(&frame, &mut small, InterpolationMode::Bilinear)?;
            let mut blurred = Image::<f32, 3>::zeros_cuda(smaller, &stream)?;
            gaussian_blur(&small, &mut blurred, (5, 5), (1.5, 1.5))?;
            let mut edges = Image::<f32, 3>::zeros_cuda(smaller, &stream)?;
            sobel(&blurred, &mut edges, 3)?;
            let edges = edges.to_host_image(&stream)?;
            checksum = add(checksum, &edges.as_slice()[..4096.min(edges.as_slice().len())]);
            stream.synchronize()?;
        }
        Ok(checksum)
    })
}
