//! What compute-sanitizer says of kernels that leave their blocks. It must be on the PATH, or in /usr/local/cuda/bin.
//!
//! `cargo test -p millpond --test integration cuda_nvtx:: -- --ignored`, or `scripts/gpu-test nvtx`.

use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUfunction, CUresult, CUstream, CUstreamCaptureMode};
use millpond::device::DevicePtr;
use millpond::device::cuda::{CudaDevice, CudaOptions};
use millpond::record::tag;
use millpond::{Context, Pool, Stream};

use crate::processes::again;
use crate::shared::{Freeing, MIB};

/// Writes the byte so far behind an address.
const PUT: &std::ffi::CStr = c"
.version 7.0
.target sm_50
.address_size 64
.visible .entry put(.param .u64 to, .param .u64 at)
{
    .reg .b64 %rd<5>;
    .reg .b16 %rs<2>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [at];
    cvta.to.global.u64 %rd3, %rd1;
    add.s64 %rd4, %rd3, %rd2;
    mov.u16 %rs1, 7;
    st.global.u8 [%rd4], %rs1;
    ret;
}
";

#[track_caller]
fn ok(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

fn raw(stream: &Stream) -> CUstream {
    stream.handle().raw() as CUstream
}

struct Rig {
    context: Context,
    pool: Pool,
    stream: Stream,
    put: CUfunction,
}

impl Rig {
    fn new(options: CudaOptions) -> Self {
        let device = CudaDevice::with_options(0, options).expect("a GPU");
        device.make_current().unwrap();
        let context = Context::new(device);
        let pool = Pool::builder(&context).name("checked").build().unwrap();
        let stream = context.create_stream().unwrap();
        let (mut module, mut put) = (null_mut(), null_mut());
        // SAFETY: both are writable, and the texts end in a zero.
        unsafe {
            ok(sys::cuModuleLoadData(&mut module, PUT.as_ptr().cast()));
            ok(sys::cuModuleGetFunction(&mut put, module, c"put".as_ptr()));
        }
        Self { context, pool, stream, put }
    }

    /// Launches a kernel that writes one byte.
    fn put(&self, to: DevicePtr, at: u64) {
        let (mut to, mut at) = (to.raw(), at);
        let mut arguments = [(&raw mut to).cast(), (&raw mut at).cast()];
        let (stream, arguments) = (raw(&self.stream), arguments.as_mut_ptr());
        // SAFETY: the kernel takes these. Where it leaves its block, it stays in the pool's segment.
        ok(unsafe { sys::cuLaunchKernel(self.put, 1, 1, 1, 1, 1, 1, 0, stream, arguments, null_mut()) });
    }

    fn step(&self, what: &str, to: DevicePtr, at: u64) {
        self.put(to, at);
        self.context.synchronize().unwrap();
        println!("step: {what}");
    }
}

/// What the sanitizer prints of this test, run again in a process of its own.
fn checked(test: &str, switch: Option<&str>) -> String {
    let of_toolkit = "/usr/local/cuda/bin/compute-sanitizer";
    let sanitizer = if Path::new(of_toolkit).exists() { of_toolkit } else { "compute-sanitizer" };
    let test = again(test);
    let mut program = Command::new(sanitizer);
    program
        .args(["--destroy-on-device-error", "kernel", "--show-backtrace", "no"])
        .arg(test.get_program())
        .args(test.get_args())
        .env("MILLPOND_TEST", "checked")
        .env_remove("MILLPOND_NVTX")
        .envs(switch.map(|switch| ("MILLPOND_NVTX", switch)));
    let output = program.output().expect("compute-sanitizer, of the CUDA toolkit");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn is_checked() -> bool {
    std::env::var("MILLPOND_TEST").is_ok_and(|part| part == "checked")
}

/// The part of the text that was printed before a step was over.
fn before<'a>(text: &'a str, step: &str) -> &'a str {
    let (before, _) =
        text.split_once(&format!("step: {step}\n")).unwrap_or_else(|| panic!("{step}:\n{text}"));
    before.rsplit_once("step: ").map_or(before, |(_, last)| last)
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_byte_written_behind_a_block_is_reported() {
    if is_checked() {
        let rig = Rig::new(CudaOptions::default());
        let (pool, stream) = (&rig.pool, &rig.stream);
        let _forward = tag("forward");
        let alloc = || pool.alloc(1000, stream).unwrap();
        let [first, second] = [alloc(), alloc()];
        assert!(first.raw().abs_diff(second.raw()) <= MIB, "two blocks of one segment");
        rig.step("within", first, 999);
        rig.step("behind", first, 1000);
        rig.step("other", second, 0);
        pool.free_block(first, stream).unwrap();
        rig.step("freed", first, 0);
        assert_eq!(alloc(), first);
        rig.step("anew", first, 999);
        // Freed while the kernel may be at work.
        rig.put(second, 999);
        pool.free_block(second, stream).unwrap();
        let large = pool.alloc(40 * MIB, stream).unwrap();
        rig.step("large", large, 40 * MIB - 1);
        return pool.check().unwrap();
    }
    let said = checked("a_byte_written_behind_a_block_is_reported", None);
    let reported =
        |step: &str| before(&said, step).matches("Invalid __global__ write of size 1 bytes").count();
    let steps = ["within", "behind", "other", "freed", "anew", "large"];
    assert_eq!(steps.map(reported), [0, 1, 0, 1, 0, 0], "{said}");
    let behind = before(&said, "behind");
    assert!(
        behind.contains("is 1 bytes after the nearest allocation") && behind.contains("of size 1,000 bytes"),
        "{said}"
    );
    assert!(!said.contains("Warning: Call to nvtx"), "a call was refused: {said}");
    println!("{behind}");
    let said = checked("a_byte_written_behind_a_block_is_reported", Some("off"));
    assert!(said.contains("ERROR SUMMARY: 0 errors") && !said.contains("Warning: Call to nvtx"), "{said}");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn what_graphs_and_pages_do_is_no_error() {
    if is_checked() {
        let rig = Rig::new(CudaOptions::default());
        let (pool, stream) = (&rig.pool, &rig.stream);
        assert!(!rig.context.device().properties().virtual_memory);
        let memory = pool.capture_pool();
        let capturing = memory.begin(stream).unwrap();
        // SAFETY: the stream is alive.
        ok(unsafe {
            sys::cuStreamBeginCapture_v2(raw(stream), CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
        });
        for bytes in [5000, 3000, 4000] {
            let block = pool.alloc(bytes, stream).unwrap();
            rig.put(block, bytes - 1);
            pool.free_block(block, stream).unwrap();
        }
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: both are writable, and the capture began on this stream.
        unsafe {
            ok(sys::cuStreamEndCapture(raw(stream), &mut graph));
            ok(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        }
        drop(capturing);
        for _ in 0..3 {
            // SAFETY: the graph lives, and so does the memory that it uses.
            ok(unsafe { sys::cuGraphLaunch(exec, raw(stream)) });
        }
        rig.context.synchronize().unwrap();
        println!("step: graph");
        let pages = Rig::new(CudaOptions::default().virtual_memory(true));
        let block = pages.pool.alloc(1000, &pages.stream).unwrap();
        pages.step("pages", block, 1000);
        return;
    }
    let said = checked("what_graphs_and_pages_do_is_no_error", None);
    before(&said, "graph");
    before(&said, "pages");
    assert!(said.contains("ERROR SUMMARY: 0 errors") && !said.contains("Warning: Call to nvtx"), "{said}");
}
