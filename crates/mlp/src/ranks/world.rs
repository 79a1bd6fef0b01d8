//! This process among the ranks of a training: what they tell each other, and how they learn that one of them is gone.
//!
//! A thread reads each connection. A connection that ends without a goodbye is a rank that has died. Rank 0 hears of it,
//! and tells the others. Then the connections are shut, so that no rank waits for what does not come.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::environment::Place;
use super::meeting::{self, MessageKind};
use crate::{Error, Result};

/// Between a rank's end and that of the others, if these are stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an operation that failed waits for word of a rank's end, which explains it.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(3);

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

/// This process among the ranks of a training.
#[derive(Debug)]
pub struct Ranks {
    ends: Arc<Ends>,
    /// What came over each connection: parts of what all say, and data. Rank 0 has one to each other, another one to rank 0.
    came: Vec<[Mutex<Receiver<Vec<u8>>>; 2]>,
}

/// How ranks end, and who is told of it.
struct Ends {
    place: Place,
    /// Each connection with the rank on its other side.
    writers: Vec<(usize, Mutex<TcpStream>)>,
    last_resort: LastResort,
    loss: OnceLock<Loss>,
    /// What is done on this rank when one is lost.
    hooks: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    /// This rank is done: what becomes of the others is nothing to it.
    has_left: AtomicBool,
}

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
        if self.place.rank == 0 || self.place.rank == loss.rank {
            self.tell_all(MessageKind::Lost, &serde_json::to_vec(&loss).unwrap_or_default());
        }
        self.shut();
        hooks.into_iter().for_each(|hook| hook());
    }

    fn tell_all(&self, kind: MessageKind, bytes: &[u8]) {
        self.writers.iter().for_each(|(_, writer)| drop(meeting::send(&writer.lock(), kind, bytes)));
    }

    /// Ends the threads that read, and who waits for what they would read.
    fn shut(&self) {
        self.writers.iter().for_each(|(_, writer)| drop(writer.lock().shutdown(Shutdown::Both)));
    }

    /// Hands on what comes until the rank on the other side is done or gone.
    fn listen(self: &Arc<Self>, stream: &TcpStream, rank: usize, [parts, data]: &[Sender<Vec<u8>>; 2]) {
        let died = Loss { rank, error: None };
        let loss = loop {
            match meeting::receive(stream) {
                Ok((kind, bytes)) if kind == MessageKind::Part as u8 => drop(parts.send(bytes)),
                Ok((kind, bytes)) if kind == MessageKind::Data as u8 => drop(data.send(bytes)),
                Ok((kind, _)) if kind == MessageKind::Goodbye as u8 => return,
                Ok((kind, bytes)) if kind == MessageKind::Lost as u8 => {
                    break serde_json::from_slice(&bytes).unwrap_or(died);
                }
                _ => break died,
            }
        };
        self.lose(loss);
    }
}

impl Ranks {
    /// Meets the other ranks. `last_resort` ends the process, in case it is stuck in a driver when another rank is gone.
    ///
    /// # Errors
    /// [`Error::Rendezvous`], which names the ranks that did not come.
    pub fn meet(place: Place, last_resort: LastResort) -> Result<Self> {
        let met = meeting::meet(&place)?;
        Self::of(place, met, last_resort).map_err(|error| Error::Rendezvous { what: error.to_string() })
    }

    fn of(place: Place, met: Vec<(usize, TcpStream)>, last_resort: LastResort) -> std::io::Result<Self> {
        let cloned = |(rank, stream): &(usize, TcpStream)| Ok((*rank, Mutex::new(stream.try_clone()?)));
        let writers = met.iter().map(cloned).collect::<std::io::Result<_>>()?;
        let mut ranks = Self::with(place, writers, last_resort);
        for (rank, stream) in met {
            let [(part, parts), (datum, data)] = [mpsc::channel(), mpsc::channel()];
            let ends = ranks.ends.clone();
            let reads = move || ends.listen(&stream, rank, &[part, datum]);
            std::thread::Builder::new().name(format!("rank {rank}")).spawn(reads)?;
            ranks.came.push([parts, data].map(Mutex::new));
        }
        Ok(ranks)
    }

    /// One rank alone.
    pub(crate) fn alone() -> Self {
        Self::with(Place::here(0, 1, 0), Vec::new(), |_, _| {})
    }

    fn with(place: Place, writers: Vec<(usize, Mutex<TcpStream>)>, last_resort: LastResort) -> Self {
        let (loss, hooks, has_left) = (OnceLock::new(), Mutex::default(), AtomicBool::new(false));
        let ends = Ends { place, writers, last_resort, loss, hooks, has_left };
        Self { ends: Arc::new(ends), came: Vec::new() }
    }

    /// Which rank this is.
    pub fn place(&self) -> &Place {
        &self.ends.place
    }

    /// Why the training ends early, if a rank is gone.
    pub fn loss(&self) -> Option<&Loss> {
        self.ends.loss.get()
    }

    /// What each rank has to say, in their order. All ranks call it, the same number of times.
    ///
    /// # Errors
    /// [`Error::RankLost`] where a rank is gone.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        let mine = serde_json::to_vec(mine).map_err(|error| wrong(&error))?;
        let all = if self.place().rank == 0 {
            let mut all = [b"[", &mine[..]].concat();
            for at in 0..self.came.len() {
                all.push(b',');
                all.extend(self.receive(MessageKind::Part, at)?);
            }
            all.push(b']');
            (0..self.came.len()).try_for_each(|at| self.send(MessageKind::Part, at, &all))?;
            all
        } else {
            self.send(MessageKind::Part, 0, &mine)?;
            self.receive(MessageKind::Part, 0)?
        };
        serde_json::from_slice(&all).map_err(|error| wrong(&error))
    }

    /// Sends over a connection: rank 0 has one to each other rank, in their order, and another one to rank 0.
    pub(super) fn send(&self, kind: MessageKind, to: usize, bytes: &[u8]) -> Result<()> {
        let sent = meeting::send(&self.ends.writers[to].1.lock(), kind, bytes);
        sent.map_err(|error| self.explained_or(&error))
    }

    /// What comes next over a connection.
    pub(super) fn receive(&self, kind: MessageKind, from: usize) -> Result<Vec<u8>> {
        let received = self.came[from][usize::from(kind == MessageKind::Data)].lock().recv();
        received.map_err(|_| self.explained_or(&"another rank is done before this one"))
    }

    /// Has this done on another thread when a rank is lost: ending what waits for that rank. At once, if one is.
    pub(crate) fn on_loss(&self, hook: impl FnOnce() + Send + 'static) {
        let mut hooks = self.ends.hooks.lock();
        if self.loss().is_none() {
            return hooks.push(Box::new(hook));
        }
        drop(hooks);
        hook();
    }

    /// The loss that explains this failure.
    fn explained_or(&self, what: &dyn std::fmt::Display) -> Error {
        match self.wait_for_loss() {
            Some(loss) => loss.into(),
            None => Error::Rendezvous { what: format!("rank {}: {what}", self.place().rank) },
        }
    }

    /// The loss of a rank, of which there may be word soon.
    fn wait_for_loss(&self) -> Option<Loss> {
        let began = Instant::now();
        while self.loss().is_none() && began.elapsed() < EXPLAINED_WITHIN {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.loss().cloned()
    }

    /// Tells the others that this rank is done, or that it ends with an error. Then they end, too, and rank 0 prints it.
    pub fn leave(&self, error: Option<&str>) {
        match error {
            Some(error) => {
                self.ends.lose(Loss { rank: self.place().rank, error: Some(error.to_owned()) });
            }
            None if self.loss().is_none() => {
                self.ends.has_left.store(true, Ordering::SeqCst);
                self.ends.tell_all(MessageKind::Goodbye, &[]);
            }
            None => {}
        }
    }

    /// The error to end with: that another rank is lost, if this one may come of that. Else the others are told of it.
    pub(crate) fn ended_by(&self, error: Error) -> Error {
        if self.came.is_empty() {
            return error;
        }
        let may_come_of_another = matches!(error, Error::Rendezvous { .. } | Error::Library { .. });
        if let Some(loss) = may_come_of_another.then(|| self.wait_for_loss()).flatten() {
            return loss.into();
        }
        self.leave(Some(&error.to_string()));
        error
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.ends.has_left.store(true, Ordering::SeqCst);
        self.ends.shut();
    }
}

fn wrong(error: &serde_json::Error) -> Error {
    let what = format!("the ranks do not understand each other: {error}; start the same program on all");
    Error::Rendezvous { what }
}
