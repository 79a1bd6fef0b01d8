//! This code in the program itself, by `millpond-global`: the executable's functions come before those of all libraries.

use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use millpond::device::DeviceError;
use millpond::device::cuda::CudaDevice;
use millpond::{Error, Pool};

pub use crate::settings::Options;

use crate::linker::{self, Address, OwnLookups};
use crate::names::{self, Find};
use crate::settings::{self, Mode, settings};
use crate::{entry_points, gpus, lookup, messages, retained, streams, tags};

type HandOver = unsafe extern "C" fn(Find) -> Option<Find>;

/// Why the pools are none of this code's, if so.
static STANDS_BACK: AtomicPtr<String> = AtomicPtr::new(ptr::null_mut());

/// Called once, before the program begins.
pub fn begin() {
    lookup::is_linked_in();
    if !linker::is_in_program() {
        return begin_in_library();
    }
    // SAFETY: it asks for the libraries behind the program.
    let preloaded = unsafe { linker::symbol(libc::RTLD_NEXT, HAND_OVER) };
    if preloaded.is_null() {
        return lookup::reach_loaded();
    }
    // SAFETY: the preloaded library's function of this name has this type.
    let hand_over = unsafe { std::mem::transmute::<Address, HandOver>(preloaded) };
    // SAFETY: what it is given is this code's, and is never unloaded.
    match unsafe { hand_over(entry_points::find) } {
        Some(exported) => names::take_over(exported),
        None => {
            let why =
                "the pools are those of `millpond run`, which a library of the program used before it began";
            messages::say(why);
            stand_back(why);
        }
    }
}

const HAND_OVER: &CStr = c"millpond_run_hand_over";

/// In a shared library, whose own calls find the C library's `dlsym`, and the driver.
fn begin_in_library() {
    // SAFETY: it asks for what this library sees, which is its own after all that the program shows.
    let seen = unsafe { linker::symbol(libc::RTLD_DEFAULT, HAND_OVER) };
    if !seen.is_null() && !linker::is_in_this_file(seen) {
        return stand_back("the pools are those of `millpond run`");
    }
    let why = "millpond-global is in a shared library, whose functions come after the driver's. Put \
               `use millpond_global as _;` into the program, or start it by `millpond run`";
    // A machine without a GPU is told nothing.
    if ["/dev/nvidiactl", "/dev/dxg"].iter().any(|file| Path::new(file).exists()) {
        messages::say(why);
    }
    stand_back(why);
}

/// Leaves all memory to others.
fn stand_back(why: &str) {
    settings::leave_to_others();
    // It stays as long as the process.
    STANDS_BACK.store(Box::into_raw(Box::new(why.to_owned())), Ordering::Release);
}

/// The other side: a preloaded library lets the program's own copy of its code do everything from here on. Answers with what
/// programs find here; with nothing where there are pools already.
///
/// # Safety
/// The function finds entry points of such a copy, for good.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn millpond_run_hand_over(to: Find) -> Option<Find> {
    if !gpus::stats().is_empty() {
        return None;
    }
    entry_points::hand_over(to);
    Some(entry_points::exported)
}

/// What the program asks for in its code. An error once the first CUDA call has been made.
///
/// # Errors
/// [`Error::BadOption`] then.
pub fn set_options(options: Options) -> millpond::Result<()> {
    let why = "they were set before, or the program has made CUDA calls already: set them at the beginning of `main`";
    if settings::set(options) {
        Ok(())
    } else {
        Err(Error::BadOption { option: "millpond_global::options", why: why.to_owned() })
    }
}

/// Has the calling thread's allocations belong to a tag of the pools, or to none. Returns the tag before.
pub fn set_tag(tag: Option<Arc<str>>) -> Option<Arc<str>> {
    let before = tags::set(tag);
    streams::forget_last();
    before
}

/// The pool of a GPU's primary context, built if there is none. From then on, no release of the context ends it.
///
/// # Errors
/// [`DeviceError::Unavailable`] where there is no such GPU or no driver, or the memory is not a pool's. Those of the device.
pub fn pool(ordinal: usize) -> millpond::Result<Pool> {
    let unavailable = |why: String| Err(DeviceError::Unavailable(why).into());
    // Acquire: pairs with the Release of `stand_back`.
    let stands_back = STANDS_BACK.load(Ordering::Acquire);
    if !stands_back.is_null() {
        // SAFETY: `stand_back` stored a text that stays.
        return unavailable(unsafe { &*stands_back }.clone());
    }
    if settings().mode != Mode::Pool {
        return unavailable(format!(
            "the environment leaves memory to the driver ({})",
            settings().mode.variable()
        ));
    }
    // Before: the program need not retain the context itself, and its buffers are used by safe code. So no release is the last one.
    if let Ok(device) = c_int::try_from(ordinal) {
        retained::lock().add_other(device);
    }
    let known = || gpus::known().into_iter().find(|gpu| gpu.ordinal == ordinal).map(|gpu| gpu.pool.clone());
    if let Some(pool) = known() {
        return Ok(pool);
    }
    // It keeps the primary context until the pool does.
    let device = {
        let _own = OwnLookups::begin();
        CudaDevice::new(ordinal)?
    };
    let primary: *mut c_void = device.raw_context().cast();
    match gpus::of_context(primary) {
        Some(gpu) => Ok(gpu.pool.clone()),
        None => unavailable(format!("GPU {ordinal} has no pool: what millpond said before is why")),
    }
}

/// As [`pool`], of which sleep and evictions may move the memory from then on.
///
/// # Errors
/// As for [`pool`].
///
/// # Safety
/// Nobody uses memory that is away.
pub unsafe fn movable_pool(ordinal: usize) -> millpond::Result<Pool> {
    let pool = pool(ordinal)?;
    // SAFETY: the caller's promise.
    unsafe { gpus::let_move(ordinal) };
    Ok(pool)
}
