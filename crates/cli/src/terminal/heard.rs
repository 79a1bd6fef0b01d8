//! Who hears a signal. One that nobody hears ends the command, as it would any program.
//!
//! Once something was registered for a signal, the system's own action is gone for good. So it is done here.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::{self, emulate_default_handler};

/// What asks a program for something.
pub(crate) const SIGNALS: [i32; 6] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// How many hear each signal, by its number.
static HEARING: [AtomicUsize; 32] = [const { AtomicUsize::new(0) }; 32];

/// A signal that ends the command once [`BEFORE`] is done; 0 for none.
static ENDING: AtomicI32 = AtomicI32::new(0);

/// What is done before a signal ends the command.
static BEFORE: OnceLock<fn()> = OnceLock::new();

/// Whether this process is the command, and no program that has it as a library.
static IS_COMMAND: AtomicBool = AtomicBool::new(false);

/// From here on, this process is the command. What it writes past `ulimit -f` is an error, as on a full disk. Programs that it runs have
/// the system's own action, which ends them.
pub(crate) fn be_the_command() {
    IS_COMMAND.store(true, Ordering::SeqCst);
    if ignored() & 1 << (SIGXFSZ - 1) == 0 {
        flag::register(SIGXFSZ, Arc::default()).ok();
    }
}

/// While this lives, somebody hears these signals. From then on, they end the command again.
#[derive(Debug)]
pub(crate) struct Hearing(&'static [i32]);

impl Hearing {
    pub(crate) fn begin(signals: &'static [i32]) -> Self {
        end_where_nobody_hears();
        // Sequentially consistent, as all of them: nothing of this is often.
        signals.iter().for_each(|signal| {
            HEARING[*signal as usize].fetch_add(1, Ordering::SeqCst);
        });
        Self(signals)
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.0.iter().for_each(|signal| {
            HEARING[*signal as usize].fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Has this done before a signal ends the command, for the rest of its life. The first caller's is taken.
pub(crate) fn before_ending(done: fn()) {
    /// How soon a signal is noticed.
    const EACH: Duration = Duration::from_millis(20);
    let ends = move || {
        loop {
            std::thread::sleep(EACH);
            match ENDING.load(Ordering::SeqCst) {
                0 => {}
                signal => {
                    done();
                    emulate_default_handler(signal).ok();
                }
            }
        }
    };
    // A handler may do next to nothing, so a thread does it. Without a thread, a signal ends the command at once.
    let is_command = IS_COMMAND.load(Ordering::SeqCst);
    if is_command
        && BEFORE.get().is_none()
        && std::thread::Builder::new().name("ending".into()).spawn(ends).is_ok()
    {
        BEFORE.set(done).ok();
        end_where_nobody_hears();
    }
}

/// Ends the command at each signal that nobody hears, if that is what the system would do: not where the command ignores it, or
/// what runs the command, such as Python, has a handler.
fn end_where_nobody_hears() {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    if !IS_COMMAND.load(Ordering::SeqCst) {
        return;
    }
    REGISTERED.get_or_init(|| {
        let others = ignored() | of_this_process("SigCgt:");
        for signal in SIGNALS.into_iter().filter(|signal| others & 1 << (signal - 1) == 0) {
            let end = move || {
                if HEARING[signal as usize].load(Ordering::SeqCst) > 0 {
                    return;
                }
                match BEFORE.get() {
                    Some(_) => ENDING.store(signal, Ordering::SeqCst),
                    None => {
                        emulate_default_handler(signal).ok();
                    }
                }
            };
            // SAFETY: the handler uses atomic numbers, a cell that it only reads, and a call that handlers may make.
            unsafe { low_level::register(signal, end) }.ok();
        }
    });
}

/// The signals that this process ignores, a bit each from 1 on: as under `nohup`.
pub(crate) fn ignored() -> u64 {
    of_this_process("SigIgn:")
}

fn of_this_process(line: &str) -> u64 {
    let about = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = about.lines().find_map(|found| found.strip_prefix(line));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
