//! What runs or loads files, and sockets that have a path.

use std::arch::naked_asm;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use super::before_change::to_make;
use super::redirect::{Behind, Named, behind, change, named, read, system};

type Words = *const *const c_char;

unsafe extern "C" {
    static environ: Words;
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, words: Words, variables: Words) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { read(named(path), |_, path| system!(SYS_execve, path, words, variables)) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, words: Words) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, words, environ) }
}

/// Calls with a program's own path. A name without a slash is looked for by the C library.
unsafe fn program<R: super::redirect::Failure>(
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    // SAFETY: the caller's promise.
    match unsafe { CStr::from_ptr(path) }.to_bytes().contains(&b'/') {
        // SAFETY: as above.
        true => unsafe { read(named(path), |_, path| call(path)) },
        false => call(path),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(path: *const c_char, words: Words) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { program(path, |path| behind!(c"execvp": fn(path => *const c_char, words => Words) -> c_int)) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(path: *const c_char, words: Words, variables: Words) -> c_int {
    let call =
        |path| behind!(c"execvpe": fn(path => *const c_char, words => Words, variables => Words) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { program(path, call) }
}

macro_rules! spawns {
    ($($name:ident = $real:literal;)*) => { $(
        /// # Safety
        /// As the C library's. It returns the number of an error.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            process: *mut c_int,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            words: Words,
            variables: Words,
        ) -> c_int {
            let call = |path| behind!($real: fn(
                process => *mut c_int, path => *const c_char, actions => *const c_void, attributes => *const c_void,
                words => Words, variables => Words
            ) -> c_int);
            // SAFETY: the caller's promise; the thread's own `errno`.
            unsafe {
                match program(path, call) {
                    -1 => *libc::__errno_location(),
                    answer => answer,
                }
            }
        }
    )* };
}

spawns! {
    posix_spawn = c"posix_spawn";
    posix_spawnp = c"posix_spawnp";
}

/// What `dlopen` does: jumps to the real function, with this path.
#[repr(C)]
struct Opening {
    path: *const c_char,
    real: *mut c_void,
}

static DLOPEN: Behind = Behind::new(c"dlopen");

/// # Safety
/// The path is null or a text of C.
unsafe extern "C" fn library(path: *const c_char) -> Opening {
    let real = DLOPEN.address();
    // SAFETY: the caller's promise.
    let is_path = !path.is_null() && unsafe { CStr::from_ptr(path) }.to_bytes().contains(&b'/');
    if !is_path {
        return Opening { path, real };
    }
    let other = |_, other: *const c_char| {
        // SAFETY: both are texts of C.
        let is_same = unsafe { libc::strcmp(path, other) } == 0;
        // Libraries are few, and stay.
        // SAFETY: as above.
        if is_same { path.cast_mut() } else { CString::into_raw(unsafe { CStr::from_ptr(other) }.to_owned()) }
    };
    // SAFETY: the caller's promise.
    let found = unsafe { read(named(path), other) };
    Opening { path: if found.is_null() { path } else { found }, real }
}

// The C library looks at who calls `dlopen`: a name is looked for where the caller's libraries are. So ours only changes the path,
// and jumps to the real function.

/// # Safety
/// As for the C library's `dlopen`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(_path: *const c_char, _mode: c_int) -> *mut c_void {
    naked_asm!(
        "push rsi",
        "call {library}",
        "pop rsi",
        "mov rdi, rax",
        "jmp rdx",
        library = sym library,
    )
}

/// # Safety
/// As for the C library's `dlopen`.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(_path: *const c_char, _mode: c_int) -> *mut c_void {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "str x1, [sp, #16]",
        "mov x29, sp",
        "bl {library}",
        "mov x16, x1",
        "ldr x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        library = sym library,
    )
}

/// The path of a socket's address, if it has one.
unsafe fn socket_path(address: *const libc::sockaddr_un, bytes: libc::socklen_t) -> Option<CString> {
    let before = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    let length = (bytes as usize).min(size_of::<libc::sockaddr_un>()).checked_sub(before)?;
    // SAFETY: the address has so many bytes by the caller's promise, and each kind begins with its family.
    unsafe {
        if address.is_null() || length == 0 || (*address).sun_family != libc::AF_UNIX as libc::sa_family_t {
            return None;
        }
        let path = std::slice::from_raw_parts((&raw const (*address).sun_path).cast::<u8>(), length);
        let path = path.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())?;
        CString::new(path).ok()
    }
}

/// An address with this path. `None` where it has no room.
fn address_of(path: *const c_char) -> Option<libc::sockaddr_un> {
    // SAFETY: it is a text of C.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    // SAFETY: zeros are an address without a path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let room = address.sun_path.get_mut(..path.len())?;
    room.iter_mut().zip(path).for_each(|(to, byte)| *to = *byte as c_char);
    Some(address)
}

macro_rules! sockets {
    ($($name:ident = $number:ident, |$at:ident, $call:ident| $do:expr;)*) => { $(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(socket: c_int, address: *const libc::sockaddr_un, bytes: libc::socklen_t) -> c_int {
            // SAFETY: the caller's promise.
            let Some(path) = (unsafe { socket_path(address, bytes) }) else {
                return system!($number, socket, address, bytes);
            };
            let $at: Named = named(path.as_ptr());
            let $call = |_, other: *const c_char| match address_of(other) {
                // SAFETY: both are texts of C.
                _ if unsafe { libc::strcmp(path.as_ptr(), other) } == 0 => system!($number, socket, address, bytes),
                Some(other) => system!($number, socket, &raw const other, size_of::<libc::sockaddr_un>()),
                None => super::redirect::Failure::failed(rustix::io::Errno::NAMETOOLONG),
            };
            // SAFETY: the caller's promise.
            unsafe { $do }
        }
    )* };
}

sockets! {
    bind = SYS_bind, |at, call| change(at.follows(false), |store, found| to_make(store, found).map_err(in_use), call);
    connect = SYS_connect, |at, call| read(at, call);
}

/// As `bind` says that there is something.
fn in_use(error: rustix::io::Errno) -> rustix::io::Errno {
    if error == rustix::io::Errno::EXIST { rustix::io::Errno::ADDRINUSE } else { error }
}
