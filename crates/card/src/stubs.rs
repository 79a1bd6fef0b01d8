//! How functions answer whose arguments nobody looks at.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Success, as the runtime, the driver, cuBLAS and cuDNN say it.
pub(crate) const DONE: c_int = 0;

/// Functions that are done at once. Their arguments need not be named: the caller of a C function puts them where they harm nobody.
macro_rules! done {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            $crate::stubs::DONE
        }
    )* };
}

/// Functions whose first argument is where the answer goes.
macro_rules! answers {
    ($($name:ident: $type:ty = $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(answer: *mut $type) -> c_int {
            if !answer.is_null() {
                // SAFETY: the caller names a place for the answer.
                unsafe { answer.write($value) };
            }
            $crate::stubs::DONE
        }
    )* };
}

pub(crate) use {answers, done};

/// A stream, an event, a graph: never looked at, and each another one.
pub(crate) fn handle() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0x1000);
    // Relaxed: the number alone has to be another one.
    LAST.fetch_add(16, Ordering::Relaxed)
}
