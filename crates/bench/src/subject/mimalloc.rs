//! mimalloc, the host's own reference: what allocating costs where there are neither streams nor a device.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::interface::Subject;
use crate::opaque::Opaque;
use crate::{Error, Result};

/// The name by which the command knows it.
pub const MIMALLOC: &str = "mimalloc";

/// mimalloc, called by its own names and not as the program's allocator.
#[derive(Debug)]
pub(crate) struct Mimalloc;

/// A live block of host memory, known to nobody else.
#[derive(Debug)]
pub(crate) struct HostBlock(NonNull<c_void>);

impl Opaque for HostBlock {
    #[inline(always)]
    fn opaque(self) -> Self {
        Self(self.0.opaque())
    }
}

// SAFETY: the block is owned, and mimalloc lets any thread free it.
unsafe impl Send for HostBlock {}

impl Subject for Mimalloc {
    type Stream = ();
    type Block = HostBlock;

    fn name(&self) -> &'static str {
        MIMALLOC
    }

    fn create_stream(&self) -> Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn allocate(&self, bytes: u64, (): &()) -> Result<HostBlock> {
        // SAFETY: any size may be asked for; null says that there is no memory.
        let block = unsafe { libmimalloc_sys::mi_malloc(bytes as usize) };
        // Not `ok_or`, which makes an error at each call: 15 instructions.
        let Some(block) = NonNull::new(block) else { return Err(Error::HostMemory { bytes }) };
        Ok(HostBlock(block))
    }

    #[inline(always)]
    fn free(&self, block: HostBlock, (): &()) -> Result<()> {
        // SAFETY: the block came from `mi_malloc`, and this is its only free: it is given up here.
        unsafe { libmimalloc_sys::mi_free(block.0.as_ptr()) };
        Ok(())
    }
}
