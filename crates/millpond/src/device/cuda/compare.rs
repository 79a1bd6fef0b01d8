//! A kernel that looks for another byte in a range: `compare.cu`.
//!
//! `compare.ptx` was made of it by `scripts/kernels`, and is what is loaded: users need no compiler.

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUlaunchConfig, CUmodule, CUstream};

use super::api::{Api, Failure};
use super::context::Context;
use crate::device::{DevicePtr, DeviceResult};
use crate::log::log;
use crate::system::lock::Mutex;

/// Ended by a zero byte, as the driver wants it.
const PTX: &str = concat!(include_str!("compare.ptx"), "\0");

const THREADS: u64 = 256;

/// Blocks of threads at most. They fill any GPU; in a longer range, each thread takes several steps.
const MOST_BLOCKS: u64 = 2048;

/// Bytes that a thread looks at in one step.
const STEP: u64 = 16;

/// The kernel, and a word of the device's memory for its answer.
#[derive(Debug)]
pub(super) struct Comparing {
    api: &'static Api,
    module: CUmodule,
    function: CUfunction,
    /// One answer at a time.
    found: Mutex<CUdeviceptr>,
    context: Arc<Context>,
}

// SAFETY: modules and functions are handles that any thread may use.
unsafe impl Send for Comparing {}
// SAFETY: as above.
unsafe impl Sync for Comparing {}

impl Comparing {
    /// Loads the kernel into the context, which is current; `None` where the driver does not take it.
    pub(super) fn load(api: &'static Api, context: &Arc<Context>) -> Option<Self> {
        let mut module = null_mut();
        // SAFETY: `module` is writable, and the text is ended.
        let loaded = unsafe { api.cuModuleLoadData(&mut module, PTX.as_ptr().cast()) }?;
        if let Err(failure) = loaded {
            log!(
                DEBUG,
                "the kernel that compares bytes was not loaded",
                failure = format_args!("{failure:?}")
            );
            return None;
        }
        let (mut function, mut found) = (null_mut(), 0);
        // SAFETY: `function` is writable, and the name is ended.
        let looked_up = unsafe { api.cuModuleGetFunction(&mut function, module, c"differs".as_ptr()) }?;
        // SAFETY: `found` is writable.
        let taken = looked_up.and_then(|()| unsafe { api.cuMemAlloc_v2(&mut found, size_of::<c_uint>()) });
        if let Err(failure) = taken {
            log!(
                DEBUG,
                "the kernel that compares bytes cannot be used",
                failure = format_args!("{failure:?}")
            );
            // SAFETY: nobody else knows the module.
            let _ = unsafe { api.cuModuleUnload(module) };
            return None;
        }
        Some(Self { api, module, function, found: Mutex::new(found), context: context.clone() })
    }

    /// Whether any of the bytes is not `value`. Waits for the stream; the context is current.
    ///
    /// # Safety
    /// As for [`Device::may_differ`](crate::device::Device::may_differ).
    pub(super) unsafe fn differs(
        &self,
        at: DevicePtr,
        value: u8,
        bytes: u64,
        stream: CUstream,
    ) -> DeviceResult<bool> {
        if !at.raw().is_multiple_of(STEP) {
            // The caller looks for itself.
            return Ok(true);
        }
        let found = self.found.lock();
        let blocks = bytes.div_ceil(STEP * THREADS).clamp(1, MOST_BLOCKS) as c_uint;
        let (mut address, mut bytes, mut value, mut to) = (at.raw(), bytes, c_uint::from(value), *found);
        let mut arguments = [
            (&raw mut address).cast(),
            (&raw mut bytes).cast(),
            (&raw mut value).cast(),
            (&raw mut to).cast(),
        ];
        // SAFETY: all zeros is a valid value of this C structure: no attributes, no shared memory.
        let mut config: CUlaunchConfig = unsafe { std::mem::zeroed() };
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (blocks, 1, 1);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (THREADS as c_uint, 1, 1);
        config.hStream = stream;
        let (api, mut answer) = (self.api, 0_u32);
        let to: *mut c_void = (&raw mut answer).cast();
        let mut ask = || {
            // SAFETY: the word is ours while it is locked, and whoever had it before has waited. The arguments are the kernel's,
            // which reads the caller's range. `answer` lives until the stream was waited for.
            unsafe {
                api.cuMemsetD8Async(*found, 0, size_of::<c_uint>(), stream)?;
                let launched =
                    api.cuLaunchKernelEx(&config, self.function, arguments.as_mut_ptr(), null_mut());
                let Some(launched) = launched else { return Ok(false) };
                launched?;
                api.cuMemcpyDtoHAsync_v2(to, *found, size_of::<c_uint>(), stream)?;
            }
            Ok::<_, Failure>(true)
        };
        let asked = ask();
        // SAFETY: the caller's stream. Also after an error: what was given to it uses the word.
        unsafe { api.cuStreamSynchronize(stream) }?;
        Ok(!asked? || answer != 0)
    }
}

impl Drop for Comparing {
    fn drop(&mut self) {
        if self.context.check_alive().is_err() {
            // The module is the parent's, or ended with the context.
            return;
        }
        // SAFETY: nobody is in a call of this, so the word and the kernel are not in use.
        let freed = unsafe { self.api.cuMemFree_v2(*self.found.get_mut()) };
        // SAFETY: as above.
        let unloaded = unsafe { self.api.cuModuleUnload(self.module) }.unwrap_or(Ok(()));
        if let Err(failure) = freed.and(unloaded) {
            log!(
                DEBUG,
                "the kernel that compares bytes was not unloaded",
                failure = format_args!("{failure:?}")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_ptx_belongs_to_the_source_and_is_for_every_gpu() {
        let digest = Sha256::digest(include_str!("compare.cu"));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(PTX.lines().next(), Some(&*format!("// compare.cu {digest}")), "run scripts/kernels");
        assert!(PTX.contains(".target sm_75"), "for every GPU since Turing");
        assert!(PTX.contains(".version 8.0"), "for every driver since CUDA 12.0");
        assert!(PTX.contains(".entry differs("));
    }
}
