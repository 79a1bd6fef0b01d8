//! How the ranks of a world meet: rank 0 listens, the others come.
//!
//! Each rank makes two connections to rank 0: one for control, one for data. On each it says hello, and rank 0 answers at
//! once. Whoever says anything else is sent away. When all have come, rank 0 gives the word on every control connection.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::environment::{PORT, Place, TIMEOUT};
use crate::{Error, Result};

/// What both sides begin with, and the version of all that follows.
const MAGIC: [u8; 8] = *b"millpnd1";
/// How long a hello or its answer may take.
const HELLO: Duration = Duration::from_secs(5);
/// Pause before another try.
const PAUSE: Duration = Duration::from_millis(20);
/// Rank 0's time to say who is missing, before the others lose patience.
const GRACE: Duration = Duration::from_secs(5);
/// What rank 0 says to a hello, and when all have come.
const HEARD: u8 = 1;
const REFUSED: u8 = 2;
const GO: u8 = 3;

/// The connections to another rank.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: usize,
    pub(super) control: TcpStream,
    pub(super) data: TcpStream,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Purpose {
    Control = 0,
    Data = 1,
}

/// Meets the other ranks. Rank 0 gets its connections to all others in their order, each other the one to rank 0.
///
/// # Errors
/// [`Error::Rendezvous`].
pub(super) fn meet(place: &Place) -> Result<Vec<Link>> {
    let links = if place.rank == 0 { listen(place) } else { come(place).map(|link| vec![link]) };
    links.map_err(|what| Error::Rendezvous { what })
}

// ---- Rank 0 ----

fn listen(place: &Place) -> std::result::Result<Vec<Link>, String> {
    let failed = |error: io::Error| {
        format!(
            "rank 0 cannot listen on port {}: {error}; set {PORT} to a free port, for every rank",
            place.port
        )
    };
    let listener = bind(place).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let deadline = Instant::now() + place.timeout;
    let (heard, hellos) = mpsc::channel();
    let mut came: BTreeMap<usize, [Option<TcpStream>; 2]> = BTreeMap::new();
    loop {
        forget_who_left(&mut came);
        let is_complete = |both: &&[Option<TcpStream>; 2]| both.iter().all(Option::is_some);
        if came.values().filter(is_complete).count() == place.world - 1 {
            break;
        }
        if Instant::now() > deadline {
            let missing: Vec<_> = (1..place.world)
                .filter(|rank| came.get(rank).as_ref().is_none_or(|both| !is_complete(both)))
                .collect();
            return Err(who_is_missing(place, &missing));
        }
        while let Ok((stream, _)) = listener.accept() {
            // Each on a thread of its own: one that says nothing holds nobody up.
            let (heard, world) = (heard.clone(), place.world);
            std::thread::spawn(move || {
                let hello = hear(stream, world);
                hello.map(|hello| heard.send(hello)).ok()
            });
        }
        match hellos.recv_timeout(PAUSE) {
            Ok((rank, purpose, mut stream)) => {
                forget_who_left(&mut came);
                let seat = &mut came.entry(rank).or_default()[purpose as usize];
                if seat.is_some() {
                    answer(&mut stream, REFUSED, &format!("there is a rank {rank} already")).ok();
                } else if answer(&mut stream, HEARD, "").is_ok() {
                    *seat = Some(stream);
                }
            }
            Err(_) => continue,
        }
    }
    let links = came.into_iter().filter_map(|(rank, both)| {
        let [control, data] = both;
        Some(Link { rank, control: control?, data: data? })
    });
    let mut links: Vec<_> = links.collect();
    for link in &mut links {
        let said = prepare(&link.control, &link.data).and_then(|()| link.control.write_all(&[GO]));
        said.map_err(|error| format!("rank {} came, and left again: {error}", link.rank))?;
    }
    Ok(links)
}

/// Where other machines cannot reach it, if no rank is there.
fn bind(place: &Place) -> io::Result<TcpListener> {
    if place.is_one_machine {
        return TcpListener::bind((place.host.as_str(), place.port));
    }
    // Not at `host` alone: a PyTorchJob may call rank 0's machine localhost there.
    TcpListener::bind(("::", place.port)).or_else(|_| TcpListener::bind(("0.0.0.0", place.port)))
}

fn who_is_missing(place: &Place, missing: &[usize]) -> String {
    let list: Vec<_> = missing.iter().map(usize::to_string).collect();
    let (ranks, did) = if list.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
    format!(
        "{ranks} {} of {} {did} not come to {}:{} within {} s; {TIMEOUT} sets another time",
        list.join(", "),
        place.world,
        place.host,
        place.port,
        place.timeout.as_secs()
    )
}

/// A rank that was started again is to take the place of what it was before.
fn forget_who_left(came: &mut BTreeMap<usize, [Option<TcpStream>; 2]>) {
    came.retain(|_, both| !both.iter().flatten().any(is_gone));
}

/// Whether the other side has closed the connection.
fn is_gone(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    stream.set_nonblocking(false).is_err()
        || !peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Hears who came. What does not begin with our magic is not answered.
fn hear(mut stream: TcpStream, world: usize) -> io::Result<(usize, Purpose, TcpStream)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO))?;
    stream.set_write_timeout(Some(HELLO))?;
    let mut hello = [0; 17];
    stream.read_exact(&mut hello)?;
    let number =
        |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]) as usize;
    let (rank, of) = (number(9), number(13));
    let purpose = match hello[8] {
        0 => Purpose::Control,
        1 => Purpose::Data,
        _ => return Err(ErrorKind::InvalidData.into()),
    };
    if hello[..8] != MAGIC {
        return Err(ErrorKind::InvalidData.into());
    }
    if of != world || !(1..world).contains(&rank) {
        let why = format!("rank 0 belongs to a world of {world} ranks, and this is rank {rank} of {of}");
        answer(&mut stream, REFUSED, &why)?;
        return Err(ErrorKind::InvalidData.into());
    }
    Ok((rank, purpose, stream))
}

fn answer(stream: &mut TcpStream, verdict: u8, why: &str) -> io::Result<()> {
    let mut text = Vec::from(MAGIC);
    text.extend([verdict, why.len() as u8]);
    text.extend(why.as_bytes());
    stream.write_all(&text)
}

// ---- The others ----

fn come(place: &Place) -> std::result::Result<Link, String> {
    let deadline = Instant::now() + place.timeout;
    let mut control = knock(place, Purpose::Control, deadline)?;
    let data = knock(place, Purpose::Data, deadline)?;
    let gone = |error: io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => silent(place, "heard this one, and then nothing"),
        _ => format!("rank 0 at {}:{} went away before all ranks had come", place.host, place.port),
    };
    control
        .set_read_timeout(Some(deadline.saturating_duration_since(Instant::now()) + GRACE))
        .map_err(gone)?;
    let mut word = [0];
    control.read_exact(&mut word).map_err(gone)?;
    prepare(&control, &data).map_err(gone)?;
    Ok(Link { rank: 0, control, data })
}

fn silent(place: &Place, what: &str) -> String {
    let Place { rank, host, port, timeout, .. } = place;
    format!(
        "rank {rank}: rank 0 at {host}:{port} {what} for {} s; {TIMEOUT} sets another time",
        timeout.as_secs()
    )
}

/// Knocks until rank 0 answers.
fn knock(place: &Place, purpose: Purpose, deadline: Instant) -> std::result::Result<TcpStream, String> {
    let mut why = String::from("was not found");
    while Instant::now() < deadline {
        match knock_once(place, purpose) {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(refused)) => return Err(format!("rank {}: {refused}", place.rank)),
            Err(error) => why = format!("did not answer ({error})"),
        }
        std::thread::sleep(PAUSE * 5);
    }
    Err(silent(place, &why))
}

fn knock_once(place: &Place, purpose: Purpose) -> io::Result<std::result::Result<TcpStream, String>> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in (place.host.as_str(), place.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, HELLO) {
            Ok(stream) => return introduce(stream, place, purpose),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn introduce(
    mut stream: TcpStream,
    place: &Place,
    purpose: Purpose,
) -> io::Result<std::result::Result<TcpStream, String>> {
    stream.set_read_timeout(Some(HELLO))?;
    stream.set_write_timeout(Some(HELLO))?;
    let mut hello = Vec::from(MAGIC);
    hello.push(purpose as u8);
    hello.extend((place.rank as u32).to_le_bytes());
    hello.extend((place.world as u32).to_le_bytes());
    stream.write_all(&hello)?;
    let mut head = [0; 10];
    stream.read_exact(&mut head)?;
    if head[..8] != MAGIC {
        return Err(io::Error::new(ErrorKind::InvalidData, "something else listens there"));
    }
    let mut why = vec![0; head[9].into()];
    stream.read_exact(&mut why)?;
    Ok(if head[8] == HEARD { Ok(stream) } else { Err(String::from_utf8_lossy(&why).into_owned()) })
}

// ---- Both ----

/// From here on the connections have no time limits of ours. The system gives the control connection up when the other
/// machine is silent for 7 seconds. The data connection may be full for longer, while a rank computes.
fn prepare(control: &TcpStream, data: &TcpStream) -> io::Result<()> {
    for stream in [control, data] {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        stream.set_nodelay(true)?;
    }
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 3),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 7000),
    ];
    for (level, name, value) in options {
        let value: libc::c_int = value;
        let size = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the descriptor is open, and each of these options takes an int.
        if unsafe { libc::setsockopt(control.as_raw_fd(), level, name, (&raw const value).cast(), size) } != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
