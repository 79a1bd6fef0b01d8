//! `dlsym` and `dlopen`, as the program's own libraries call them.
//!
//! The C library looks at who calls `dlsym`: `RTLD_NEXT` means the libraries behind the caller's. So ours does not call it. It
//! decides whether the answer is an entry point, and else jumps to the real function, which sees the caller as if we were not there.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::deep_binding;
use crate::entry_points::{ENTRY_POINTS, Meant, behind};
use crate::linker::{self, Address, OwnLookups, is_own};
use crate::names::{self, EntryPoint};

/// What `dlsym` does: answers with an entry point or, where that is null, jumps to the real function.
#[repr(C)]
struct Decision {
    entry: Address,
    real: Address,
}

/// What `dlopen` does: jumps to the real function, with this mode.
#[repr(C)]
struct Opening {
    mode: usize,
    real: Address,
}

/// # Safety
/// `name` is null or a text of C, as `dlsym` wants it.
unsafe extern "C" fn decide(library: Address, name: *const c_char) -> Decision {
    // SAFETY: the caller's promise.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    deep_binding::rebind(own());
    let (entry, real) = match look_up(library, name) {
        Found::EntryPoint(entry) => (entry, ptr::null_mut()),
        Found::Nothing => (ptr::null_mut(), nothing as *mut c_void),
        Found::Other => (ptr::null_mut(), linker::real_dlsym()),
    };
    Decision { entry, real }
}

fn own() -> deep_binding::Replacements {
    deep_binding::Replacements { dlsym: dlsym as *mut c_void, dlopen: dlopen as *mut c_void }
}

enum Found {
    /// One of our entry points, or what is there without this library.
    EntryPoint(Address),
    /// What only this library has: without a driver, the program shall find none.
    Nothing,
    /// The real function's to say.
    Other,
}

/// It may be asked before the program's own libraries are set up. So a name that is not the driver's leaves at once.
fn look_up(library: Address, name: &CStr) -> Found {
    if !name.to_bytes().starts_with(b"cu") || is_own() {
        return Found::Other;
    }
    let Some(entry) = names::by_symbol(ENTRY_POINTS, name) else { return Found::Other };
    // Behind the caller lies the driver, if anywhere.
    let library = if library == libc::RTLD_NEXT { libc::RTLD_DEFAULT } else { library };
    // SAFETY: the program has opened it.
    let found = unsafe { linker::symbol(library, name) };
    if found.is_null() {
        return Found::Other;
    }
    let is_own = entry.is_exported(found);
    match if is_own { Meant::by_name(entry) } else { Meant::by(found, entry) } {
        Meant::Others(_) if !is_own => Found::Other,
        Meant::Others(found) => Found::EntryPoint(found),
        // Where only this library has it, there may be no driver.
        Meant::EntryPoint if linker::loaded_driver().is_some() && !behind(entry).is_null() => {
            load_own();
            Found::EntryPoint(entry.address())
        }
        Meant::EntryPoint => Found::Nothing,
    }
}

/// This code is in what the program is made of, so this crate's own look-ups come here, too.
static IS_LINKED_IN: AtomicBool = AtomicBool::new(false);

/// Says so.
pub(crate) fn is_linked_in() {
    // Relaxed: before there are threads.
    IS_LINKED_IN.store(true, Ordering::Relaxed);
}

/// The pools' own calls find the driver, whoever looks it up first: before an entry point is answered.
fn load_own() {
    static LOADED: Once = Once::new();
    if IS_LINKED_IN.load(Ordering::Relaxed) {
        LOADED.call_once(|| {
            let _own = OwnLookups::begin();
            // Where the driver is too old for pools, they say so.
            _ = millpond::device::cuda::load_driver();
        });
    }
}

/// Has the loaded libraries come here, and those that are loaded later, if the program does not show them its functions.
pub(crate) fn reach_loaded() {
    // SAFETY: both ask for what all libraries see.
    let [seen, seen_entry] =
        unsafe { [c"dlsym", c"cuMemAlloc_v2"].map(|name| linker::symbol(libc::RTLD_DEFAULT, name)) };
    let is_entry = |entry: &EntryPoint| entry.is_exported(seen_entry);
    if seen != dlsym as *mut c_void || !names::by_symbol(ENTRY_POINTS, c"cuMemAlloc_v2").is_some_and(is_entry)
    {
        deep_binding::expect_always();
        deep_binding::rebind(own());
    }
}

/// Stands for `dlsym` where there is nothing. So `dlerror` says that.
///
/// # Safety
/// `name` is a text of C.
unsafe extern "C" fn nothing(_library: Address, name: *const c_char) -> Address {
    // SAFETY: the C library is loaded, and has none of the driver's names.
    unsafe { linker::symbol(libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY), CStr::from_ptr(name)) }
}

/// An object that is opened with `RTLD_DEEPBIND` finds the C library's `dlsym` before ours. For a CUDA library it is left out.
///
/// # Safety
/// `file` is null or a text of C.
unsafe extern "C" fn open(file: *const c_char, mode: c_int) -> Opening {
    let is_deep = mode & libc::RTLD_DEEPBIND != 0 && !file.is_null() && !is_own();
    let is_cuda = is_deep && {
        // SAFETY: the caller's promise.
        let path = unsafe { CStr::from_ptr(file) }.to_bytes();
        path.rsplit(|byte| *byte == b'/').next().is_some_and(|file| file.starts_with(b"libcu"))
    };
    if is_deep && !is_cuda {
        deep_binding::expect();
    } else if !is_own() {
        deep_binding::expect_another();
    }
    let mode = if is_cuda { mode & !libc::RTLD_DEEPBIND } else { mode };
    Opening { mode: mode as usize, real: linker::real_dlopen() }
}

// Each keeps the arguments on the stack, asks the function above, and restores them. A structure of two words is returned in
// two registers.

/// # Safety
/// As for the C library's `dlsym`.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(any(test, tsan)), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(_library: Address, _name: *const c_char) -> Address {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp rdx",
        "2:",
        "ret",
        decide = sym decide,
    )
}

/// # Safety
/// As for the C library's `dlopen`.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(any(test, tsan)), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(_file: *const c_char, _mode: c_int) -> Address {
    naked_asm!(
        "push rdi",
        "call {open}",
        "pop rdi",
        "mov esi, eax",
        "jmp rdx",
        open = sym open,
    )
}

/// # Safety
/// As for the C library's `dlsym`.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(any(test, tsan)), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(_library: Address, _name: *const c_char) -> Address {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "mov x29, sp",
        "bl {decide}",
        "mov x8, x0",
        "mov x16, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbnz x8, 2f",
        "br x16",
        "2:",
        "mov x0, x8",
        "ret",
        decide = sym decide,
    )
}

/// # Safety
/// As for the C library's `dlopen`.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(any(test, tsan)), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(_file: *const c_char, _mode: c_int) -> Address {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "str x0, [sp, #16]",
        "mov x29, sp",
        "bl {open}",
        "mov x16, x1",
        "mov x1, x0",
        "ldr x0, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        open = sym open,
    )
}
