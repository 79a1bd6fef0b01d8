//! A shared library with the line, for a program without it.

use millpond_global as _;

/// Whether the pool can be had here: 0 for no, with what the error says in `said`.
///
/// # Safety
/// `said` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn has_pool(said: *mut u8, bytes: usize) -> usize {
    match millpond_global::pool(0) {
        Ok(_) => 1,
        Err(error) => {
            let text = error.to_string();
            let length = text.len().min(bytes);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), said, length) };
            0
        }
    }
}
