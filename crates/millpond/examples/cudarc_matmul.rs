//! Memory of a pool in cudarc: one layer, `relu(x · w + b)`, by cuBLAS and a kernel that NVRTC compiles.
//!
//! Needs a GPU, and says so where there is none. libcublas.so and libnvrtc.so come with the CUDA toolkit.

use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, sys::cublasOperation_t::CUBLAS_OP_N};
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use millpond::cudarc::{Buffer, Stream};
use millpond::{Context, HumanBytes, Pool};

const BATCH: usize = 256;
const INPUTS: usize = 512;
const OUTPUTS: usize = 128;
const STEPS: usize = 100;

const ADD_BIAS_AND_RELU: &str = r#"
extern "C" __global__ void add_bias_and_relu(float *y, const float *bias, int outputs, int elements) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < elements) y[i] = fmaxf(y[i] + bias[i % outputs], 0.0f);
}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(why) = missing() {
        println!("nothing to show here: {why}");
        return Ok(());
    }
    let cuda = CudaContext::new(0)?;
    let stream = cuda.new_stream()?;
    let (blas, module) = (CudaBlas::new(stream.clone())?, cudarc::nvrtc::compile_ptx(ADD_BIAS_AND_RELU)?);
    let add_bias_and_relu = cuda.load_module(module)?.load_function("add_bias_and_relu")?;

    // The same GPU and stream for millpond, and a pool.
    let device = Context::from_cudarc(&cuda)?;
    let pool = Pool::builder(&device).name("layer").build()?;
    let on = Stream::new(&device, &stream)?;

    let x = Buffer::from_slice(&pool, &vec![0.5_f32; BATCH * INPUTS], &on)?;
    let w = Buffer::from_slice(&pool, &vec![0.25_f32; INPUTS * OUTPUTS], &on)?;
    let biases: Vec<f32> = (0..OUTPUTS).map(|output| output as f32 - 100.0).collect();
    let bias = Buffer::from_slice(&pool, &biases, &on)?;

    for step in 0..STEPS {
        // Allocated anew in each step, and freed at its end, in stream order: the host does not wait.
        let mut y = Buffer::<f32>::zeroed(&pool, BATCH * OUTPUTS, &on)?;
        // SAFETY: the matrices have the sizes that `layer` says.
        unsafe { blas.gemm(layer(), &w, &x, &mut y) }?;
        let (outputs, elements) = (OUTPUTS as i32, y.len() as i32);
        let config = LaunchConfig::for_num_elems(elements as u32);
        let mut launch = stream.launch_builder(&add_bias_and_relu);
        // SAFETY: these are the kernel's parameters, and it stays within `elements`.
        unsafe { launch.arg(&mut y).arg(&bias).arg(&outputs).arg(&elements).launch(config) }?;

        if step + 1 == STEPS {
            let product = 0.5 * 0.25 * INPUTS as f32;
            let expected: Vec<f32> = biases.iter().map(|bias| (product + bias).max(0.0)).collect();
            assert!(stream.clone_dtoh(&y)?.chunks(OUTPUTS).all(|row| row == expected));
        }
    }

    let stats = pool.stats();
    println!("{STEPS} steps on {}, and every element is right", device.device().properties().name);
    println!(
        "{} requested at most, {} reserved; of {} allocations, {} found memory ready",
        HumanBytes(stats.requested.high),
        HumanBytes(stats.reserved.high),
        stats.hits + stats.misses,
        stats.hits
    );
    Ok(())
}

/// cuBLAS counts by columns, so that what is `x · w` by rows is `w · x` to it.
fn layer() -> GemmConfig<f32> {
    let (m, n, k) = (OUTPUTS as i32, BATCH as i32, INPUTS as i32);
    let (transa, transb) = (CUBLAS_OP_N, CUBLAS_OP_N);
    GemmConfig { transa, transb, m, n, k, alpha: 1.0, lda: m, ldb: k, beta: 0.0, ldc: m }
}

/// What this machine lacks. cudarc panics where a library is missing, so it is asked before.
fn missing() -> Option<String> {
    if let Err(error) = Context::cuda(0) {
        return Some(error.to_string());
    }
    // SAFETY: loading runs the initialisers of NVIDIA's libraries, which any CUDA program does.
    let (nvrtc, cublas) =
        unsafe { (cudarc::nvrtc::sys::is_culib_present(), cudarc::cublas::sys::is_culib_present()) };
    let library = match (nvrtc, cublas) {
        (true, true) => return None,
        (false, _) => "libnvrtc.so",
        (true, false) => "libcublas.so",
    };
    Some(format!("{library} was not found; install the CUDA toolkit, or name its folder in LD_LIBRARY_PATH"))
}
