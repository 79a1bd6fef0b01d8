//! Ctrl-C, and a terminal that is closed: the first signal lets a command keep what is done, the second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};

use super::heard::{Hearing, ignored};

/// The signals that ask a program to end. A shell adds 128 to their numbers for the exit status.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Watches for a signal, from when it was made until it is dropped.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// The signal that came; 0 before.
    came: Arc<AtomicUsize>,
    registered: Vec<SigId>,
    _hearing: Hearing,
}

impl Interrupt {
    /// From now on a signal does not end the program, unless it is the second one. Where the system refuses that, a
    /// signal ends the program as before.
    pub(crate) fn watch() -> Self {
        let hearing = Hearing::begin(&SIGNALS);
        let (came, again) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let note = |signal: i32| flag::register_usize(signal, came.clone(), signal as usize);
        let register = |signal: i32| {
            // They run in this order: the first signal finds `again` unset.
            [
                flag::register_conditional_shutdown(signal, 128 + signal, again.clone()),
                flag::register(signal, again.clone()),
                note(signal),
            ]
        };
        let mut registered: Vec<_> = [SIGINT, SIGTERM].into_iter().flat_map(register).flatten().collect();
        // A terminal that is closed says so more than once. Under `nohup`, that is not for the command.
        if ignored() & 1 << (SIGHUP - 1) == 0 {
            registered.extend(note(SIGHUP));
        }
        Self { came, registered, _hearing: hearing }
    }

    /// Waits so long; `false` where a signal ended it.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        /// How soon a signal is noticed.
        const PART: Duration = Duration::from_millis(50);
        let mut left = time;
        while !left.is_zero() && self.signal().is_none() {
            let part = left.min(PART);
            std::thread::sleep(part);
            left -= part;
        }
        self.signal().is_none()
    }

    /// The signal that came, if one did.
    pub(crate) fn signal(&self) -> Option<Signal> {
        // Relaxed: nothing is passed on but the number itself.
        match self.came.load(Ordering::Relaxed) {
            0 => None,
            number => Some(Signal(number as u8)),
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.registered.drain(..).for_each(|id| {
            low_level::unregister(id);
        });
    }
}

/// A signal that asked the program to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal(u8);

impl Signal {
    /// What the system calls it.
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// The signal with this number, of those that are watched.
    pub(crate) fn of_number(number: u8) -> Self {
        Self(number)
    }

    /// The exit status of a program that this signal ended.
    pub(crate) fn status(self) -> u8 {
        128 + self.0
    }
}

impl std::fmt::Display for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match i32::from(self.0) {
            SIGINT => "Ctrl-C",
            SIGHUP => "SIGHUP",
            SIGQUIT => "SIGQUIT",
            _ => "SIGTERM",
        })
    }
}
