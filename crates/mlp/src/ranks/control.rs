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

impl From<Loss> for Error {
    fn from(loss: Loss) -> Self {
        let died = " has died: it was killed, or its machine is gone; --resume goes on from a checkpoint";
        let what = loss.error.map_or_else(|| died.to_owned(), |error| format!(": {error}"));
        Self::RankLost { rank: loss.rank, what }
    }
}

/// What ends the process, if it has not ended by itself some time after a rank was lost.
pub type LastResort = fn(&Loss, &Place);

/// This rank's connections to others: rank 0's to all, another's to rank 0.
#[derive(Debug)]
pub(super) struct Control {
    ends: Arc<Ends>,
    /// What each rank said, in the order of the connections.
    parts: Vec<Mutex<Receiver<Vec<u8>>>>,
}

/// How ranks end, and who is told of it.
struct Ends {
    place: Place,
    /// Each connection with the rank on its other side.
    writers: Vec<(usize, Mutex<TcpStream>)>,
    last_resort: LastResort,
    loss: OnceLock<Loss>,
    /// What is done on this rank when one is lost.
    hooks: Mutex<Vec<Hook>>,
    /// This rank is done: what becomes of the others is nothing to it.
    has_left: AtomicBool,
}

type Hook = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ends").field("place", &self.place).field("loss", &self.loss).finish_non_exhaustive()
    }
}

impl Ends {
    /// A rank is lost, which may be this one. The first loss counts.
    fn lose(self: &Arc<Self>, loss: Loss) {
        let hooks = {
            let mut hooks = self.hooks.lock();
            if self.has_left.load(Ordering::SeqCst) || self.loss.set(loss.clone()).is_err() {
                return;
            }
            std::mem::take(&mut *hooks)
        };
        // The main thread ends the process, unless it is stuck in the device's driver.
        let (ends, lost) = (self.clone(), loss.clone());
        let patience = move || {
            std::thread::sleep(PATIENCE);
            if !ends.has_left.load(Ordering::SeqCst) {
                (ends.last_resort)(&lost, &ends.place);
            }
        };
        std::thread::Builder::new().name("last resort".to_owned()).spawn(patience).ok();
        if self.place.rank == 0 {
            let text = serde_json::to_vec(&loss).unwrap_or_default();
            let others = self.writers.iter().filter(|(rank, _)| *rank != loss.rank);
            others.for_each(|(_, writer)| drop(send(writer, Kind::Gone, &text)));
        } else if loss.rank == self.place.rank {
            self.tell_all(Kind::Failed, loss.error.unwrap_or_default().as_bytes());
        }
        hooks.into_iter().for_each(|hook| hook());
    }

    fn tell_all(&self, kind: Kind, text: &[u8]) {
        self.writers.iter().for_each(|(_, writer)| drop(send(writer, kind, text)));
    }

    /// Hands parts on until the rank on the other side is done or gone.
    fn listen(self: &Arc<Self>, mut stream: TcpStream, rank: usize, parts: &Sender<Vec<u8>>) {
        let died = || Loss { rank, error: None };
        let loss = loop {
            let Ok((kind, text)) = message(&mut stream) else { break died() };
            match kind {
                kind if kind == Kind::Part as u8 => drop(parts.send(text)),
                kind if kind == Kind::Goodbye as u8 => return,
                kind if kind == Kind::Failed as u8 => {
                    break Loss { rank, error: Some(String::from_utf8_lossy(&text).into_owned()) };
                }
                kind if kind == Kind::Gone as u8 => {
                    break serde_json::from_slice(&text).unwrap_or_else(|_| died());
                }
                _ => break died(),
            }
        };
        self.lose(loss);
    }
}

impl Control {
    /// Takes the connections over. Returns those for data.
    pub(super) fn new(
        place: Place,
        links: Vec<Link>,
        last_resort: LastResort,
    ) -> io::Result<(Self, Vec<TcpStream>)> {
        let (mut writers, mut data, mut hooks) = (Vec::new(), Vec::new(), Vec::<Hook>::new());
        let mut readers = Vec::new();
        for Link { rank, control, data: of_data } in links {
            writers.push((rank, Mutex::new(control.try_clone()?)));
            readers.push((rank, control));
            let to_shut = of_data.try_clone()?;
            hooks.push(Box::new(move || drop(to_shut.shutdown(Shutdown::Both))));
            data.push(of_data);
        }
        let (loss, hooks, has_left) = (OnceLock::new(), Mutex::new(hooks), AtomicBool::new(false));
        let ends = Arc::new(Ends { place, writers, last_resort, loss, hooks, has_left });
        let mut control = Self { ends, parts: Vec::new() };
        for (rank, stream) in readers {
            let (tell, parts) = mpsc::channel();
            let ends = control.ends.clone();
            let thread = std::thread::Builder::new().name(format!("rank {rank}"));
            thread.spawn(move || ends.listen(stream, rank, &tell))?;
            control.parts.push(Mutex::new(parts));
        }
        Ok((control, data))
    }

    pub(super) fn place(&self) -> &Place {
        &self.ends.place
    }

    pub(super) fn loss(&self) -> Option<&Loss> {
        self.ends.loss.get()
    }

    /// Has this done when a rank is lost; at once, if one is.
    pub(super) fn on_loss(&self, hook: impl FnOnce() + Send + 'static) {
        let mut hooks = self.ends.hooks.lock();
        if self.loss().is_some() {
            drop(hooks);
            hook();
        } else {
            hooks.push(Box::new(hook));
        }
    }

    /// What each rank has to say, in their order. All ranks call it, the same number of times.
    pub(super) fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        let mine = serde_json::to_vec(mine).map_err(|error| wrong(&error))?;
        let all = if self.place().rank == 0 {
            let mut all = vec![b'['];
            all.extend(mine);
            for parts in &self.parts {
                all.push(b',');
                all.extend(self.receive(parts)?);
            }
            all.push(b']');
            self.send(&all)?;
            all
        } else {
            self.send(&mine)?;
            self.receive(&self.parts[0])?
        };
        serde_json::from_slice(&all).map_err(|error| wrong(&error))
    }

    fn send(&self, text: &[u8]) -> Result<()> {
        let mut writers = self.ends.writers.iter();
        let sent = writers.try_for_each(|(_, writer)| send(writer, Kind::Part, text));
        sent.map_err(|error| self.explained_or(&error))
    }

    fn receive(&self, parts: &Mutex<Receiver<Vec<u8>>>) -> Result<Vec<u8>> {
        loop {
            match parts.lock().recv_timeout(Duration::from_millis(50)) {
                Ok(part) => return Ok(part),
                Err(RecvTimeoutError::Timeout) => match self.loss() {
                    Some(loss) => return Err(loss.clone().into()),
                    None => continue,
                },
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.explained_or(&"another rank is done before this one"));
                }
            }
        }
    }

    /// The loss that explains this failure.
    fn explained_or(&self, what: &dyn std::fmt::Display) -> Error {
        match self.wait_for_loss() {
            Some(loss) => loss.into(),
            None => Error::Rendezvous { what: format!("rank {}: {what}", self.place().rank) },
        }
    }

    /// The loss of a rank, of which there may be word soon.
    pub(super) fn wait_for_loss(&self) -> Option<Loss> {
        let began = Instant::now();
        while self.loss().is_none() && began.elapsed() < EXPLAINED_WITHIN {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.loss().cloned()
    }

    /// Tells the others that this rank is done, or that it ends with an error.
    pub(super) fn leave(&self, error: Option<&str>) {
        match error {
            Some(error) => {
                self.ends.lose(Loss { rank: self.place().rank, error: Some(error.to_owned()) });
            }
            None if self.loss().is_none() => {
                self.ends.has_left.store(true, Ordering::SeqCst);
                self.ends.tell_all(Kind::Goodbye, &[]);
            }
            None => {}
        }
    }
}

impl Drop for Control {
    /// Ends the threads that read.
    fn drop(&mut self) {
        self.ends.has_left.store(true, Ordering::SeqCst);
        for (_, writer) in &self.ends.writers {
            writer.lock().shutdown(Shutdown::Both).ok();
        }
    }
}

fn wrong(error: &serde_json::Error) -> Error {
    Error::Rendezvous {
        what: format!("the ranks do not understand each other: {error}; start the same program on all"),
    }
}

fn send(writer: &Mutex<TcpStream>, kind: Kind, text: &[u8]) -> io::Result<()> {
    let mut message = vec![kind as u8];
    message.extend((text.len() as u32).to_le_bytes());
    message.extend(text);
    writer.lock().write_all(&message)
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
