//! What programs do over the stand-in for the driver (`crates/run/tests/c/standin.c`), and how a test runs itself as such a program.

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaStream};

/// A library of the operating system's path, compiled from C, under a name in `folder`.
fn compile(folder: &Path, source: &str, arguments: &[&str], name: &str) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../run/tests/c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-shared", "-fPIC"]);
    compiler.arg(sources.join(source)).args(arguments).arg("-o").arg(folder.join(name)).current_dir(folder);
    let output = compiler.output().expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The folder with the stand-in; `None` where there is no compiler.
pub(crate) fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        if Command::new("cc").arg("--version").output().is_err() {
            assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "cc is not installed");
            eprintln!("not run: cc is not installed");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("global-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("cargo made the folder above");
        compile(&folder, "standin.c", &["-Wl,-soname,libcuda.so.1"], "libcuda.so.1");
        // As NVIDIA's runtime: it looks for the driver itself.
        compile(&folder, "loaded.c", &["-DLIBRARY"], "libcudart-test.so");
        // Linked with the driver, as a library of kernels.
        compile(&folder, "plugin.c", &["-DLIBRARY", "./libcuda.so.1"], "plugin.so");
        Some(folder)
    };
    BUILT.get_or_init(build).as_deref()
}

/// Runs one of this test's own ignored cases in a process of its own, over the stand-in.
pub(crate) fn program(case: &str, environment: &[(&str, &str)]) -> Option<Output> {
    let folder = built()?;
    let mut program = Command::new(std::env::current_exe().expect("a running test has a path"));
    program.args(["--exact", case, "--ignored", "--nocapture", "--test-threads=1"]);
    program.env("LD_LIBRARY_PATH", folder).current_dir(folder).envs(environment.iter().copied());
    Some(program.output().expect("it runs"))
}

/// That it went well.
#[track_caller]
pub(crate) fn succeeds(case: &str, environment: &[(&str, &str)]) -> Option<String> {
    let output = program(case, environment)?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{case}: {stdout}{stderr}");
    assert!(stdout.contains("1 passed"), "{case}: {stdout}");
    Some(stderr)
}

/// How often the program, or a pool, called the stand-in's functions.
pub(crate) fn calls(names: &[&CStr]) -> u64 {
    type Calls = unsafe extern "C" fn(*const i8) -> std::ffi::c_ulong;
    // SAFETY: the stand-in is loaded, and its function has this type.
    unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY);
        let calls = libc::dlsym(driver, c"standin_calls".as_ptr());
        assert!(!calls.is_null(), "the stand-in is loaded");
        let calls = std::mem::transmute::<*mut c_void, Calls>(calls);
        names.iter().map(|name| calls(name.as_ptr())).sum()
    }
}

/// Allocations of the driver's.
pub(crate) fn drivers_allocations() -> u64 {
    calls(&[c"cuMemAllocAsync", c"cuMemAlloc_v2", c"cuMemAllocAsync_ptsz"])
}

/// As cudarc's users write it: buffers on two streams and on the default one.
pub(crate) fn pairs() -> Arc<CudaContext> {
    let context = CudaContext::new(0).expect("the stand-in has a GPU");
    let streams: [Arc<CudaStream>; 3] =
        [context.new_stream().unwrap(), context.new_stream().unwrap(), context.default_stream()];
    for step in 0..100 {
        for stream in &streams {
            // SAFETY: nobody reads it.
            let slice = unsafe { stream.alloc::<f32>(1000 + step) }.expect("memory");
            assert_eq!(slice.len(), 1000 + step);
        }
    }
    context
}
