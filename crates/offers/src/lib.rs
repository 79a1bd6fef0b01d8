//! Blocks for other processes that were handed a name: PyTorch's tensors by `torch.multiprocessing`, Numba's IPC handles, and those of
//! CUDA programs under `millpond run`.
//!
//! The [name](Name) is of a socket of this process, a secret, and the block. The first offer starts a thread that listens at the
//! socket. A block's pages are exported when they are asked for, and none of their descriptors is kept here. So thousands of
//! blocks can be offered.
//!
//! **How one request passes through.** The other process connects, looks whose the socket is, and only then says the secret.
//! Here the thread that listens drops connections of other users at once. It gives each of the others a thread of its own, up
//! to a number, and ends whichever lasts too long. That thread reads the request, shares the block and sends it.
//! The list of offers is not locked meanwhile, so that frees need not wait.
//!
//! **Many blocks on one page.** A [`PlacedName`] also says where its block lies. Who opens such names asks once for a page, and finds
//! what else lies on it without a word ([`OpenedBlocks`]).

mod opened;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, fs, mem};

use millpond::bindings::{self, Mutex, PerProcess};
use millpond::device::DevicePtr;
use millpond::{Pool, Received, Stream};
pub use opened::{OpenedBlock, OpenedBlocks, Place};
use rustc_hash::FxHashMap;
use thiserror::Error;

/// Why a block is not offered, or not opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OfferError {
    /// What went wrong between the processes.
    #[error("{0}")]
    Broken(String),
    /// The pool's own error.
    #[error(transparent)]
    Pool(#[from] millpond::Error),
}

type Result<T> = std::result::Result<T, OfferError>;

/// What each text begins with: PyTorch's own handles begin with a byte below 32.
const TEXT: &str = "millpond/2/";

/// What the text of a name with a place begins with.
const PLACED: &str = "millpond/3/";

/// What the bytes of each name begin with.
const MAGIC: [u8; 8] = *b"mpoffer2";

/// How long a connection may last here, from its first byte to the last.
const TO_ANSWER: Duration = Duration::from_secs(10);
/// How many connections are answered at once. Others wait for a free place, at most [`TO_ANSWER`] each time.
const MOST_AT_ONCE: usize = 16;
/// How often the thread that listens looks at the connections that are being answered.
const TO_LOOK: Duration = Duration::from_millis(50);
/// How long the other process waits for the next bytes of an answer.
const TO_WAIT: Duration = Duration::from_secs(60);

/// The first byte of an answer: what follows is a token with descriptors, or else why there is none.
const GIVEN: u8 = 0;
const REFUSED: u8 = 1;

/// Names a block that a process offers, for those who are handed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// Names the socket. Every process of the machine can read that.
    socket: u64,
    /// Nobody can, but those who were handed the string.
    secret: u128,
    block: u64,
}

impl Name {
    /// As a text of at most 80 characters.
    pub fn text(&self) -> String {
        format!("{TEXT}{self}")
    }

    /// The name in such a text; `None` where it is another one.
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(TEXT)?.split('/');
        let name = Self::of_parts(&mut parts)?;
        parts.next().is_none().then_some(name)
    }

    fn of_parts<'text>(parts: &mut impl Iterator<Item = &'text str>) -> Option<Self> {
        Some(Self {
            socket: number(parts.next()?)?,
            secret: u128::from_str_radix(parts.next()?, 16).ok()?,
            block: number(parts.next()?)?,
        })
    }

    /// As bytes, of which the first say that they are a name.
    pub fn to_bytes(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.socket.to_le_bytes());
        bytes[16..].copy_from_slice(&self.asked());
        bytes
    }

    /// The name in such bytes; `None` where they are others.
    pub fn from_bytes(bytes: &[u8; 40]) -> Option<Self> {
        let part = |at: usize| -> [u8; 8] { bytes[at..at + 8].try_into().expect("8 of 40 bytes") };
        let secret = bytes[16..32].try_into().expect("16 of 40 bytes");
        (part(0) == MAGIC).then(|| Self {
            socket: u64::from_le_bytes(part(8)),
            secret: u128::from_le_bytes(secret),
            block: u64::from_le_bytes(part(32)),
        })
    }

    /// Whether it is of a block of this process.
    pub fn is_own(&self) -> bool {
        OFFERS.get().lock().server.is_some_and(|(socket, _)| socket == self.socket)
    }

    /// What is said to the process that offers it.
    fn asked(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.secret.to_le_bytes());
        bytes[16..].copy_from_slice(&self.block.to_le_bytes());
        bytes
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}/{:032x}/{:x}", self.socket, self.secret, self.block)
    }
}

fn number(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// The name of a block, and where the block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedName {
    name: Name,
    place: Place,
}

impl PlacedName {
    /// As a text of less than 128 characters.
    pub fn text(&self) -> String {
        let Self { name, place: Place { owner: (_, pool), start, bytes } } = self;
        format!("{PLACED}{name}/{pool:x}/{start:x}/{bytes:x}")
    }

    /// The name in such a text.
    ///
    /// # Errors
    /// For another text.
    pub fn read(text: &str) -> Result<Self> {
        let read = || {
            let mut parts = text.strip_prefix(PLACED)?.split('/');
            let name = Name::of_parts(&mut parts)?;
            let owner = (name.socket, number(parts.next()?)?);
            let place = Place { owner, start: number(parts.next()?)?, bytes: number(parts.next()?)? };
            parts.next().is_none().then_some(Self { name, place })
        };
        read().ok_or_else(other_version)
    }

    /// Where the block lies there.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// As [`open`].
    ///
    /// # Errors
    /// As for [`open`].
    pub fn open(&self) -> Result<Received> {
        open(self.name)
    }
}

/// In Linux's abstract namespace: there is no file, and the name goes with the process. Any user may connect, and may take
/// the name once it is free. So each end looks [whose](user_of) the other is.
fn address(socket: u64) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("millpond-offers-{socket:016x}"))
}

/// The user of the process at the other end: of the one that connected, or of the one that listened.
fn user_of(socket: &UnixStream) -> io::Result<libc::uid_t> {
    let mut found = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: 0 };
    let mut bytes = mem::size_of_val(&found) as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `found` may be written, and has as many bytes.
    match unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut found).cast(), &raw mut bytes)
    } {
        0 => Ok(found.uid),
        _ => Err(io::Error::last_os_error()),
    }
}

fn this_user() -> libc::uid_t {
    // SAFETY: it only answers.
    unsafe { libc::geteuid() }
}

// ---- the process that has the memory -----------------------------------------------------------------

/// A block that others may open.
#[derive(Debug, Clone)]
pub struct Offered {
    /// The pool that it is of.
    pub pool: Pool,
    /// Where it begins.
    pub ptr: DevicePtr,
    /// Who opens the block works on it after what this stream was given until then.
    pub stream: Stream,
}

/// What this process offers.
#[derive(Debug, Default)]
struct Offers {
    /// Socket and secret; `None` before the first offer.
    server: Option<(u64, u128)>,
    next: u64,
    blocks: FxHashMap<u64, Offered>,
    /// Number, by address.
    numbers: FxHashMap<u64, u64>,
}

static OFFERS: PerProcess<Mutex<Offers>> = PerProcess::new(Default::default);

/// Offers a live block to other processes of this user, until [`withdraw`]. Returns what [`open`] takes there; the same as often
/// as it is offered.
///
/// # Errors
/// Where the system has no socket or thread for it.
pub fn offer(offered: Offered) -> Result<Name> {
    let mut offers = OFFERS.get().lock();
    let (socket, secret) = match offers.server {
        Some(server) => server,
        None => *offers.server.insert(start().map_err(|error| {
            OfferError::Broken(format!("no socket could be made for processes that share memory: {error}"))
        })?),
    };
    let ptr = offered.ptr.raw();
    let block = match offers.numbers.get(&ptr) {
        Some(number) => *number,
        None => {
            let number = offers.next;
            offers.next += 1;
            offers.blocks.insert(number, offered);
            offers.numbers.insert(ptr, number);
            number
        }
    };
    Ok(Name { socket, secret, block })
}

/// As [`offer`], for those who open it beside other blocks of its page ([`OpenedBlocks`]). Such a block is freed only once all of
/// them have closed it.
///
/// # Errors
/// As for [`offer`], and for [`Pool::size_of`].
pub fn offer_placed(offered: Offered) -> Result<PlacedName> {
    let (start, bytes) = (offered.ptr.raw(), offered.pool.size_of(offered.ptr)?);
    let pool = bindings::number_of(&offered.pool);
    let name = offer(offered)?;
    Ok(PlacedName { name, place: Place { owner: (name.socket, pool), start, bytes } })
}

/// Ends the offer of a block, before the block is freed. Who opened it has it still.
#[cold]
pub fn withdraw(ptr: u64) {
    let mut offers = OFFERS.get().lock();
    let gone = offers.numbers.remove(&ptr).and_then(|number| offers.blocks.remove(&number));
    // The end of a pool or a stream may wait.
    drop(offers);
    drop(gone);
}

/// A block that is offered, by its number.
fn find(block: u64) -> Result<Offered> {
    OFFERS.get().lock().blocks.get(&block).cloned().ok_or_else(|| {
        OfferError::Broken("the memory was freed there: keep it until the other process has it".to_owned())
    })
}

/// Makes the socket, and the thread that listens there. Returns the socket's name, and the secret.
fn start() -> io::Result<(u64, u128)> {
    let mut random = [0; 24];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let (socket, secret) = random.split_at(8);
    let socket = u64::from_le_bytes(socket.try_into().expect("8 bytes"));
    let secret = u128::from_le_bytes(secret.try_into().expect("16 bytes"));
    let (address, (tell, told)) = (address(socket)?, mpsc::channel());
    // Whatever else can fail comes before there is a socket: a child closes its descriptor by number.
    thread::Builder::new().name("millpond offers".to_owned()).spawn(move || {
        let listener = match listener::make(&address) {
            Ok(listener) => listener,
            Err(error) => return tell.send(Err(error)).unwrap_or_default(),
        };
        tell.send(Ok(())).ok();
        serve(&listener, secret);
    })?;
    told.recv().map_err(io::Error::other)??;
    Ok((socket, secret))
}

/// The socket, which a forked child must not keep: whoever connects would wait for the child.
mod listener {
    use super::*;

    /// Its descriptor; negative while there is none.
    static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

    /// Whether a thread makes the socket, or forks. Not both at once, so that a child knows each socket that it inherits.
    static IS_BUSY: AtomicBool = AtomicBool::new(false);

    pub(super) fn make(address: &SocketAddr) -> io::Result<UnixListener> {
        static IS_WATCHED: AtomicBool = AtomicBool::new(false);
        // Relaxed: whoever started this thread holds the lock of `OFFERS`.
        if !IS_WATCHED.swap(true, Ordering::Relaxed) {
            // SAFETY: functions of this library, which the C library forgets when this one is unloaded.
            let failed = unsafe { libc::pthread_atfork(Some(enter), Some(leave), Some(leave_in_child)) };
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
        }
        enter();
        let made = UnixListener::bind_addr(address);
        // Relaxed: read in a child, before which comes `enter`.
        DESCRIPTOR.store(made.as_ref().map_or(-1, AsRawFd::as_raw_fd), Ordering::Relaxed);
        leave();
        made
    }

    /// Waits for a few calls of the system at most: who is inside neither locks nor allocates.
    extern "C" fn enter() {
        // Acquire and the Release of `leave`: who enters sees what was written inside.
        while IS_BUSY.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
    }

    extern "C" fn leave() {
        IS_BUSY.store(false, Ordering::Release);
    }

    /// In a forked child. The thread that listens is its parent's, and so is the socket.
    extern "C" fn leave_in_child() {
        // Relaxed: there is one thread.
        let descriptor = DESCRIPTOR.swap(-1, Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: its owner is a variable of a thread that this process does not have.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
        leave();
    }
}

/// A connection that a thread answers.
struct Answering {
    connection: Arc<UnixStream>,
    until: Instant,
    thread: JoinHandle<()>,
}

/// Answers until the process ends.
fn serve(listener: &UnixListener, secret: u128) {
    let mut answering: Vec<Answering> = Vec::new();
    loop {
        answering.retain(|one| !one.thread.is_finished());
        let now = Instant::now();
        for one in answering.iter().filter(|one| one.until <= now) {
            // Ends its reads and writes.
            one.connection.shutdown(Shutdown::Both).ok();
        }
        if answering.len() == MOST_AT_ONCE {
            thread::sleep(TO_LOOK);
            continue;
        }
        if !is_asked(listener, !answering.is_empty()) {
            continue;
        }
        match listener.accept() {
            Ok((connection, _)) => answering.extend(answer_beside(connection, secret)),
            // Out of descriptors, for example.
            Err(_) => thread::sleep(TO_LOOK),
        }
    }
}

/// Waits until somebody connects; `false` where that took too long, if it may not.
fn is_asked(listener: &UnixListener, is_hurried: bool) -> bool {
    let mut asked = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let most = if is_hurried { TO_LOOK.as_millis() as i32 } else { -1 };
    // SAFETY: `asked` may be written, and is one.
    unsafe { libc::poll(&raw mut asked, 1, most) == 1 }
}

/// Answers a process of this user on a thread. All others are dropped at once.
fn answer_beside(connection: UnixStream, secret: u128) -> Option<Answering> {
    if user_of(&connection).ok()? != this_user() {
        return None;
    }
    let connection = Arc::new(connection);
    let (here, until) = (connection.clone(), Instant::now() + TO_ANSWER);
    let answered = move || {
        // One that went away, or asks for nothing that there is, got its answer, or needs none.
        answer(&here, secret).ok();
        // Also where a child that was forked meanwhile still has the connection.
        here.shutdown(Shutdown::Both).ok();
    };
    let thread = thread::Builder::new().name("millpond offer".to_owned()).spawn(answered).ok()?;
    Some(Answering { connection, until, thread })
}

fn answer(mut connection: &UnixStream, secret: u128) -> io::Result<()> {
    let mut asked = [0; 24];
    connection.read_exact(&mut asked)?;
    let (given, block) = asked.split_at(16);
    // Who guesses learns nothing from the time that this takes: it is 16 bytes, in one comparison.
    if u128::from_le_bytes(given.try_into().expect("16 bytes")) != secret {
        return connection.write_all(&[REFUSED]);
    }
    let block = u64::from_le_bytes(block.try_into().expect("8 bytes"));
    if let Err(failure) = send(connection, block) {
        connection.write_all(&[REFUSED])?;
        connection.write_all(failure.to_string().as_bytes())?;
    }
    Ok(())
}

fn send(mut connection: &UnixStream, block: u64) -> Result<()> {
    let Offered { pool, ptr, stream } = find(block)?;
    let shared = pool.share(ptr, &stream)?;
    // It may have been freed in between, and what lies there now be another block. Once it is shared, it stays.
    find(block)?;
    let failed = |error: io::Error| OfferError::Broken(format!("the memory could not be sent: {error}"));
    connection.write_all(&[GIVEN]).map_err(failed)?;
    Ok(shared.send(connection)?)
}

// ---- the process that gets it ------------------------------------------------------------------------

/// As [`open`], by the text of a name.
///
/// # Errors
/// As for [`open`], and for a text that is no name.
pub fn open_text(text: &str) -> Result<Received> {
    open(Name::read(text).ok_or_else(other_version)?)
}

fn other_version() -> OfferError {
    let why = "its handle is of another version of millpond: use one in both";
    OfferError::Broken(format!("memory of another process cannot be opened: {why}"))
}

/// Gets a block that another process of this user [offers](offer).
///
/// # Errors
/// Its process is gone, is another user's, or has freed the block; or what came is no block.
pub fn open(name: Name) -> Result<Received> {
    let broken =
        |why: String| OfferError::Broken(format!("memory of another process cannot be opened: {why}"));
    let gone = |error: io::Error| {
        broken(format!("its process does not answer ({error}): keep that running until it was opened"))
    };
    let mut connection = address(name.socket).and_then(|at| UnixStream::connect_addr(&at)).map_err(gone)?;
    // Before the secret is said: a name that its process no longer has may be anybody's.
    let (user, this) = (user_of(&connection).map_err(gone)?, this_user());
    if user != this {
        return Err(broken(format!(
            "user {user} answers in the place of its process, and this is user {this}: run both as one user"
        )));
    }
    connection.set_read_timeout(Some(TO_WAIT)).map_err(gone)?;
    connection.write_all(&name.asked()).map_err(gone)?;
    let mut first = [REFUSED];
    connection.read_exact(&mut first).map_err(|error| match error.kind() {
        // It ended with the connection in its queue.
        io::ErrorKind::ConnectionReset => gone(error),
        _ => broken(format!("no answer ({error})")),
    })?;
    if first != [GIVEN] {
        let mut why = String::new();
        connection.take(10_000).read_to_string(&mut why).ok();
        return Err(broken(if why.is_empty() {
            "the handle is not one of its process".to_owned()
        } else {
            why
        }));
    }
    Ok(Received::receive(&connection)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_nothing_else_is() {
        let name = Name { socket: 7, secret: u128::MAX - 1, block: 1 << 60 };
        assert_eq!(Name::read(&name.text()), Some(name));
        assert_eq!(Name::from_bytes(&name.to_bytes()), Some(name));
        let text = name.text();
        assert!(text.len() <= 80);
        for wrong in ["", "millpond/2/", "millpond/1/7/7/7", &text[1..], &format!("{text}/1")] {
            assert_eq!(Name::read(wrong), None, "{wrong}");
        }
        assert_eq!(Name::from_bytes(&[0; 40]), None);
    }

    #[test]
    fn a_placed_name_is_read_as_it_was_written_and_nothing_else_is() {
        let most = u64::MAX >> 8;
        let name = Name { socket: u64::MAX, secret: u128::MAX, block: u64::from(u32::MAX) };
        let name = PlacedName { name, place: Place { owner: (u64::MAX, 1 << 20), start: most, bytes: most } };
        let text = name.text();
        assert_eq!(PlacedName::read(&text).unwrap(), name);
        assert!(text.len() < 128, "the room that PyTorch's shim has");
        for wrong in
            ["", "millpond/3/", &name.name.text(), &text[1..], &format!("{text}/1"), &format!("{text}x")]
        {
            assert!(PlacedName::read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Name::read(&text), None);
    }
}
