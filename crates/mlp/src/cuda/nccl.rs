//! Collectives of GPUs, by NCCL.
//!
//! The library's functions are bound here, by name. cudarc binds them too, but looks for `libnccl.so` alone, while packages
//! have `libnccl.so.2`. It also panics where a version of the library has no such function.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::CudaContext;
use libloading::Library;
use millpond::Stream;
use parking_lot::Mutex;

use super::driver::refused;
use super::toolkit;
use crate::ranks::{Collective, Ranks};
use crate::{Error, Result, Tensor};

/// Whether buffers are registered: [`Collective::register`].
const REGISTER: &str = "MILLPOND_NCCL_REGISTER";

/// How long an abort waits for a call that another thread is in.
const ABORT_WAITS: Duration = Duration::from_secs(2);

// Of nccl.h, which keeps these values.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;
const ID_BYTES: usize = 128;

/// `ncclComm_t`.
type RawComm = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([c_char; ID_BYTES]);

macro_rules! api {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The library's functions.
        #[allow(non_snake_case, reason = "they are the library's names")]
        struct Api {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
            library: Library,
        }

        impl Api {
            /// # Safety
            /// The library is NCCL.
            unsafe fn of(library: Library) -> std::result::Result<Self, libloading::Error> {
                // SAFETY: the types are those of nccl.h, which have not changed since version 2.4.
                unsafe { Ok(Self { $($name: *library.get(stringify!($name).as_bytes())?,)* library }) }
            }
        }
    };
}

api! {
    ncclGetUniqueId(*mut Id) -> c_int;
    ncclCommInitRank(*mut RawComm, c_int, Id, c_int) -> c_int;
    ncclCommDestroy(RawComm) -> c_int;
    ncclCommAbort(RawComm) -> c_int;
    ncclCommGetAsyncError(RawComm, *mut c_int) -> c_int;
    ncclGetErrorString(c_int) -> *const c_char;
    ncclAllReduce(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int;
    ncclReduceScatter(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int;
    ncclAllGather(*const c_void, *mut c_void, usize, c_int, RawComm, *mut c_void) -> c_int;
    ncclBroadcast(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int;
}

/// The library, loaded when it is first asked for, for good.
fn api() -> Result<&'static Api> {
    static API: OnceLock<Api> = OnceLock::new();
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let names = ["libnccl.so.2", "libnccl.so"];
    let found = toolkit::open(&names).ok_or_else(|| {
        failed(
            "libnccl.so.2, which several ranks need, was not found by the system's loader (LD_LIBRARY_PATH), nor in \
             CUDA_HOME, /usr/local/cuda or the environment of python3. Install it (Debian: libnccl2), or \
             `pip install nvidia-nccl-cu13`, or start one process"
                .to_owned(),
        )
    })?;
    // SAFETY: it goes by NCCL's name.
    let api = unsafe { Api::of(found) };
    let api = api.map_err(|error| failed(format!("found, but it cannot be used: {error}")))?;
    Ok(API.get_or_init(|| api))
}

fn failed(what: String) -> Error {
    Error::Library { library: "NCCL", what }
}

impl Api {
    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: the library returns a static text for every number.
        let text = unsafe { CStr::from_ptr((self.ncclGetErrorString)(code)) };
        Err(failed(format!("{call} failed: {}; NCCL_DEBUG=WARN says more", text.to_string_lossy())))
    }
}

/// A communicator, until it is aborted or destroyed.
struct Comm(Option<RawComm>);

// SAFETY: a communicator may be used by any thread, one at a time.
unsafe impl Send for Comm {}

/// Collectives of the GPUs of some ranks.
pub(crate) struct Nccl {
    api: &'static Api,
    context: Arc<CudaContext>,
    rank: usize,
    size: usize,
    comm: Arc<Mutex<Comm>>,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nccl").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Nccl {
    /// Of these ranks, on this GPU. Waits for the others.
    pub(crate) fn new(ordinal: usize, ranks: &Ranks) -> Result<Self> {
        let api = api()?;
        // The primary context, which is that of the device that memory comes from.
        let context = CudaContext::new(ordinal).map_err(refused("opening the GPU"))?;
        context.bind_to_thread().map_err(refused("cuCtxSetCurrent"))?;
        let (rank, size) = (ranks.place().rank, ranks.place().world);
        let mut id = Id([0; ID_BYTES]);
        if rank == 0 {
            // SAFETY: the id is writable.
            api.check("ncclGetUniqueId", unsafe { (api.ncclGetUniqueId)(&mut id) })?;
        }
        let said =
            ranks.gather(&(id.0.to_vec(), context.uuid().map_err(refused("cuDeviceGetUuid"))?.bytes))?;
        let gpus: Vec<_> = said.iter().map(|(_, gpu)| *gpu).collect();
        if let Some([one, other]) = first_pair(&gpus) {
            let what = format!(
                "ranks {one} and {other} have the same GPU: start one process for each GPU, and let each see its own or all of \
                 them"
            );
            return Err(Error::Launcher { what });
        }
        let known = <[c_char; ID_BYTES]>::try_from(&said[0].0[..]);
        id = Id(known.map_err(|_| failed("rank 0 sent no identifier".to_owned()))?);
        let mut comm = std::ptr::null_mut();
        // SAFETY: the pointer is writable, and the GPU's context is current on this thread.
        let made = unsafe { (api.ncclCommInitRank)(&mut comm, size as c_int, id, rank as c_int) };
        api.check("ncclCommInitRank", made)?;
        let comm = Arc::new(Mutex::new(Comm(Some(comm))));
        let stuck = comm.clone();
        // Ends the kernels that wait for a lost rank, so that the streams go on. A call that another thread is in is left
        // alone: the last resort ends that.
        ranks.on_loss(move || {
            if let Some(comm) = stuck.try_lock_for(ABORT_WAITS).and_then(|mut comm| comm.0.take()) {
                // SAFETY: the communicator lives, and nobody else has it from here on.
                unsafe { (api.ncclCommAbort)(comm) };
            }
        });
        Ok(Self { api, context, rank, size, comm })
    }

    /// Calls the library with the communicator, if there still is one.
    fn call(&self, name: &str, call: impl FnOnce(&'static Api, RawComm) -> c_int) -> Result<()> {
        self.context.bind_to_thread().map_err(refused("cuCtxSetCurrent"))?;
        let comm = self.comm.lock();
        let comm = comm.0.ok_or_else(|| failed(format!("{name}: another rank is gone")))?;
        self.api.check(name, call(self.api, comm))
    }
}

/// The first two that are equal.
fn first_pair<T: PartialEq>(of: &[T]) -> Option<[usize; 2]> {
    let before =
        |(at, one): (usize, &T)| of[..at].iter().position(|other| other == one).map(|first| [first, at]);
    of.iter().enumerate().find_map(before)
}

/// A stream as the library takes it.
fn raw(stream: &Stream) -> *mut c_void {
    stream.handle().raw() as *mut c_void
}

/// A tensor's memory as the library takes it.
fn memory(tensor: &Tensor) -> *mut c_void {
    tensor.ptr().raw() as *mut c_void
}

// What each SAFETY below relies on: the tensors are live until the stream is past the work, which is the trait's promise;
// the counts are theirs; the communicator lives as long as it is locked; and the GPU's context is current.
impl Collective for Nccl {
    fn all_reduce(&self, buffer: &Tensor, stream: &Stream) -> Result<()> {
        let at = memory(buffer);
        // SAFETY: see above.
        self.call("ncclAllReduce", |api, comm| unsafe {
            (api.ncclAllReduce)(at, at, buffer.len(), FLOAT32, SUM, comm, raw(stream))
        })
    }

    fn reduce_scatter(&self, buffer: &Tensor, piece: &Tensor, stream: &Stream) -> Result<()> {
        let (from, to) = (memory(buffer), memory(piece));
        // SAFETY: see above.
        self.call("ncclReduceScatter", |api, comm| unsafe {
            (api.ncclReduceScatter)(from, to, piece.len(), FLOAT32, SUM, comm, raw(stream))
        })
    }

    fn all_gather(&self, buffer: &Tensor, stream: &Stream) -> Result<()> {
        let length = buffer.len() / self.size;
        // SAFETY: see above. The piece is within the buffer.
        self.call("ncclAllGather", |api, comm| unsafe {
            let mine = memory(buffer).byte_add(self.rank * length * size_of::<f32>());
            (api.ncclAllGather)(mine, memory(buffer), length, FLOAT32, comm, raw(stream))
        })
    }

    fn broadcast(&self, buffer: &Tensor, stream: &Stream) -> Result<()> {
        let at = memory(buffer);
        // SAFETY: see above.
        self.call("ncclBroadcast", |api, comm| unsafe {
            (api.ncclBroadcast)(at, at, buffer.len(), FLOAT32, 0, comm, raw(stream))
        })
    }

    /// Only if the environment asks for it. A buffer of the pool lies on several pages, of which versions before the fix of
    /// August 2026 share one with the other ranks (<https://github.com/NVIDIA/nccl/pull/2362>).
    fn register(&self, buffer: &Tensor) -> Option<Box<dyn Any>> {
        if std::env::var(REGISTER).is_ok_and(|on| on == "1") {
            // SAFETY: the types are those of nccl.h, from version 2.19 on.
            let register: Register = unsafe { *self.api.library.get(b"ncclCommRegister").ok()? };
            // SAFETY: as above.
            let deregister = unsafe { *self.api.library.get(b"ncclCommDeregister").ok()? };
            let mut handle = std::ptr::null_mut();
            // SAFETY: see above.
            let registered = self.call("ncclCommRegister", |_, comm| unsafe {
                register(comm, memory(buffer), buffer.bytes() as usize, &mut handle)
            });
            registered.ok()?;
            return Some(Box::new(Registered { comm: self.comm.clone(), deregister, handle }));
        }
        None
    }

    fn check(&self) -> Result<()> {
        let mut found = SUCCESS;
        // SAFETY: see above, and the number is writable.
        self.call("ncclCommGetAsyncError", |api, comm| unsafe {
            (api.ncclCommGetAsyncError)(comm, &mut found)
        })?;
        self.api.check("a collective", found)
    }
}

type Register = unsafe extern "C" fn(RawComm, *mut c_void, usize, *mut *mut c_void) -> c_int;
type Deregister = unsafe extern "C" fn(RawComm, *mut c_void) -> c_int;

/// A buffer that is registered.
struct Registered {
    comm: Arc<Mutex<Comm>>,
    deregister: Deregister,
    handle: *mut c_void,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(comm) = self.comm.lock().0 {
            // SAFETY: the communicator lives, and has registered the handle.
            unsafe { (self.deregister)(comm, self.handle) };
        }
    }
}

impl Drop for Nccl {
    /// Waits for what is queued. What another rank's end has stuck was aborted before.
    fn drop(&mut self) {
        if let Some(comm) = self.comm.lock().0.take()
            && self.context.bind_to_thread().is_ok()
        {
            // SAFETY: the communicator lives, and nobody else has it from here on.
            unsafe { (self.api.ncclCommDestroy)(comm) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_the_same_gpu_are_found() {
        assert_eq!(first_pair(&[3, 1, 4, 1, 3]), Some([1, 3]));
        assert_eq!(first_pair(&[3, 1, 4]), None);
    }

    #[test]
    fn a_missing_library_is_named_with_what_to_do() {
        let Err(error) = api() else { return };
        let text = error.to_string();
        assert!(text.starts_with("NCCL: ") && text.contains("libnccl"), "{text}");
    }
}
