//! How the ranks of a world meet: rank 0 listens, the others come.
//!
//! Each rank has one connection, to rank 0. It says hello, and rank 0 answers with a challenge. Both prove that they know the
//! world's secret, by a keyed hash of what both have said: the secret itself is never sent. Whoever says anything else is sent
//! away. When all have come, rank 0 gives the word.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::environment::{ADDRESS, PORT, Place, SECRET, Secret, TIMEOUT};
use crate::{Error, Result};

/// What a hello begins with: the version of all that follows.
const VERSION: &str = "millpond 3";
/// Bytes of a message of a greeting at most.
const LONGEST_GREETING: u64 = 1024;
/// How long all of a greeting may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before another try.
const PAUSE: Duration = Duration::from_millis(20);
/// Rank 0's time to say who is missing, before the others lose patience.
const GRACE: Duration = Duration::from_secs(5);

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MessageKind {
    /// Version, rank, ranks in all, and a number that nobody has said before.
    Hello = 1,
    Challenge = 2,
    Proof = 3,
    /// Why a rank may not come.
    Refused = 4,
    /// All have come.
    Go = 5,
    /// A part of [`Ranks::gather`](super::Ranks::gather).
    Part = 6,
    /// Numbers of a collective.
    Data = 7,
    /// A rank is done. The end of its connection means nothing.
    Goodbye = 8,
    /// A rank is lost, or ends with an error: which one, and why.
    Lost = 9,
}

/// Who proves that it knows the secret. Each proves something else, so that none can send back what it was sent.
#[derive(Debug, Clone, Copy)]
enum Side {
    Rank0,
    Comer,
}

/// The proof of a side, for a hello and a challenge, which has a fixed length.
fn proof(secret: &Secret, side: Side, hello: &[u8], challenge: &[u8]) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(secret.0.as_bytes()).expect("a key of any length will do");
    mac.chain_update([side as u8]).chain_update(hello).chain_update(challenge)
}

pub(super) fn send(mut to: &TcpStream, kind: MessageKind, bytes: &[u8]) -> io::Result<()> {
    let mut head = [kind as u8; 9];
    head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    to.write_all(&head)?;
    to.write_all(bytes)
}

/// The next message, of whatever length.
pub(super) fn receive(from: &TcpStream) -> io::Result<(u8, Vec<u8>)> {
    receive_by(None, from, u64::MAX)
}

/// The next message, if it is no longer than that, and whole by then, however slowly the other side sends.
fn receive_by(by: Option<Instant>, from: &TcpStream, longest: u64) -> io::Result<(u8, Vec<u8>)> {
    let (mut kind, mut length) = ([0], [0; 8]);
    fill(&mut kind, by, from)?;
    fill(&mut length, by, from)?;
    let length = u64::from_le_bytes(length);
    if length > longest {
        return Err(stranger("something else is there"));
    }
    let mut bytes = vec![0; length as usize];
    fill(&mut bytes, by, from)?;
    Ok((kind[0], bytes))
}

fn fill(mut to: &mut [u8], by: Option<Instant>, mut from: &TcpStream) -> io::Result<()> {
    let Some(by) = by else { return from.read_exact(to) };
    while !to.is_empty() {
        let left = by.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        from.set_read_timeout(Some(left))?;
        match from.read(to)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => to = &mut to[read..],
        }
    }
    Ok(())
}

fn stranger(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

fn receive_a(kind: MessageKind, by: Instant, from: &TcpStream) -> io::Result<Vec<u8>> {
    let (found, bytes) = receive_by(Some(by), from, LONGEST_GREETING)?;
    if found == kind as u8 { Ok(bytes) } else { Err(stranger("something else listens there")) }
}

/// Meets the other ranks. Rank 0 gets its connections to all others in their order, each other the one to rank 0.
///
/// # Errors
/// [`Error::Rendezvous`].
pub(super) fn meet(place: &Place) -> Result<Vec<(usize, TcpStream)>> {
    let met = if place.rank == 0 { listen(place) } else { come(place).map(|stream| vec![(0, stream)]) };
    met.map_err(|what| Error::Rendezvous { what })
}

/// Who came, and what it said.
type Comer = (usize, TcpStream, Vec<u8>, [u8; 16]);

fn listen(place: &Place) -> std::result::Result<Vec<(usize, TcpStream)>, String> {
    let Place { listens_at, port, world, .. } = place;
    let failed = |error: io::Error| {
        format!(
            "rank 0 cannot listen on port {port} of {listens_at}: {error}; set {PORT} to a free port, for every rank, or \
             {ADDRESS} to an address of this machine (0.0.0.0 for all)"
        )
    };
    let listener = TcpListener::bind((listens_at.as_str(), *port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let deadline = Instant::now() + place.timeout;
    let (heard, comers) = mpsc::channel();
    let mut came: BTreeMap<usize, TcpStream> = BTreeMap::new();
    while came.len() < world - 1 {
        if Instant::now() > deadline {
            return Err(who_is_missing(place, &came));
        }
        while let Ok((stream, _)) = listener.accept() {
            let (heard, place) = (heard.clone(), place.clone());
            // So one that says nothing holds up no other. Without a thread for it, it is sent away, and comes again.
            let hears = move || hear(stream, &place).map(|comer| heard.send(comer).ok()).ok();
            std::thread::Builder::new().spawn(hears).ok();
        }
        let Ok((rank, stream, hello, challenge)) = comers.recv_timeout(PAUSE) else { continue };
        // A rank that was started again takes the place of what it was before.
        if came.get(&rank).is_some_and(|before| !is_gone(before)) {
            send(&stream, MessageKind::Refused, format!("there is a rank {rank} already").as_bytes()).ok();
        } else {
            let proof = proof(&place.secret, Side::Rank0, &hello, &challenge).finalize().into_bytes();
            if send(&stream, MessageKind::Proof, &proof).is_ok() {
                came.insert(rank, stream);
            }
        }
    }
    for (rank, stream) in &came {
        let said = prepare(stream).and_then(|()| send(stream, MessageKind::Go, &[]));
        said.map_err(|error| format!("rank {rank} came, and left again: {error}"))?;
    }
    Ok(came.into_iter().collect())
}

fn who_is_missing(place: &Place, came: &BTreeMap<usize, TcpStream>) -> String {
    let Place { world, host, port, timeout, listens_at, .. } = place;
    let missing = (1..*world).filter(|rank| !came.contains_key(rank)).map(|rank| rank.to_string());
    let missing: Vec<_> = missing.collect();
    let (ranks, did) = if missing.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
    let said = format!(
        "{ranks} {} of {world} {did} not come to {host}:{port} within {} s; {TIMEOUT} sets another time",
        missing.join(", "),
        timeout.as_secs()
    );
    if place.is_one_machine {
        return said;
    }
    format!("{said}; rank 0 listens at {listens_at}, and {ADDRESS} sets another address")
}

/// Whether the other side has closed the connection.
fn is_gone(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    stream.set_nonblocking(false).is_err()
        || !peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Hears who came. What does not begin with a hello of ours is not answered.
fn hear(stream: TcpStream, place: &Place) -> io::Result<Comer> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let by = Instant::now() + PATIENCE;
    let hello = receive_a(MessageKind::Hello, by, &stream)?;
    let (version, rank, of, _): (String, usize, usize, u128) = serde_json::from_slice(&hello)?;
    if version != VERSION {
        return Err(stranger("another version"));
    }
    let challenge: [u8; 16] = rand::random();
    send(&stream, MessageKind::Challenge, &challenge)?;
    let said = receive_a(MessageKind::Proof, by, &stream)?;
    let why = if proof(&place.secret, Side::Comer, &hello, &challenge).verify_slice(&said).is_err() {
        format!("its {SECRET} is not that of rank 0: set it to the same text for every rank")
    } else if of != place.world || !(1..of).contains(&rank) {
        format!("rank 0 belongs to a world of {} ranks, and this is rank {rank} of {of}", place.world)
    } else {
        return Ok((rank, stream, hello, challenge));
    };
    send(&stream, MessageKind::Refused, why.as_bytes())?;
    Err(stranger(&why))
}

fn come(place: &Place) -> std::result::Result<TcpStream, String> {
    let Place { rank, host, port, timeout, .. } = place;
    let deadline = Instant::now() + *timeout;
    let silent = |what: &str| {
        let seconds = timeout.as_secs();
        format!("rank {rank}: rank 0 at {host}:{port} {what} for {seconds} s; {TIMEOUT} sets another time")
    };
    let gone = |error: io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => silent("heard this one, and then nothing"),
        _ => format!("rank 0 at {host}:{port} went away before all ranks had come"),
    };
    let mut why = String::from("was not found");
    while Instant::now() < deadline {
        match knock(place) {
            Ok(Ok(stream)) => {
                let word = receive_a(MessageKind::Go, deadline + GRACE, &stream);
                word.and_then(|_| prepare(&stream)).map_err(gone)?;
                return Ok(stream);
            }
            Ok(Err(refused)) => return Err(format!("rank {rank}: {refused}")),
            Err(error) => why = format!("did not answer ({error})"),
        }
        std::thread::sleep(PAUSE * 5);
    }
    Err(silent(&why))
}

/// Tries each address of rank 0.
fn knock(place: &Place) -> io::Result<std::result::Result<TcpStream, String>> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in (place.host.as_str(), place.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return introduce(stream, place),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Says hello, or hears why this rank may not come.
fn introduce(stream: TcpStream, place: &Place) -> io::Result<std::result::Result<TcpStream, String>> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let by = Instant::now() + PATIENCE;
    let hello = serde_json::to_vec(&(VERSION, place.rank, place.world, rand::random::<u128>()))?;
    send(&stream, MessageKind::Hello, &hello)?;
    let challenge = receive_a(MessageKind::Challenge, by, &stream)?;
    let mine = proof(&place.secret, Side::Comer, &hello, &challenge).finalize().into_bytes();
    send(&stream, MessageKind::Proof, &mine)?;
    let (kind, said) = receive_by(Some(by), &stream, LONGEST_GREETING)?;
    if kind == MessageKind::Refused as u8 {
        return Ok(Err(String::from_utf8_lossy(&said).into_owned()));
    }
    if proof(&place.secret, Side::Rank0, &hello, &challenge).verify_slice(&said).is_err() {
        return Err(stranger(&format!("who listens there does not know {SECRET}")));
    }
    Ok(Ok(stream))
}

/// From here on the connection has no time limits of ours. The system gives it up when the other machine is silent for 7
/// seconds. A thread always reads what comes, so none is full for longer.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    stream.set_nodelay(true)?;
    for (level, name, value) in [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 3),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 7000),
    ] {
        let (value, size): (libc::c_int, _) = (value, size_of::<libc::c_int>() as libc::socklen_t);
        let at = (&raw const value).cast();
        // SAFETY: the descriptor is open, and each of these options takes an int.
        if unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, at, size) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: usize, port: u16, secret: &str) -> Place {
        let timeout = Duration::from_secs(60);
        Place { timeout, secret: Secret(secret.to_owned()), ..Place::here(rank, 2, port) }
    }

    fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn free_port() -> u16 {
        listener().1
    }

    #[test]
    fn only_who_knows_the_secret_is_let_in() {
        let port = free_port();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| meet(&place(0, port, "one secret")));
            for other in ["another", ""] {
                let error = meet(&place(1, port, other)).unwrap_err().to_string();
                assert!(error.contains("its MILLPOND_SECRET is not that of rank 0"), "{error}");
            }
            assert_eq!(meet(&place(1, port, "one secret")).unwrap().len(), 1);
            assert_eq!(first.join().unwrap().unwrap().len(), 1);
        });
    }

    #[test]
    fn a_listener_without_the_secret_is_not_believed() {
        let (listener, port) = listener();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                let by = Instant::now() + PATIENCE;
                receive_a(MessageKind::Hello, by, &stream).unwrap();
                send(&stream, MessageKind::Challenge, &[0; 16]).unwrap();
                // What it was sent does not help it.
                let proof = receive_a(MessageKind::Proof, by, &stream).unwrap();
                send(&stream, MessageKind::Proof, &proof).unwrap();
            });
            let error = knock(&place(1, port, "one secret")).unwrap_err();
            assert!(error.to_string().contains("does not know MILLPOND_SECRET"), "{error}");
        });
    }

    #[test]
    fn a_greeting_has_one_deadline() {
        let (listener, port) = listener();
        let slow = TcpStream::connect(("127.0.0.1", port)).unwrap();
        send(&slow, MessageKind::Hello, b"hello").unwrap();
        let (stream, _) = listener.accept().unwrap();
        let late = receive_a(MessageKind::Hello, Instant::now(), &stream).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut, "though all is there to read");
        assert_eq!(receive_a(MessageKind::Hello, Instant::now() + PATIENCE, &stream).unwrap(), b"hello");
    }

    #[test]
    fn those_who_say_nothing_hold_up_nobody() {
        let port = free_port();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| meet(&place(0, port, "")).unwrap());
            let come = || TcpStream::connect(("127.0.0.1", port));
            let silent: Vec<_> = std::iter::repeat_with(come).filter_map(io::Result::ok).take(80).collect();
            let began = Instant::now();
            assert_eq!(meet(&place(1, port, "")).unwrap().len(), 1);
            assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
            assert_eq!(first.join().unwrap().len(), 1);
            drop(silent);
        });
    }

    #[test]
    fn a_rank_that_is_started_again_takes_its_place() {
        let port = free_port();
        let place = |rank| Place { world: 3, ..place(rank, port, "") };
        std::thread::scope(|scope| {
            let first = scope.spawn(move || meet(&place(0)).unwrap());
            // Rank 1 comes, and does not live to see rank 2.
            let began = Instant::now();
            while !matches!(knock(&place(1)), Ok(Ok(_))) {
                assert!(began.elapsed() < Duration::from_secs(60));
            }
            let second = scope.spawn(move || meet(&place(1)).unwrap());
            std::thread::sleep(PAUSE * 10);
            let third = scope.spawn(move || meet(&place(2)).unwrap());
            assert_eq!(first.join().unwrap().len(), 2);
            assert!([second, third].into_iter().all(|rank| rank.join().unwrap().len() == 1));
        });
    }

    #[test]
    fn a_second_rank_of_the_same_number_is_refused() {
        let port = free_port();
        let place = |rank| Place { world: 3, ..place(rank, port, "") };
        std::thread::scope(|scope| {
            let first = scope.spawn(move || meet(&place(0)).unwrap());
            let held = loop {
                if let Ok(Ok(stream)) = knock(&place(1)) {
                    break stream;
                }
            };
            let error = meet(&place(1)).unwrap_err().to_string();
            assert!(error.contains("there is a rank 1 already"), "{error}");
            meet(&place(2)).unwrap();
            assert_eq!(first.join().unwrap().len(), 2);
            drop(held);
        });
    }
}
