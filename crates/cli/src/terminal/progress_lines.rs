//! A sign of life where nobody sees a bar: lines on stderr, from the first second on, that say what is being done.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::screen::{is_quiet, note_work};

/// What takes less is over before anybody wonders.
const SOON: Duration = Duration::from_secs(1);

/// Says what is being done once it takes more than a second, and then each time that something else is begun. On a terminal
/// and with `--quiet` it says nothing.
#[derive(Debug)]
pub(crate) struct ProgressLines(Option<Ticker>);

#[derive(Debug)]
struct Ticker {
    doing: Arc<Mutex<Doing>>,
    /// Its end wakes the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Doing {
    what: String,
    /// Whether a line was said.
    is_said: bool,
}

impl ProgressLines {
    pub(crate) fn new(what: &str) -> Self {
        if is_quiet() || std::io::stderr().is_terminal() {
            return Self(None);
        }
        let doing = Arc::new(Mutex::new(Doing { what: what.to_owned(), is_said: false }));
        let (running, over) = mpsc::channel();
        let seen = doing.clone();
        let wait = move || {
            if over.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
                say(&mut locked(&seen));
            }
        };
        // Without a thread there is no sign, and the work goes on.
        let thread = std::thread::Builder::new().spawn(wait).ok();
        Self(Some(Ticker { doing, running: Some(running), thread }))
    }

    /// From now on this is done.
    pub(crate) fn set(&self, what: &str) {
        let Some(watch) = &self.0 else { return };
        let mut doing = locked(&watch.doing);
        if doing.what != what {
            what.clone_into(&mut doing.what);
            if doing.is_said {
                say(&mut doing);
            }
        }
    }
}

fn locked(doing: &Mutex<Doing>) -> std::sync::MutexGuard<'_, Doing> {
    // What is behind the lock is whole at any time.
    doing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn say(doing: &mut Doing) {
    doing.is_said = true;
    note_work(&doing.what);
}

impl Drop for ProgressLines {
    fn drop(&mut self) {
        if let Some(watch) = &mut self.0 {
            watch.running = None;
            watch.thread.take().map(JoinHandle::join);
        }
    }
}
