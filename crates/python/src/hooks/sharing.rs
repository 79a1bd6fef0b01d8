//! Blocks of PyTorch's that other processes use: CUDA IPC of tensors, as `torch.multiprocessing` has it.
//!
//! PyTorch hands a string to the other process. Ours names a socket of this process, a secret, and the block. The first
//! share starts a thread that answers at the socket. It exports a block's pages when they are asked for, and keeps none of
//! their descriptors: a block takes one in each process, and only while it is open. So thousands of tensors can be shared.
//!
//! PyTorch orders the work of both sides by events of its own, and frees a block only after all who got the string let go.
//! So a block is offered until its free. From then on the pool waits for those that have it open (`docs/sharing.md`).

use std::ffi::c_int;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use std::{fs, io, thread};

use millpond::bindings::{self, Mutex, PerProcess, on_fork};
use millpond::device::DevicePtr;
use millpond::{Error, Pool, Received, SharedEvent, Stream};
use rustc_hash::FxHashMap;

use super::blocks::book;
use super::captures::{self, PoolId};
use crate::devices::{Device, device};
use crate::failure::{Failure, Result};
use crate::tags;

/// What each handle begins with: PyTorch's own begin with a byte below 32.
pub(super) const HANDLE: &str = "millpond/1/";

/// How long a process may take to ask, once it has connected.
const TO_ASK: Duration = Duration::from_secs(5);
/// How long the other process may take to answer: it may be answering others.
const TO_ANSWER: Duration = Duration::from_secs(60);

/// The first byte of an answer: what follows is a token with descriptors, or else why there is none.
const GIVEN: u8 = 0;
const REFUSED: u8 = 1;

/// What stands in a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle {
    /// Names the socket. Every process of the machine can read that.
    socket: u64,
    /// Nobody can, but those who were handed the string.
    secret: u128,
    block: u64,
}

impl Handle {
    fn text(&self) -> String {
        format!("{HANDLE}{:016x}/{:032x}/{:x}", self.socket, self.secret, self.block)
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(HANDLE)?.split('/');
        let handle = Self {
            socket: u64::from_str_radix(parts.next()?, 16).ok()?,
            secret: u128::from_str_radix(parts.next()?, 16).ok()?,
            block: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        parts.next().is_none().then_some(handle)
    }

    /// In Linux's abstract namespace: there is no file, and the name goes with the process.
    fn address(&self) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("millpond-torch-{:016x}", self.socket))
    }

    fn bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.secret.to_le_bytes());
        bytes[16..].copy_from_slice(&self.block.to_le_bytes());
        bytes
    }
}

// ---- the process that has the memory -----------------------------------------------------------------

/// What this process offers.
#[derive(Debug, Default)]
struct Offers {
    /// Socket and secret; `None` before the first share.
    server: Option<(u64, u128)>,
    next: u64,
    /// GPU and address, by number.
    blocks: FxHashMap<u64, (c_int, u64)>,
    /// Number, by address.
    numbers: FxHashMap<u64, u64>,
}

static OFFERS: PerProcess<Mutex<Offers>> = PerProcess::new();

/// The socket's descriptor, for a forked child; negative while there is none.
static LISTENER: AtomicI32 = AtomicI32::new(-1);

/// In a forked child. The thread that answers is its parent's, and so is the socket.
fn close_listener() {
    // Relaxed: there is one thread.
    let descriptor = LISTENER.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        // SAFETY: its owner is a variable of a thread that this process does not have.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
}

/// Offers a live block to other processes. Returns what [`open`] takes there; the same as often as it is offered.
pub(super) fn offer(gpu: c_int, ptr: DevicePtr) -> Result<String> {
    let device = device(gpu.into())?;
    let entry = book(gpu as usize).lock().get(ptr.raw());
    let not_shareable = |why| Failure::Pool(Error::NotShareable { pool: device.pool.name().to_owned(), why });
    if entry.is_some_and(|block| block.pool != PoolId::default()) {
        return Err(not_shareable("it is memory of a graph or a MemPool: send a clone of the tensor"));
    }
    if !device.context.device().properties().virtual_memory {
        return Err(not_shareable("the device has no virtual memory: send a copy on the CPU (tensor.cpu())"));
    }
    let mut offers = OFFERS.get().lock();
    let (socket, secret) = match offers.server {
        Some(server) => server,
        None => *offers.server.insert(listen().map_err(|error| {
            Failure::Broken(format!("no socket could be made for processes that share tensors: {error}"))
        })?),
    };
    let block = match offers.numbers.get(&ptr.raw()) {
        Some(number) => *number,
        None => {
            let number = offers.next;
            offers.next += 1;
            offers.blocks.insert(number, (gpu, ptr.raw()));
            offers.numbers.insert(ptr.raw(), number);
            number
        }
    };
    // Its free withdraws it.
    book(gpu as usize).lock().note_shared(ptr.raw());
    Ok(Handle { socket, secret, block }.text())
}

/// A block is being freed: nobody can open it any more.
#[cold]
pub(super) fn withdraw(ptr: u64) {
    // Also waits while it is being sent.
    let mut offers = OFFERS.get().lock();
    if let Some(number) = offers.numbers.remove(&ptr) {
        offers.blocks.remove(&number);
    }
}

/// Lets the process open as many descriptors as it may. A block that is open takes one in each of the two processes, and the
/// usual limit is 1,024.
fn raise_limit_of_descriptors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` may be written.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
            limit.rlim_cur = limit.rlim_max;
            // SAFETY: `limit` may be read. Where it is refused, the limit stays, and errors say what to do.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        }
    });
}

/// Makes the socket, and the thread that answers there.
fn listen() -> io::Result<(u64, u128)> {
    raise_limit_of_descriptors();
    let mut random = [0; 24];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let (socket, secret) = random.split_at(8);
    let server = (
        u64::from_le_bytes(socket.try_into().expect("8 bytes")),
        u128::from_le_bytes(secret.try_into().expect("16 bytes")),
    );
    let address = Handle { socket: server.0, secret: 0, block: 0 }.address()?;
    let listener = UnixListener::bind_addr(&address)?;
    let descriptor = listener.as_raw_fd();
    thread::Builder::new().name("millpond share".to_owned()).spawn(move || {
        for connection in listener.incoming() {
            // One that went away, or asks for nothing that there is, got its answer, or needs none.
            if let Ok(connection) = connection {
                answer(&connection, server.1).ok();
            } else {
                // Out of descriptors, for example.
                thread::sleep(Duration::from_millis(10));
            }
        }
    })?;
    static IS_TOLD: AtomicI32 = AtomicI32::new(0);
    // Relaxed, both: under the lock of `OFFERS`.
    if IS_TOLD.swap(1, Ordering::Relaxed) == 0 {
        on_fork(close_listener);
    }
    LISTENER.store(descriptor, Ordering::Relaxed);
    Ok(server)
}

fn answer(connection: &UnixStream, secret: u128) -> io::Result<()> {
    connection.set_read_timeout(Some(TO_ASK))?;
    connection.set_write_timeout(Some(TO_ASK))?;
    let mut asked = [0; 24];
    (&*connection).read_exact(&mut asked)?;
    let (given, block) = asked.split_at(16);
    // Who guesses learns nothing from the time that this takes: it is 16 bytes, in one comparison.
    if u128::from_le_bytes(given.try_into().expect("16 bytes")) != secret {
        return (&*connection).write_all(&[REFUSED]);
    }
    let block = u64::from_le_bytes(block.try_into().expect("8 bytes"));
    if let Err(failure) = super::torch::caught(|| send(connection, block)) {
        (&*connection).write_all(&[REFUSED])?;
        (&*connection).write_all(failure.to_string().as_bytes())?;
    }
    Ok(())
}

fn send(connection: &UnixStream, block: u64) -> Result<()> {
    // Held, so that the block is not freed meanwhile.
    let offers = OFFERS.get().lock();
    let Some((gpu, ptr)) = offers.blocks.get(&block).copied() else {
        return Err(Failure::Broken(
            "the tensor was freed there: keep it until the other process has it".to_owned(),
        ));
    };
    let device = device(gpu.into())?;
    let (owner, _) = tags::owner_of(device, DevicePtr::new(ptr))?;
    let shared = owner.share(DevicePtr::new(ptr), &stream(gpu, device)?)?;
    let failed = |error: io::Error| Failure::Broken(format!("the tensor could not be sent: {error}"));
    (&*connection).write_all(&[GIVEN]).map_err(failed)?;
    Ok(shared.send(connection)?)
}

/// A stream of a GPU that is given no work: the order is PyTorch's, by events of its own.
fn stream(gpu: c_int, device: &Device) -> Result<Stream> {
    static STREAMS: PerProcess<Mutex<FxHashMap<c_int, Stream>>> = PerProcess::new();
    let mut streams = STREAMS.get().lock();
    if let Some(known) = streams.get(&gpu) {
        return Ok(known.clone());
    }
    let made = device.context.create_stream()?;
    streams.insert(gpu, made.clone());
    Ok(made)
}

// ---- the process that gets it ------------------------------------------------------------------------

/// A block of another process.
#[derive(Debug)]
struct Opened {
    gpu: c_int,
    ptr: DevicePtr,
    pool: Pool,
    stream: Stream,
    /// With it the other process's memory counts as in use.
    _event: SharedEvent,
}

/// What other processes offered, as far as it is open here.
#[derive(Debug, Default)]
struct OpenedBlocks {
    in_use: Vec<Opened>,
    /// What PyTorch let go of, and work may still use.
    closing: Vec<Opened>,
}

static OPENED: PerProcess<Mutex<OpenedBlocks>> = PerProcess::new();

/// Opens a block that another process [offers](offer), on a GPU. [`close`] closes it.
pub(super) fn open(gpu: c_int, handle: &str) -> Result<DevicePtr> {
    let broken =
        |why: String| Failure::Broken(format!("a tensor of another process cannot be opened: {why}"));
    let handle = Handle::read(handle)
        .ok_or_else(|| broken("its handle is of another version of millpond: use one in both".to_owned()))?;
    let device = device(gpu.into())?;
    raise_limit_of_descriptors();
    let connection = ask(&handle).map_err(|error| {
        broken(format!("its process does not answer ({error}): keep that running until it was opened"))
    })?;
    let mut first = [REFUSED];
    (&connection).read_exact(&mut first).map_err(|error| broken(format!("no answer ({error})")))?;
    if first != [GIVEN] {
        let mut why = String::new();
        (&connection).take(10_000).read_to_string(&mut why).ok();
        return Err(broken(if why.is_empty() {
            "the handle is not one of its process".to_owned()
        } else {
            why
        }));
    }
    let received = Received::receive(&connection)?;
    let stream = stream(gpu, device)?;
    let (pool, ptr, _, event) = bindings::open_shared(&device.context, received, &stream)?;
    OPENED.get().lock().in_use.push(Opened { gpu, ptr, pool, stream, _event: event });
    Ok(ptr)
}

fn ask(handle: &Handle) -> io::Result<UnixStream> {
    let connection = UnixStream::connect_addr(&handle.address()?)?;
    connection.set_read_timeout(Some(TO_ANSWER))?;
    (&connection).write_all(&handle.bytes())?;
    Ok(connection)
}

/// Lets go of what [`open`] opened.
pub(super) fn close(gpu: c_int, ptr: DevicePtr) -> Result<()> {
    {
        let OpenedBlocks { in_use, closing } = &mut *OPENED.get().lock();
        // A forked child has none: these are its parent's.
        let at = in_use.iter().position(|opened| (opened.gpu, opened.ptr) == (gpu, ptr));
        closing.extend(at.map(|at| in_use.swap_remove(at)));
    }
    close_all()
}

/// Unmaps what PyTorch let go of. Waits for the GPU, as PyTorch's own allocator does: which streams used it is not known.
/// While a graph is captured nothing can be waited for, and it is left for the next time.
pub(super) fn close_all() -> Result<()> {
    if captures::is_any_open() {
        return Ok(());
    }
    let closing = std::mem::take(&mut OPENED.get().lock().closing);
    let mut waited_for = Vec::new();
    for Opened { gpu, ptr, pool, stream, _event } in closing {
        if !waited_for.contains(&gpu) {
            device(gpu.into())?.context.synchronize()?;
            waited_for.push(gpu);
        }
        // SAFETY: PyTorch let go of it, and the work on it is complete.
        unsafe { pool.free(ptr, &stream) }?;
    }
    Ok(())
}
