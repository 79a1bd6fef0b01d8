//! The real `dlsym`, libcuda through it, and the guard under which our own look-ups find the driver.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A function or a handle of the dynamic linker.
pub(crate) type Address = *mut c_void;

type Dlsym = unsafe extern "C" fn(Address, *const c_char) -> Address;

/// How many guards there are, on all threads.
static GUARDS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How many of them the thread has. It has no destructor, so that a look-up may come at any time of a thread.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// While this lives, what the thread looks up is the driver's and no entry point: the pool's own calls are no program's.
pub(crate) struct OwnLookups {
    // The count belongs to the thread, so the guard must not leave it.
    on_this_thread: PhantomData<*const ()>,
}

impl OwnLookups {
    pub(crate) fn begin() -> Self {
        // Relaxed, here and below: the thread itself sees its own change, and others' do not concern it.
        GUARDS.fetch_add(1, Ordering::Relaxed);
        OWN.set(OWN.get() + 1);
        Self { on_this_thread: PhantomData }
    }
}

impl Drop for OwnLookups {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
        GUARDS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the thread has a guard. Without any, the thread's own count is not looked at, which takes a call.
#[inline]
pub(crate) fn is_own() -> bool {
    GUARDS.load(Ordering::Relaxed) > 0 && OWN.get() > 0
}

/// The address of the C library's own `dlsym`. It may be asked before anything else of the process is set up.
pub(crate) fn real_dlsym() -> Address {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    next(&REAL, c"dlsym")
}

/// Likewise `dlopen`.
pub(crate) fn real_dlopen() -> Address {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    next(&REAL, c"dlopen")
}

/// The definition of a name behind this library, by the versions that the C library has given it.
fn next(kept: &AtomicPtr<c_void>, name: &CStr) -> Address {
    // Relaxed: each thread finds the same, and nothing is behind it but code.
    let known = kept.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // Since glibc 2.34 in libc itself; before, in libdl, under the first version of the processor's port.
    const FIRST: &CStr = if cfg!(target_arch = "aarch64") { c"GLIBC_2.17" } else { c"GLIBC_2.2.5" };
    let versions = [c"GLIBC_2.34", FIRST];
    let found = versions.iter().find_map(|version| {
        // SAFETY: both are texts of C. The function is not ours, so that this does not come back here.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) };
        (!found.is_null()).then_some(found)
    });
    let found = found.unwrap_or(ptr::null_mut());
    kept.store(found, Ordering::Relaxed);
    found
}

/// What a library has under a name; null where it has nothing.
///
/// # Safety
/// The library is open, or one of the linker's names for several.
pub(crate) unsafe fn symbol(library: Address, name: &CStr) -> Address {
    let real = real_dlsym();
    if real.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the C library's `dlsym` has this type.
    let real = unsafe { std::mem::transmute::<Address, Dlsym>(real) };
    // SAFETY: the caller's promise.
    unsafe { real(library, name.as_ptr()) }
}

/// Whether this code is in the program itself, and not in a library.
pub(crate) fn is_in_program() -> bool {
    // SAFETY: asks for a number.
    is_in_this_file(ptr::without_provenance_mut(unsafe { libc::getauxval(libc::AT_ENTRY) } as usize))
}

/// Whether an address is in the same file, the program or a library, as this code.
pub(crate) fn is_in_this_file(address: Address) -> bool {
    let file_of = |address: Address| {
        let mut about = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: `about` is writable.
        let found = unsafe { libc::dladdr(address, about.as_mut_ptr()) };
        // SAFETY: written, where it was found.
        (found != 0).then(|| unsafe { about.assume_init() }.dli_fbase.addr())
    };
    // Not of a function that others may see: its name could mean another file's.
    let own = file_of(is_in_program as *mut c_void);
    own.is_some() && own == file_of(address)
}

/// The driver's library, where the process has loaded it already.
pub(crate) fn loaded_driver() -> Option<Address> {
    open_driver(libc::RTLD_NOLOAD)
}

/// The driver's library, loaded if need be.
pub(crate) fn driver() -> Option<Address> {
    static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // Relaxed: as in `next`.
    let known = DRIVER.load(Ordering::Relaxed);
    if !known.is_null() {
        return Some(known);
    }
    let opened = open_driver(0)?;
    DRIVER.store(opened, Ordering::Relaxed);
    Some(opened)
}

fn open_driver(flags: c_int) -> Option<Address> {
    // What the driver looks up while it is loaded is its own.
    let _own = OwnLookups::begin();
    // SAFETY: loading libcuda runs its initialisers, which any CUDA program does.
    let opened = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | flags) };
    (!opened.is_null()).then_some(opened)
}
