//! Throwing PyTorch's C++ exceptions from Rust.
//!
//! PyTorch's pluggable allocator does not check what an allocation returns: null would become a tensor. Its own
//! allocators throw `c10::OutOfMemoryError`, which Python sees as `torch.OutOfMemoryError`; so do we. Nothing of PyTorch
//! is linked: what is needed is looked up in the libraries that are loaded already.
//!
//! **What this relies on**, all of the Itanium C++ ABI that GCC and Clang share on Linux: the mangled names below (they
//! hold the parameters' types, so that a changed signature is a missing name); that an object's first word points to its
//! class's table of virtual functions, whose first entry is the destructor; that `c10::OutOfMemoryError` adds nothing
//! to `c10::Error` but its type; that an object of either has less than [`ROOM`] bytes; and that a `std::string` has 32.
//! Where a name is missing, `c10::detail::torchCheckFail` throws a plain `c10::Error`, which Python sees as a
//! `RuntimeError`. The functions through which the exception passes are `extern "C-unwind"`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

/// Bytes for an exception. `c10::Error` has 128 in PyTorch 2.11.
const ROOM: usize = 1024;

/// `c10::SourceLocation`.
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `std::string` of libstdc++, made and destroyed by its own functions.
#[repr(C, align(8))]
struct StdString([u8; 32]);

type CheckFail = unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char) -> !;

/// What it takes to throw `c10::OutOfMemoryError`.
struct OutOfMemory {
    allocate: unsafe extern "C" fn(usize) -> *mut c_void,
    throw: unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !,
    make_string: unsafe extern "C-unwind" fn(*mut StdString, *const c_char, *const c_void),
    destroy_string: unsafe extern "C" fn(*mut StdString),
    /// The constructor takes the string by value, which for its type means by address.
    make_error: unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut StdString),
    type_info: *const c_void,
    virtuals: *const *const c_void,
}

struct Symbols {
    out_of_memory: Option<OutOfMemory>,
    check_fail: Option<CheckFail>,
}

// SAFETY: addresses of functions and constants of libraries that stay loaded.
unsafe impl Send for Symbols {}
// SAFETY: likewise; nothing behind them is written.
unsafe impl Sync for Symbols {}

static SYMBOLS: OnceLock<Symbols> = OnceLock::new();

/// Looks up what is needed, in the libraries that PyTorch has loaded. Whether out-of-memory errors will be PyTorch's.
pub(super) fn prepare() -> bool {
    SYMBOLS.get_or_init(|| Symbols { out_of_memory: find_out_of_memory(), check_fail: find_check_fail() });
    SYMBOLS.get().is_some_and(|symbols| symbols.out_of_memory.is_some())
}

/// A name of a library, if the library is loaded and has it.
pub(super) fn symbol(library: &CStr, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a library that is loaded already is only counted once more; none is loaded.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle is valid, and never closed.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn find_out_of_memory() -> Option<OutOfMemory> {
    let cpp = |name| symbol(c"libstdc++.so.6", name);
    let c10 = |name| symbol(c"libc10.so", name);
    let c10_cuda = |name| symbol(c"libc10_cuda.so", name);
    let error = c"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    let string = c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_";
    let no_string = c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev";
    // SAFETY: functions of these names have these types, by their mangled names and by the C++ ABI.
    unsafe {
        Some(OutOfMemory {
            allocate: function(cpp(c"__cxa_allocate_exception")?),
            throw: function(cpp(c"__cxa_throw")?),
            make_string: function(cpp(string)?),
            destroy_string: function(cpp(no_string)?),
            make_error: function(c10(error)?),
            type_info: c10_cuda(c"_ZTIN3c1016OutOfMemoryErrorE")?,
            virtuals: c10_cuda(c"_ZTVN3c1016OutOfMemoryErrorE")?.cast(),
        })
    }
}

fn find_check_fail() -> Option<CheckFail> {
    let found = symbol(c"libc10.so", c"_ZN3c106detail14torchCheckFailEPKcS2_jS2_")?;
    // SAFETY: the function of this mangled name has this type.
    Some(unsafe { function(found) })
}

/// The function at an address.
///
/// # Safety
/// `F` is the type of the function that is there.
unsafe fn function<F: Copy>(address: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "not a function's type") };
    // SAFETY: an address has the size of a function's, and as promised to this function.
    unsafe { std::mem::transmute_copy(&address) }
}

const FUNCTION: &CStr = c"millpond";
const FILE: &CStr = c"crates/python/src/hooks/throw.rs";

fn c_text(mut text: String) -> CString {
    text.retain(|character| character != '\0');
    CString::new(text).unwrap_or_default()
}

/// Throws `c10::OutOfMemoryError`, with the words that programs look for in PyTorch's own. Returns only where there is
/// no PyTorch.
pub(super) fn out_of_memory(text: String) {
    let text = format!("CUDA out of memory. {text}");
    let Some(symbols) = SYMBOLS.get().and_then(|symbols| symbols.out_of_memory.as_ref()) else {
        return error(text);
    };
    let message = c_text(text);
    let mut string = StdString([0; 32]);
    // An allocator is an empty class; its address is not looked at.
    let allocator = std::ptr::from_ref(&0u8).cast();
    // SAFETY: `string` has the room of a std::string and is made before it is used, and destroyed after; the message
    // ends with a zero byte.
    let exception = unsafe {
        (symbols.make_string)(&raw mut string, message.as_ptr(), allocator);
        drop(message);
        let exception = (symbols.allocate)(ROOM);
        let location = SourceLocation { function: FUNCTION.as_ptr(), file: FILE.as_ptr(), line: line!() };
        (symbols.make_error)(exception, location, &raw mut string);
        (symbols.destroy_string)(&raw mut string);
        exception
    };
    // SAFETY: the object is a complete `c10::Error`; its first word becomes the table of the derived class, which starts
    // two words behind the symbol, so that it is an `OutOfMemoryError`, and that class's destructor destroys it.
    unsafe {
        let virtuals = symbols.virtuals.add(2);
        exception.cast::<*const *const c_void>().write(virtuals);
        (symbols.throw)(exception, symbols.type_info, *virtuals)
    }
}

/// Throws `c10::Error`, a `RuntimeError` in Python. Returns only where there is no PyTorch.
pub(super) fn error(text: String) {
    let Some(check_fail) = SYMBOLS.get().and_then(|symbols| symbols.check_fail) else { return };
    let message = c_text(text);
    // SAFETY: texts that end with a zero byte. It copies them and throws; the message is dropped on the way.
    unsafe { check_fail(FUNCTION.as_ptr(), FILE.as_ptr(), line!(), message.as_ptr()) }
}
