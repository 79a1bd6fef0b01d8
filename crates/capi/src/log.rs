//! What the library says, for a program that listens.

use std::ffi::{CString, c_char, c_void};
use std::fmt::{Debug, Write};
use std::ptr;
use std::sync::Arc;

use millpond::bindings::{Mutex, PerProcess};
use tracing::dispatcher::get_default;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber, callsite};

use crate::failure::{Failure, boundary};
use crate::gate::Gate;
use crate::status::Status;

/// How much a message matters.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed.
    Error = 1,
    /// Something is not as it should be.
    Warning = 2,
    /// Something that happens now and then.
    Info = 3,
    /// For who looks for a mistake.
    Debug = 4,
    /// Everything.
    Trace = 5,
}

impl LogLevel {
    fn of(level: Level) -> Self {
        match level {
            Level::ERROR => Self::Error,
            Level::WARN => Self::Warning,
            Level::INFO => Self::Info,
            Level::DEBUG => Self::Debug,
            Level::TRACE => Self::Trace,
        }
    }

    fn filter(number: i32) -> Result<LevelFilter, Failure> {
        Ok(match number {
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            5 => LevelFilter::TRACE,
            _ => {
                return Err(Failure::option(
                    "level",
                    format!("{number}; it must be one of millpond_log_level"),
                ));
            }
        })
    }
}

/// Told what the library says: a level (one of `millpond_log_level`), and a text that ends with a zero byte and lives until the
/// callback returns. Runs on the thread that says it, without locks held. It must not throw. What the library says meanwhile on
/// this thread is not told.
pub type Log = Option<unsafe extern "C" fn(level: i32, text: *const c_char, data: *mut c_void)>;

/// Who is told.
#[derive(Clone)]
struct Listener {
    function: unsafe extern "C" fn(i32, *const c_char, *mut c_void),
    data: *mut c_void,
    most: LevelFilter,
    gate: Arc<Gate>,
}

// SAFETY: the header asks that the callback may be called with its data from any thread, also at the same time.
unsafe impl Send for Listener {}

/// A forked child has nobody to tell: its parent's lock may be held for ever.
static LISTENER: PerProcess<Mutex<Option<Listener>>> = PerProcess::new(Default::default);

/// Hands what the library says to the listener.
struct Told;

impl Subscriber for Told {
    fn register_callsite(&self, about: &'static Metadata<'static>) -> Interest {
        if self.enabled(about) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, about: &Metadata<'_>) -> bool {
        LISTENER.get().lock().as_ref().is_some_and(|listener| *about.level() <= listener.most)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LISTENER.get().lock().as_ref().map_or(LevelFilter::OFF, |listener| listener.most))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let mut text = text.message + &text.fields;
        text.retain(|character| character != '\0');
        let text = CString::new(text).unwrap_or_default();
        let level = LogLevel::of(*event.metadata().level()) as i32;
        let listener = LISTENER.get().lock().clone();
        if let Some(Listener { function, data, gate, .. }) = listener {
            // SAFETY: as the header asks; the data is valid until the gate is shut.
            gate.pass(|| unsafe { function(level, text.as_ptr(), data) });
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event as text: its message, then its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let (to, name) = match field.name() {
            "message" => (&mut self.message, None),
            name => (&mut self.fields, Some(name)),
        };
        // Writing to a text does not fail.
        let _ = match name {
            None => write!(to, "{value:?}"),
            Some(name) => write!(to, "; {name}: {value:?}"),
        };
    }
}

/// Lets `log` be told what the library says up to `level` (one of `millpond_log_level`), in place of the one before. Null: nobody.
/// Then warnings that cannot wait go to the standard error. Returns after calls of the one before that other threads are in, but
/// not within a callback. `BAD_OPTION` where the program has a subscriber of Rust's `tracing`, which is told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_set_log(level: i32, log: Log, data: *mut c_void) -> Status {
    boundary(|_| {
        let new = match log {
            Some(function) => {
                Some(Listener { function, data, most: LogLevel::filter(level)?, gate: Arc::default() })
            }
            None => None,
        };
        if !install() {
            return Err(Failure::option("log", "the program has a subscriber of its own"));
        }
        let before = std::mem::replace(&mut *LISTENER.get().lock(), new);
        callsite::rebuild_interest_cache();
        if let Some(before) = before {
            before.gate.shut();
        }
        Ok(())
    })
}

/// Ends what `millpond_set_log` began with this data. Where another one took its place, that goes on. Returns after calls that
/// other threads are in, but not within a callback.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_end_log(data: *const c_void) -> Status {
    boundary(|_| {
        let ended = LISTENER.get().lock().take_if(|listener| ptr::addr_eq(listener.data, data));
        if let Some(ended) = ended {
            callsite::rebuild_interest_cache();
            ended.gate.shut();
        }
        Ok(())
    })
}

/// Whether events come here.
fn install() -> bool {
    let is_here = || get_default(|subscriber| subscriber.is::<Told>());
    // Of two threads that install it at once, one fails.
    is_here() || set_global_default(Told).is_ok() || is_here()
}
