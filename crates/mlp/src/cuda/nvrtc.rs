//! Compiling `kernels.cu` for the GPU at hand.

use std::ffi::{CStr, CString, c_char, c_int};

use cudarc::nvrtc::{
    result::{self, NvrtcError},
    sys::{self, nvrtcProgram, nvrtcResult},
};
use millpond::device::cuda;

use super::toolkit::{self, Wanted};
use crate::{Error, Result};

pub(super) const NVRTC: Wanted =
    Wanted { name: "NVRTC", stem: "nvrtc", wheel: "nvidia-cuda-nvrtc", is_present: sys::is_culib_present };

/// What to compile for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Machine code of this GPU.
    Exact(c_int),
    /// Assembly of the newest GPU that the compiler knows, which the driver translates for a newer one.
    Portable(c_int),
}

/// Compiles `source` for a GPU of this compute capability (90 for 9.0), to what `cuModuleLoadData` takes.
///
/// # Errors
/// [`Error::Library`] where the compiler is missing, or with its log.
pub(super) fn compile(source: &str, capability: c_int, defines: &[String]) -> Result<Vec<u8>> {
    let target = choose(&architectures()?, capability)?;
    let architecture = match target {
        Target::Exact(number) => format!("--gpu-architecture=sm_{number}"),
        Target::Portable(number) => format!("--gpu-architecture=compute_{number}"),
    };
    let options: Vec<String> = std::iter::once(architecture)
        .chain(defines.iter().map(|define| format!("--define-macro={define}")))
        .collect();
    let source = CString::new(source).expect("our own sources have no zero byte");
    let program = Program::create(&source)?;
    program.compile(&options)?;
    match target {
        Target::Exact(_) => program.image(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        Target::Portable(_) => program.image(sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    }
}

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

fn choose(known: &[c_int], capability: c_int) -> Result<Target> {
    if known.contains(&capability) {
        return Ok(Target::Exact(capability));
    }
    known.iter().copied().filter(|number| *number < capability).max().map(Target::Portable).ok_or_else(|| {
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

impl Program {
    fn create(source: &CStr) -> Result<Self> {
        result::create_program(source, Some(c"kernels.cu")).map(Self).map_err(refused("nvrtcCreateProgram"))
    }

    fn compile(&self, options: &[String]) -> Result<()> {
        // SAFETY: the program lives.
        unsafe { result::compile_program(self.0, options) }.map_err(|error| {
            let error = refused("nvrtcCompileProgram")(error);
            // SAFETY: the program lives.
            match unsafe { result::get_program_log(self.0) } {
                Ok(log) => failed(format!("{error}\n{}", text(&log))),
                Err(_) => error,
            }
        })
    }

    /// What the program has under a pair of size and copy functions.
    fn image(
        &self,
        size: unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult,
        copy: unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program lives, and `bytes` is writable.
        unsafe { size(self.0, &mut bytes) }.result().map_err(refused("asking for the size"))?;
        let mut image = vec![0_u8; bytes];
        // SAFETY: the program lives, and there is room for as many bytes as it asked for.
        let copied = unsafe { copy(self.0, image.as_mut_ptr().cast()) };
        copied.result().map_err(refused("copying the result"))?;
        Ok(image)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A refusal leaks one program, and there is nobody to tell.
        // SAFETY: the program is not used again.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// A log without the zero and the empty line at its end.
fn text(log: &[c_char]) -> String {
    String::from_utf8_lossy(bytemuck::cast_slice(log)).trim_end_matches(['\0', '\n']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::kernels;
    use super::*;

    #[test]
    fn a_newer_gpu_gets_assembly_of_the_newest_known() {
        assert_eq!(choose(&[75, 80, 90], 90).unwrap(), Target::Exact(90));
        assert_eq!(choose(&[75, 80, 90], 103).unwrap(), Target::Portable(90));
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
                let image = compile(kernels::SOURCE, capability, &kernels::defines(precision));
                assert!(!image.unwrap().is_empty());
            }
        }
        let error = compile("__global__ void broken( {", 90, &[]).unwrap_err().to_string();
        assert!(error.contains("kernels.cu(1)"), "{error}");
    }
}
