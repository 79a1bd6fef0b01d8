//! Values that the compiler cannot see through, at no cost.
//!
//! `std::hint::black_box` passes a value through memory: whoever uses it next waits until what was just written can be
//! read again, some five cycles. A pair takes thirty, and steps of it wait for each other; programs pass a block's address
//! in a register. So does this.

use std::ffi::c_void;
use std::ptr::NonNull;

use millpond::device::DevicePtr;

pub(crate) trait Opaque {
    /// The same value, of which the compiler knows nothing any more; nor of what is in memory.
    fn opaque(self) -> Self;
}

impl Opaque for u64 {
    #[inline(always)]
    fn opaque(self) -> Self {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        {
            let mut value = self;
            // SAFETY: there is no instruction in it. Memory counts as changed, which only keeps the compiler from moving
            // accesses across.
            unsafe { std::arch::asm!("/* {0} */", inout(reg) value, options(nostack, preserves_flags)) };
            value
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        std::hint::black_box(self)
    }
}

impl Opaque for DevicePtr {
    #[inline(always)]
    fn opaque(self) -> Self {
        Self::new(self.raw().opaque())
    }
}

impl Opaque for NonNull<c_void> {
    #[inline(always)]
    fn opaque(self) -> Self {
        let same = self.as_ptr().map_addr(|addr| (addr as u64).opaque() as usize);
        // SAFETY: it is the same value.
        unsafe { Self::new_unchecked(same) }
    }
}
