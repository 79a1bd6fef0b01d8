//! Plain cudarc: a server of requests on four streams. Each request takes buffers of its own length; some results stay in a cache.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::compile_ptx;
use job::{Job, Numbers, add};

const KERNELS: &str = r#"
extern "C" __global__ void source(float *to, unsigned seed, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned x = i * 2654435761u ^ seed;
        x ^= x >> 15; x *= 2246822519u; x ^= x >> 13;
        to[i] = (x & 0xffff) * (1.0f / 65536.0f);
    }
}
extern "C" __global__ void blend(float *to, const float *one, const float *other, float part, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        to[i] = one[i] * part + other[i] * (1.0f - part);
}
// One thread a part, in order: the sums are the same in every run.
extern "C" __global__ void sums(float *to, const float *from, int n, int parts) {
    int part = blockIdx.x * blockDim.x + threadIdx.x;
    if (part >= parts) return;
    float sum = 0.0f;
    for (int i = part; i < n; i += parts) sum += from[i];
    to[part] = sum;
}
"#;

const REQUESTS: usize = 4000;
const PARTS: usize = 4096;
const CACHED: usize = 48;

struct Kernels {
    source: CudaFunction,
    blend: CudaFunction,
    sums: CudaFunction,
}

fn blocks(n: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (n.div_ceil(256).min(2048) as u32, 1, 1),
        block_dim: (256, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// Answers one request: the result, and its sums.
fn answer(
    stream: &Arc<CudaStream>,
    kernels: &Kernels,
    numbers: &mut Numbers,
) -> Result<(CudaSlice<f32>, CudaSlice<f32>), DriverError> {
    // From 64 KiB to 24 MiB, more of the short ones.
    let longest = 256 << numbers.within(7, 14);
    let n = numbers.within(16 << 10, (16 << 10) + longest);
    let (count, parts) = (n as i32, PARTS as i32);
    let (seed, part) = (numbers.next() as u32, numbers.unit());
    // SAFETY: the kernels write all of what is read, and take these arguments.
    unsafe {
        let mut one = stream.alloc::<f32>(n)?;
        let mut other = stream.alloc::<f32>(n)?;
        let mut result = stream.alloc::<f32>(n)?;
        let mut sums = stream.alloc::<f32>(PARTS)?;
        stream.launch_builder(&kernels.source).arg(&mut one).arg(&seed).arg(&count).launch(blocks(n))?;
        stream
            .launch_builder(&kernels.source)
            .arg(&mut other)
            .arg(&(seed ^ 77))
            .arg(&count)
            .launch(blocks(n))?;
        stream
            .launch_builder(&kernels.blend)
            .arg(&mut result)
            .arg(&one)
            .arg(&other)
            .arg(&part)
            .arg(&count)
            .launch(blocks(n))?;
        stream
            .launch_builder(&kernels.sums)
            .arg(&mut sums)
            .arg(&result)
            .arg(&count)
            .arg(&parts)
            .launch(blocks(PARTS))?;
        Ok((result, sums))
    }
}

/// Runs the job.
pub fn main() -> job::Outcome {
    let context = CudaContext::new(0)?;
    let module = context.load_module(compile_ptx(KERNELS)?)?;
    let load = |name| module.load_function(name);
    let kernels = Kernels { source: load("source")?, blend: load("blend")?, sums: load("sums")? };
    let streams = (0..4).map(|_| context.new_stream()).collect::<Result<Vec<_>, _>>()?;
    match streams[0].null::<f32>() {
        Ok(_) => println!("cudarc: a slice of no elements can be had"),
        Err(error) => println!("cudarc: a slice of no elements: {error:?}"),
    }
    Job::new("cudarc")?.run(|| {
        let (mut numbers, mut checksum) = (Numbers::new(1), 0);
        let mut cache = VecDeque::new();
        for request in 0..REQUESTS {
            let stream = &streams[request % streams.len()];
            let (result, sums) = answer(stream, &kernels, &mut numbers)?;
            // The host waits for each answer, as a server does.
            let sums = stream.clone_dtoh(&sums)?;
            stream.synchronize()?;
            checksum = add(checksum, &sums[..64]);
            if request % 8 == 0 {
                cache.push_back(result);
                if cache.len() > CACHED {
                    cache.pop_front();
                }
            }
        }
        drop(cache);
        streams.iter().try_for_each(|stream| stream.synchronize())?;
        Ok(checksum)
    })
}
