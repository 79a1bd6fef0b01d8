//! Compiling `kernels.cu` for the GPU at hand. cudarc's own compilation gives assembly only, which an older driver refuses, and
//! panics where the library is missing.

use std::ffi::{CString, c_char, c_int};

use cudarc::nvrtc::{
    Ptx,
    result::{self, NvrtcError},
    sys::{self, nvrtcProgram, nvrtcResult},
};
use millpond::device::cuda;

use super::toolkit::{self, Wanted};
use crate::{Error, Result};

pub(super) const NVRTC: Wanted =
    Wanted { name: "NVRTC", stem: "nvrtc", wheel: "nvidia-cuda-nvrtc", is_present: sys::is_culib_present };

/// Compiles `source` for a GPU of this compute capability (90 for 9.0), to a module: to machine code of this GPU, or to assembly
/// of the newest one that the compiler knows, which the driver translates for a newer one.
///
/// # Errors
/// [`Error::Library`] where the compiler is missing, or with its log.
pub(super) fn compile(source: &str, capability: c_int, defines: &[String]) -> Result<Ptx> {
    let target = choose(&architectures()?, capability)?;
    let is_exact = target == capability;
    let kind = if is_exact { "sm" } else { "compute" };
    let mut options = vec![format!("--gpu-architecture={kind}_{target}")];
    options.extend(defines.iter().map(|define| format!("--define-macro={define}")));
    let source = CString::new(source).expect("our own sources have no zero byte");
    let program = result::create_program(&source, Some(c"kernels.cu"));
    let program = Program(program.map_err(refused("nvrtcCreateProgram"))?);
    // SAFETY: the program lives, here and below.
    unsafe { result::compile_program(program.0, &options) }.map_err(|error| {
        // SAFETY: as above.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        let log =
            String::from_utf8_lossy(bytemuck::cast_slice(&log)).trim_end_matches(['\0', '\n']).to_owned();
        failed(format!("nvrtcCompileProgram failed: {:?}\n{log}", error.0))
    })?;
    let (size, copy): (Size, Copy) = match is_exact {
        true => (sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        false => (sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    };
    let mut bytes = 0;
    // SAFETY: as above, and `bytes` is writable.
    unsafe { size(program.0, &mut bytes) }.result().map_err(refused("asking for the size"))?;
    let mut image = vec![0_u8; bytes];
    // SAFETY: as above, and there is room for as many bytes as it asked for.
    let copied = unsafe { copy(program.0, image.as_mut_ptr().cast()) };
    copied.result().map_err(refused("copying the result"))?;
    Ok(Ptx::from_binary(image))
}

type Size = unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult;
type Copy = unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult;

/// The GPUs that the compiler knows, by their compute capability. Loads the compiler.
fn architectures() -> Result<Vec<c_int>> {
    toolkit::find(NVRTC)?;
    load_builtins();
    let mut count = 0;
    // SAFETY: the library is there, and `count` is writable.
    let asked = unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) };
    asked.result().map_err(refused("nvrtcGetNumSupportedArchs"))?;
    let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for `count` numbers.
    let asked = unsafe { sys::nvrtcGetSupportedArchs(architectures.as_mut_ptr()) };
    asked.result().map_err(refused("nvrtcGetSupportedArchs"))?;
    Ok(architectures)
}

/// Loads what the compiler will ask the loader for by name alone: the loader does not look beside the compiler,
/// but a library that is loaded already is found. What is missing the compiler itself will say.
fn load_builtins() {
    // SAFETY: the library is there. From now on it stays loaded.
    unsafe { sys::culib() };
    let Some(compiler) = cuda::loaded_library("libnvrtc.so") else { return };
    let entries = compiler.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    for entry in entries.into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
            let _ = toolkit::load(entry.path());
        }
    }
}

/// The error for a call that the compiler refused.
fn refused(call: &'static str) -> impl Fn(NvrtcError) -> Error {
    move |error| failed(format!("{call} failed: {:?}", error.0))
}

fn failed(what: String) -> Error {
    Error::Library { library: NVRTC.name, what }
}

/// The GPU to compile for.
fn choose(known: &[c_int], capability: c_int) -> Result<c_int> {
    known.iter().copied().filter(|number| *number <= capability).max().ok_or_else(|| {
        failed(format!(
            "it does not know GPUs of compute capability {}.{}: it is too new for this GPU; install an older CUDA \
             toolkit",
            capability / 10,
            capability % 10
        ))
    })
}

/// A program that is destroyed when it goes.
struct Program(nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // A refusal leaks one program, and there is nobody to tell.
        // SAFETY: the program is not used again.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernels;
    use super::*;

    #[test]
    fn a_newer_gpu_gets_assembly_of_the_newest_known() {
        assert_eq!(choose(&[75, 80, 90, 100], 90).unwrap(), 90);
        assert_eq!(choose(&[75, 80, 90], 103).unwrap(), 90);
        assert!(choose(&[75, 80], 70).unwrap_err().to_string().contains("7.0"));
    }

    /// Needs the compiler, but no GPU: `MILLPOND_NVRTC=…/libnvrtc.so.13 cargo test -- --ignored kernels_compile`.
    /// On a GPU machine (scripts/gpu-test) the toolkit's is taken.
    #[test]
    #[ignore = "needs NVRTC, at MILLPOND_NVRTC or beside a CUDA GPU"]
    fn the_kernels_compile_for_every_gpu_that_the_compiler_knows() {
        if let Some(path) = std::env::var_os("MILLPOND_NVRTC") {
            toolkit::load(path).unwrap();
        }
        for capability in architectures().unwrap() {
            for precision in crate::Precision::ALL {
                compile(kernels::SOURCE, capability, &kernels::defines(precision)).unwrap();
            }
        }
        let error = compile("__global__ void broken( {", 90, &[]).unwrap_err().to_string();
        assert!(error.contains("kernels.cu(1)"), "{error}");
    }
}
