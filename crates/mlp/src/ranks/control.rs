//! The control connections: what ranks tell each other beside the data, and how they learn that one of them is gone.
//!
//! A thread reads each connection. A connection that ends without a goodbye is a rank that has died. Rank 0 hears of it,
//! and tells the others. Then the data connections are shut, so that no rank waits for what does not come.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::environment::Place;
use super::rendezvous::Link;
use crate::{Error, Result};

/// The longest message: nothing that is said is near it.
const LONGEST: u32 = 16 << 20;
/// Between a rank's end and that of the others, if these are stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an operation that failed waits for word of a rank's end, which explains it.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(3);

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// A part of [`Control::gather`].
    Part = 1,
    /// A rank is done. The end of its connection means nothing.
    Goodbye = 2,
    /// A rank ends with an error, which is the message.
    Failed = 3,
    /// Rank 0 tells which rank is gone.
    Gone = 4,
}

/// Why the training of a world ends early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Loss {
    /// The rank that is gone.
    pub rank: usize,
    /// Its error, if it could tell.
    pub error: Option<String>,
}

/// What is done on this rank when another is gone.
type Hook = Box<dyn FnOnce() + Send>;

/// What all threads of this rank know of the others' ends.
#[derive(Default)]
pub(super) struct Fate {
    loss: OnceLock<Loss>,
    hooks: Mutex<Vec<Hook>>,
    /// This rank is done: what becomes of the others is nothing to it.
    has_left: AtomicBool,
}

impl std::fmt::Debug for Fate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fate").field("loss", &self.loss).finish_non_exhaustive()
    }
}

impl From<Loss> for Error {
    fn from(loss: Loss) -> Self {
        let what = loss.error.map_or_else(
            || {
                " has died: it was killed, or its machine is gone; --resume goes on from a checkpoint"
                    .to_owned()
            },
            |error| format!(": {error}"),
        );
        Self::RankLost { rank: loss.rank, what }
    }
}

impl Fate {
    pub(super) fn loss(&self) -> Option<&Loss> {
        self.loss.get()
    }

    /// Has this done when a rank is gone; at once, if one is.
    pub(super) fn on_loss(&self, hook: impl FnOnce() + Send + 'static) {
        let mut hooks = self.hooks.lock();
        if self.loss.get().is_some() {
            drop(hooks);
            hook();
        } else {
            hooks.push(Box::new(hook));
        }
    }

    /// The first loss counts. Whether this is it.
    fn declare(&self, loss: Loss) -> bool {
        let hooks = {
            let mut hooks = self.hooks.lock();
            if self.has_left.load(Ordering::SeqCst) || self.loss.set(loss).is_err() {
                return false;
            }
            std::mem::take(&mut *hooks)
        };
        hooks.into_iter().for_each(|hook| hook());
        true
    }
}

/// This rank's connections to others: rank 0's to all, another's to rank 0.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) place: Place,
    peers: Vec<Peer>,
    fate: Arc<Fate>,
}

#[derive(Debug)]
struct Peer {
    rank: usize,
    writer: Writer,
    parts: Mutex<Receiver<Vec<u8>>>,
}

type Writer = Arc<Mutex<TcpStream>>;

/// What ends the process, if it has not ended by itself some time after a rank was lost.
pub type LastResort = fn(&Loss, &Place);

impl Control {
    /// Takes the connections over. Returns those for data, each with its rank.
    pub(super) fn new(
        place: Place,
        links: Vec<Link>,
        last_resort: LastResort,
    ) -> io::Result<(Self, Vec<TcpStream>)> {
        let fate = Arc::new(Fate::default());
        let (mut peers, mut data, mut writers) = (Vec::new(), Vec::new(), Vec::<(usize, Writer)>::new());
        let mut readers = Vec::new();
        for link in links {
            let (tell, parts) = mpsc::channel();
            let writer = Arc::new(Mutex::new(link.control.try_clone()?));
            readers.push((link.rank, link.control, tell));
            writers.push((link.rank, writer.clone()));
            peers.push(Peer { rank: link.rank, writer, parts: Mutex::new(parts) });
            let to_shut = link.data.try_clone()?;
            fate.on_loss(move || drop(to_shut.shutdown(Shutdown::Both)));
            data.push(link.data);
        }
        let world = Arc::new((place.clone(), writers, last_resort));
        for (rank, stream, tell) in readers {
            let (fate, world) = (fate.clone(), world.clone());
            std::thread::Builder::new().name(format!("rank {rank}")).spawn(move || {
                let (place, writers, last_resort) = &*world;
                let Some(loss) = read(stream, rank, &tell) else { return };
                if !fate.declare(loss.clone()) {
                    return;
                }
                if place.rank == 0 {
                    let text = serde_json::to_vec(&loss).unwrap_or_default();
                    let others = writers.iter().filter(|(rank, _)| *rank != loss.rank);
                    others.for_each(|(_, writer)| drop(send(writer, Kind::Gone, &text)));
                }
                // The main thread ends the process, unless it is stuck in the device's driver.
                std::thread::sleep(PATIENCE);
                if !fate.has_left.load(Ordering::SeqCst) {
                    last_resort(&loss, place);
                }
            })?;
        }
        Ok((Self { place, peers, fate }, data))
    }

    pub(super) fn fate(&self) -> &Arc<Fate> {
        &self.fate
    }

    /// What each rank has to say, in their order. All ranks call it, the same number of times.
    pub(super) fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        let mine = serde_json::to_vec(mine).map_err(|error| wrong(&error))?;
        let all = if self.place.rank == 0 {
            let mut all = vec![b'['];
            all.extend(mine);
            for peer in &self.peers {
                all.push(b',');
                all.extend(self.receive(peer)?);
            }
            all.push(b']');
            self.peers.iter().try_for_each(|peer| self.send(peer, &all))?;
            all
        } else {
            self.peers.iter().try_for_each(|peer| self.send(peer, &mine))?;
            self.receive(&self.peers[0])?
        };
        serde_json::from_slice(&all).map_err(|error| wrong(&error))
    }

    fn send(&self, peer: &Peer, part: &[u8]) -> Result<()> {
        send(&peer.writer, Kind::Part, part).map_err(|error| self.explained_or(&error))
    }

    fn receive(&self, peer: &Peer) -> Result<Vec<u8>> {
        loop {
            match peer.parts.lock().recv_timeout(Duration::from_millis(50)) {
                Ok(part) => return Ok(part),
                Err(RecvTimeoutError::Timeout) => match self.fate.loss() {
                    Some(loss) => return Err(loss.clone().into()),
                    None => continue,
                },
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.explained_or(&format!("rank {} is done before the others", peer.rank)));
                }
            }
        }
    }

    /// The rank whose end explains this failure; waits a little for word of it.
    pub(super) fn explained_or(&self, what: &dyn std::fmt::Display) -> Error {
        match self.wait_for_loss() {
            Some(loss) => loss.into(),
            None => Error::Rendezvous { what: format!("rank {}: {what}", self.place.rank) },
        }
    }

    pub(super) fn wait_for_loss(&self) -> Option<Loss> {
        let began = Instant::now();
        while self.fate.loss().is_none() && began.elapsed() < EXPLAINED_WITHIN {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.fate.loss().cloned()
    }

    /// Tells the others that this rank ends: with an error, which rank 0 prints, or because all is done.
    pub(super) fn leave(&self, error: Option<&str>) {
        let (kind, text) = error.map_or((Kind::Goodbye, ""), |text| (Kind::Failed, text));
        if error.is_none() {
            self.fate.has_left.store(true, Ordering::SeqCst);
        } else {
            // What this rank's device waits for does not come any more.
            self.fate.declare(Loss { rank: self.place.rank, error: Some(text.to_owned()) });
        }
        for peer in &self.peers {
            if self.place.rank == 0 && kind == Kind::Failed {
                let loss = Loss { rank: 0, error: Some(text.to_owned()) };
                send(&peer.writer, Kind::Gone, &serde_json::to_vec(&loss).unwrap_or_default()).ok();
            } else {
                send(&peer.writer, kind, text.as_bytes()).ok();
            }
        }
    }
}

impl Drop for Control {
    /// Ends the threads that read.
    fn drop(&mut self) {
        self.fate.has_left.store(true, Ordering::SeqCst);
        for peer in &self.peers {
            peer.writer.lock().shutdown(Shutdown::Both).ok();
        }
    }
}

fn wrong(error: &serde_json::Error) -> Error {
    Error::Rendezvous {
        what: format!("the ranks do not understand each other: {error}; start the same program on all"),
    }
}

fn send(writer: &Writer, kind: Kind, text: &[u8]) -> io::Result<()> {
    let mut message = vec![kind as u8];
    message.extend((text.len() as u32).to_le_bytes());
    message.extend(text);
    writer.lock().write_all(&message)
}

/// Hands parts on until the rank is done (`None`) or gone.
fn read(mut stream: TcpStream, rank: usize, parts: &Sender<Vec<u8>>) -> Option<Loss> {
    loop {
        let Ok((kind, text)) = message(&mut stream) else {
            return Some(Loss { rank, error: None });
        };
        match kind {
            kind if kind == Kind::Part as u8 => drop(parts.send(text)),
            kind if kind == Kind::Goodbye as u8 => return None,
            kind if kind == Kind::Failed as u8 => {
                return Some(Loss { rank, error: Some(String::from_utf8_lossy(&text).into_owned()) });
            }
            kind if kind == Kind::Gone as u8 => {
                return Some(serde_json::from_slice(&text).unwrap_or(Loss { rank, error: None }));
            }
            _ => return Some(Loss { rank, error: None }),
        }
    }
}

fn message(stream: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length as usize];
    stream.read_exact(&mut text)?;
    Ok((head[0], text))
}
