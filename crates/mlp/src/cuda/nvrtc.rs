//! Compiling `kernels.cu` for the GPU at hand.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use libloading::Library;
use millpond::device::cuda;

use super::library::{self, Wanted, function_table};
use crate::{Error, Result};

pub(super) const NVRTC: Wanted = Wanted { name: "NVRTC", stem: "libnvrtc", wheel: "nvidia-cuda-nvrtc" };

type Program = *mut c_void;

function_table! {
    Functions {
        nvrtcGetErrorString(result: c_int) -> *const c_char;
        nvrtcGetNumSupportedArchs(count: *mut c_int) -> c_int;
        nvrtcGetSupportedArchs(architectures: *mut c_int) -> c_int;
        nvrtcCreateProgram(
            program: *mut Program,
            source: *const c_char,
            name: *const c_char,
            headers: c_int,
            header_texts: *const *const c_char,
            header_names: *const *const c_char,
        ) -> c_int;
        nvrtcDestroyProgram(program: *mut Program) -> c_int;
        nvrtcCompileProgram(program: Program, count: c_int, options: *const *const c_char) -> c_int;
        nvrtcGetProgramLogSize(program: Program, bytes: *mut usize) -> c_int;
        nvrtcGetProgramLog(program: Program, log: *mut c_char) -> c_int;
        nvrtcGetCUBINSize(program: Program, bytes: *mut usize) -> c_int;
        nvrtcGetCUBIN(program: Program, cubin: *mut c_char) -> c_int;
        nvrtcGetPTXSize(program: Program, bytes: *mut usize) -> c_int;
        nvrtcGetPTX(program: Program, ptx: *mut c_char) -> c_int;
    }
}

/// The runtime compiler.
pub(super) struct Nvrtc {
    functions: Functions,
}

/// What to compile for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Machine code of this GPU.
    Exact(c_int),
    /// Assembly of the newest GPU that the compiler knows, which the driver translates for a newer one.
    Portable(c_int),
}

impl Nvrtc {
    /// Finds and opens the compiler.
    pub(super) fn open() -> Result<Self> {
        Self::from_library(library::open(NVRTC)?)
    }

    fn from_library(library: &'static Library) -> Result<Self> {
        // SAFETY: the types are those of nvrtc.h, and the library is never closed.
        let functions =
            unsafe { Functions::look_up(library) }.map_err(|name| library::lacks(NVRTC.name, name))?;
        load_builtins();
        Ok(Self { functions })
    }

    /// Compiles `source` for a GPU of this compute capability (90 for 9.0), to what `cuModuleLoadData` takes.
    ///
    /// # Errors
    /// [`Error::Library`] with the compiler's log.
    pub(super) fn compile(&self, source: &str, capability: c_int, defines: &[String]) -> Result<Vec<u8>> {
        let target = choose(&self.architectures()?, capability)?;
        let architecture = match target {
            Target::Exact(number) => format!("--gpu-architecture=sm_{number}"),
            Target::Portable(number) => format!("--gpu-architecture=compute_{number}"),
        };
        let options: Vec<CString> = std::iter::once(architecture)
            .chain(defines.iter().map(|define| format!("--define-macro={define}")))
            .map(c_string)
            .collect();
        let program = OwnedProgram::create(self, &c_string(source))?;
        program.compile(&options)?;
        match target {
            Target::Exact(_) => program.image(self.functions.nvrtcGetCUBINSize, self.functions.nvrtcGetCUBIN),
            Target::Portable(_) => program.image(self.functions.nvrtcGetPTXSize, self.functions.nvrtcGetPTX),
        }
    }

    fn architectures(&self) -> Result<Vec<c_int>> {
        let mut count = 0;
        // SAFETY: `count` is writable.
        self.check("nvrtcGetNumSupportedArchs", unsafe {
            (self.functions.nvrtcGetNumSupportedArchs)(&mut count)
        })?;
        let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: there is room for `count` numbers.
        self.check("nvrtcGetSupportedArchs", unsafe {
            (self.functions.nvrtcGetSupportedArchs)(architectures.as_mut_ptr())
        })?;
        Ok(architectures)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a static C string for every number.
        let text = unsafe { CStr::from_ptr((self.functions.nvrtcGetErrorString)(code)) };
        Err(refused(format!("{call} failed: {} ({code})", text.to_string_lossy())))
    }
}

/// Loads what the compiler will ask the loader for by name alone: the loader does not look beside the compiler,
/// but a library that is loaded already is found. What is missing the compiler itself will say.
fn load_builtins() {
    let Some(compiler) = cuda::loaded_library("libnvrtc.so") else { return };
    let entries = compiler.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    for entry in entries.into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
            let _ = library::load(entry.path());
        }
    }
}

fn refused(what: String) -> Error {
    Error::Library { library: NVRTC.name, what }
}

/// A C string of a text of ours.
fn c_string(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).expect("our own sources and options have no zero byte")
}

fn choose(known: &[c_int], capability: c_int) -> Result<Target> {
    if known.contains(&capability) {
        return Ok(Target::Exact(capability));
    }
    known.iter().copied().filter(|number| *number < capability).max().map(Target::Portable).ok_or_else(|| {
        refused(format!(
            "it does not know GPUs of compute capability {}.{}: it is too new for this GPU; install an older CUDA \
             toolkit",
            capability / 10,
            capability % 10
        ))
    })
}

/// A program that is destroyed when it goes.
struct OwnedProgram<'n> {
    nvrtc: &'n Nvrtc,
    raw: Program,
}

impl<'n> OwnedProgram<'n> {
    fn create(nvrtc: &'n Nvrtc, source: &CStr) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable, both texts end in a zero, and there are no headers.
        nvrtc.check("nvrtcCreateProgram", unsafe {
            (nvrtc.functions.nvrtcCreateProgram)(
                &mut raw,
                source.as_ptr(),
                c"kernels.cu".as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        })?;
        Ok(Self { nvrtc, raw })
    }

    fn compile(&self, options: &[CString]) -> Result<()> {
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program lives, and the options are C strings that live until the call returns.
        let code = unsafe {
            (self.nvrtc.functions.nvrtcCompileProgram)(self.raw, pointers.len() as c_int, pointers.as_ptr())
        };
        self.nvrtc.check("nvrtcCompileProgram", code).map_err(|error| match self.log() {
            Ok(log) => refused(format!("{error}\n{log}")),
            Err(_) => error,
        })
    }

    fn log(&self) -> Result<String> {
        let functions = &self.nvrtc.functions;
        let log = self.image(functions.nvrtcGetProgramLogSize, functions.nvrtcGetProgramLog)?;
        Ok(String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned())
    }

    /// What the program has under a pair of size and copy functions.
    fn image(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        copy: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program lives, and `bytes` is writable.
        self.nvrtc.check("asking for the size", unsafe { size(self.raw, &mut bytes) })?;
        let mut image = vec![0_u8; bytes];
        // SAFETY: the program lives, and there is room for as many bytes as it asked for.
        self.nvrtc.check("copying the result", unsafe { copy(self.raw, image.as_mut_ptr().cast()) })?;
        Ok(image)
    }
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        // A refusal leaks one program, and there is nobody to tell.
        // SAFETY: the program is not used again.
        let _ = unsafe { (self.nvrtc.functions.nvrtcDestroyProgram)(&mut self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_newer_gpu_gets_assembly_of_the_newest_known_one() {
        assert_eq!(choose(&[75, 80, 90], 90).unwrap(), Target::Exact(90));
        assert_eq!(choose(&[75, 80, 90], 103).unwrap(), Target::Portable(90));
        assert!(choose(&[75, 80], 70).unwrap_err().to_string().contains("7.0"));
    }

    /// Needs the compiler, but no GPU: `MILLPOND_NVRTC=…/libnvrtc.so.13 cargo test -- --ignored kernels_compile`.
    /// On a GPU machine (scripts/gpu-test) the toolkit's is taken.
    #[test]
    #[ignore = "needs NVRTC, at MILLPOND_NVRTC or beside a CUDA GPU"]
    fn the_kernels_compile_for_every_gpu_that_the_compiler_knows() {
        let nvrtc = match std::env::var_os("MILLPOND_NVRTC") {
            Some(path) => Nvrtc::from_library(library::load(path).unwrap()),
            None => Nvrtc::open(),
        }
        .unwrap();
        for capability in nvrtc.architectures().unwrap() {
            let image =
                nvrtc.compile(super::super::kernels::SOURCE, capability, &super::super::kernels::defines());
            assert!(!image.unwrap().is_empty());
        }
        let error = nvrtc.compile("__global__ void broken( {", 90, &[]).unwrap_err().to_string();
        assert!(error.contains("kernels.cu(1)"), "{error}");
    }
}
