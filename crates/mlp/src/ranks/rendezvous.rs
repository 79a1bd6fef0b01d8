//! How the ranks of a world meet: rank 0 listens, the others come.
//!
//! Each rank makes two connections to rank 0: one for control, one for data. On each it says hello, and rank 0 answers at
//! once with a challenge. Both prove that they know the world's secret. Whoever says anything else is sent away, and whoever
//! says nothing is, too, soon. When all have come, rank 0 gives the word on every control connection.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::environment::{ADDRESS, PORT, Place, SECRET, TIMEOUT};
use super::secret::{Nonce, Proof, Secret, Side};
use crate::{Error, Result};

/// What both sides begin with, and the version of all that follows.
const MAGIC: [u8; 8] = *b"millpnd2";
/// Magic, purpose, rank, ranks in all, and a nonce.
const HELLO_BYTES: usize = 33;
/// Who came, and is heard at once.
const MOST_HEARD: usize = 64;
/// How long all of a greeting may take.
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
    let Place { listens_at, port, .. } = place;
    let failed = |error: io::Error| {
        format!(
            "rank 0 cannot listen on port {port} of {listens_at}: {error}; set {PORT} to a free port, for every rank, or \
             {ADDRESS} to an address of this machine (0.0.0.0 for all)"
        )
    };
    let listener = TcpListener::bind((listens_at.as_str(), *port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let deadline = Instant::now() + place.timeout;
    let (heard, hellos) = mpsc::channel();
    let ears = Ears::default();
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
        ears.accept(&listener, place, &heard);
        match hellos.recv_timeout(PAUSE) {
            Ok(Hello { rank, purpose, mut stream, proof }) => {
                forget_who_left(&mut came);
                let seat = &mut came.entry(rank).or_default()[purpose as usize];
                if seat.is_some() {
                    refuse(&mut stream, &format!("there is a rank {rank} already")).ok();
                } else if answer(&mut stream, HEARD, &proof, "").is_ok() {
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

/// Who came, and is known to have the secret.
struct Hello {
    rank: usize,
    purpose: Purpose,
    stream: TcpStream,
    /// That rank 0 has it, too.
    proof: Proof,
}

/// Threads that hear who came, each one: so one that says nothing holds up few others.
#[derive(Debug, Default)]
struct Ears(Arc<()>);

impl Ears {
    /// Hears those who wait, but for those who are more than [`MOST_HEARD`] at once. These wait.
    fn accept(&self, listener: &TcpListener, place: &Place, heard: &mpsc::Sender<Hello>) {
        while self.busy() < MOST_HEARD
            && let Ok((stream, _)) = listener.accept()
        {
            let (heard, world, secret, busy) =
                (heard.clone(), place.world, place.secret.clone(), self.0.clone());
            let hears = move || {
                let hello = hear(stream, world, &secret);
                hello.map(|hello| heard.send(hello).ok()).ok();
                drop(busy);
            };
            // Without a thread for it, it is sent away, and comes again.
            std::thread::Builder::new().spawn(hears).ok();
        }
    }

    fn busy(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

fn who_is_missing(place: &Place, missing: &[usize]) -> String {
    let list: Vec<_> = missing.iter().map(usize::to_string).collect();
    let (ranks, did) = if list.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
    let mut said = format!(
        "{ranks} {} of {} {did} not come to {}:{} within {} s; {TIMEOUT} sets another time",
        list.join(", "),
        place.world,
        place.host,
        place.port,
        place.timeout.as_secs()
    );
    if !place.is_one_machine {
        said += &format!("; rank 0 listens at {}, and {ADDRESS} sets another address", place.listens_at);
    }
    said
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

/// Hears who came, within [`HELLO`]. What does not begin with our magic is not answered.
fn hear(stream: TcpStream, world: usize, secret: &Secret) -> io::Result<Hello> {
    stream.set_nonblocking(false)?;
    let mut timed = Timed::new(&stream);
    let mut hello = [0; HELLO_BYTES];
    timed.read_exact(&mut hello)?;
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
    let challenge: Nonce = rand::random();
    timed.write_all(&[&MAGIC[..], &challenge].concat())?;
    let mut proof = Proof::default();
    timed.read_exact(&mut proof)?;
    let why = if !secret.is_proved(Side::Comer, &hello, &challenge, &proof) {
        format!("its {SECRET} is not that of rank 0: set it to the same text for every rank")
    } else if of != world || !(1..world).contains(&rank) {
        format!("rank 0 belongs to a world of {world} ranks, and this is rank {rank} of {of}")
    } else {
        let proof = secret.proof(Side::Rank0, &hello, &challenge);
        return Ok(Hello { rank, purpose, stream, proof });
    };
    refuse(&mut timed, &why)?;
    Err(ErrorKind::InvalidData.into())
}

fn refuse(to: &mut impl Write, why: &str) -> io::Result<()> {
    answer(to, REFUSED, &Proof::default(), why)
}

fn answer(to: &mut impl Write, verdict: u8, proof: &Proof, why: &str) -> io::Result<()> {
    to.write_all(&[&MAGIC[..], &[verdict, why.len() as u8], proof, why.as_bytes()].concat())
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
    stream: TcpStream,
    place: &Place,
    purpose: Purpose,
) -> io::Result<std::result::Result<TcpStream, String>> {
    let stranger = |what: &str| Err(io::Error::new(ErrorKind::InvalidData, what.to_owned()));
    let mut timed = Timed::new(&stream);
    let mut hello = Vec::from(MAGIC);
    hello.push(purpose as u8);
    hello.extend((place.rank as u32).to_le_bytes());
    hello.extend((place.world as u32).to_le_bytes());
    hello.extend(rand::random::<Nonce>());
    timed.write_all(&hello)?;
    let (mut magic, mut challenge) = ([0; 8], Nonce::default());
    timed.read_exact(&mut magic)?;
    if magic != MAGIC {
        return stranger("something else listens there");
    }
    timed.read_exact(&mut challenge)?;
    timed.write_all(&place.secret.proof(Side::Comer, &hello, &challenge))?;
    let (mut head, mut proof) = ([0; 10], Proof::default());
    timed.read_exact(&mut head)?;
    timed.read_exact(&mut proof)?;
    let mut why = vec![0; head[9].into()];
    timed.read_exact(&mut why)?;
    if head[8] != HEARD {
        return Ok(Err(String::from_utf8_lossy(&why).into_owned()));
    }
    if !place.secret.is_proved(Side::Rank0, &hello, &challenge, &proof) {
        return stranger(&format!("who listens there does not know {SECRET}"));
    }
    Ok(Ok(stream))
}

// ---- Both ----

/// A connection whose greeting has one deadline, however slowly the other side sends.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl<'a> Timed<'a> {
    fn new(stream: &'a TcpStream) -> Self {
        Self { stream, deadline: Instant::now() + HELLO }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: usize, port: u16, secret: &str) -> Place {
        let (host, timeout) = ("127.0.0.1".to_owned(), Duration::from_secs(60));
        let (listens_at, secret) = (host.clone(), Secret::from(secret.to_owned()));
        Place {
            rank,
            world: 2,
            local_rank: rank,
            is_one_machine: true,
            host,
            listens_at,
            port,
            timeout,
            secret,
        }
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
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
                stream.write_all(&[&MAGIC[..], &Nonce::default()].concat()).unwrap();
                // What it was sent does not help it.
                let mut proof = Proof::default();
                stream.read_exact(&mut proof).unwrap();
                answer(&mut stream, HEARD, &proof, "").unwrap();
            });
            let error = knock_once(&place(1, port, "one secret"), Purpose::Control).unwrap_err();
            assert!(error.to_string().contains("does not know MILLPOND_SECRET"), "{error}");
        });
    }

    #[test]
    fn a_greeting_has_one_deadline() {
        let (listener, port) = listener();
        let mut slow = TcpStream::connect(("127.0.0.1", port)).unwrap();
        slow.write_all(&MAGIC).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut timed = Timed::new(&stream);
        timed.read_exact(&mut [0; 1]).unwrap();
        timed.deadline = Instant::now();
        let late = timed.read_exact(&mut [0; 1]).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut, "though there is more to read");
    }

    #[test]
    fn those_who_say_nothing_are_heard_a_few_at_a_time() {
        let (listener, port) = listener();
        listener.set_nonblocking(true).unwrap();
        let silent: Vec<_> =
            (0..MOST_HEARD + 10).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let (heard, hellos) = mpsc::channel();
        let ears = Ears::default();
        ears.accept(&listener, &place(0, port, ""), &heard);
        assert!(ears.busy() <= MOST_HEARD, "{}", ears.busy());
        // They go, and make room for the others.
        drop(silent);
        while ears.busy() > 0 {
            std::thread::yield_now();
        }
        ears.accept(&listener, &place(0, port, ""), &heard);
        assert!(listener.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
        drop(heard);
        assert!(hellos.recv().is_err(), "nobody said hello");
    }

    #[test]
    fn a_rank_that_is_started_again_takes_its_place() {
        let port = free_port();
        let place = |rank| Place { world: 3, ..place(rank, port, "") };
        std::thread::scope(|scope| {
            let first = scope.spawn(move || meet(&place(0)).unwrap());
            // Rank 1 comes, and does not live to see rank 2.
            let deadline = Instant::now() + Duration::from_secs(60);
            for purpose in [Purpose::Control, Purpose::Data] {
                drop(knock(&place(1), purpose, deadline).unwrap());
            }
            let others = [1, 2].map(|rank| scope.spawn(move || meet(&place(rank)).unwrap()));
            assert_eq!(first.join().unwrap().len(), 2);
            assert!(others.into_iter().all(|rank| rank.join().unwrap().len() == 1));
        });
    }
}
