//! What the library says by `tracing`: never while the thread holds a lock of the library.
//!
//! Uses `policy/` only. Every floor may use it, and only this file uses `tracing`. A subscriber is code of the program. It may use
//! the pool that an event is about, and would wait for ever for a lock that its own thread holds.
//!
//! So each lock [counts](Quiet) as held, and events meanwhile become text that waits. The thread's last unlock sends it. An event
//! that no level listens to is not made into text. What a subscriber causes itself is not said, as it would be without end.

use std::cell::Cell;
use std::fmt::{Display, Error, Result, Write};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use crate::policy::waiting::MOST_EVENTS;

/// Says something: a level, a text, and the fields with their values, which are displayed. A field without a value is a variable.
macro_rules! log {
    (@value $name:ident) => { $name };
    (@value $name:ident $value:expr) => { $value };
    ($level:ident, $text:literal $(, $name:ident $(= $value:expr)?)* $(,)?) => {
        if ::tracing::Level::$level <= ::tracing::level_filters::LevelFilter::current() {
            fn send(values: &[&dyn ::std::fmt::Display]) {
                if let [$($name),*] = values {
                    ::tracing::event!(::tracing::Level::$level, $($name = %$name,)* $text);
                }
            }
            $crate::log::say(&[$(&$crate::log::log!(@value $name $($value)?)),*], send);
        }
    };
}
pub(crate) use log;

/// How an event is sent, once its values are known.
type Emit = fn(&[&dyn Display]);

/// Most fields of an event.
const FIELDS: usize = 3;

/// An event that waits, with the values of its fields, and how many it has.
struct Waiting {
    send: Emit,
    values: [String; FIELDS],
    fields: usize,
}

/// See [`Thread::held`].
const ANY: usize = 1 << (usize::BITS - 1);

/// What is known of a thread. Nothing to be dropped: it is there until the thread is gone, and taking it needs no memory.
struct Thread {
    /// Locks that it holds, and the bit [`ANY`] if something waits or was lost: the last unlock compares once.
    held: Cell<usize>,
    /// Whether it is inside of a subscriber.
    is_sending: Cell<bool>,
    /// Empty without a lock held, but while the thread panics.
    waiting: Cell<ManuallyDrop<Vec<Waiting>>>,
    lost: Cell<u64>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            held: Cell::new(0),
            is_sending: Cell::new(false),
            waiting: Cell::new(ManuallyDrop::new(Vec::new())),
            lost: Cell::new(0),
        }
    };
}

/// While it lives, what the thread says waits. Each lock's guard has one, which goes after the lock. Also for what is no lock, and
/// that a subscriber must not come back to.
#[derive(Debug)]
pub(crate) struct Quiet {
    /// It counts for one thread.
    of_thread: PhantomData<*const ()>,
}

// SAFETY: a reference to it can do nothing.
unsafe impl Sync for Quiet {}

impl Quiet {
    #[inline]
    pub(crate) fn begin() -> Self {
        THREAD.with(|thread| thread.held.set(thread.held.get() + 1));
        Self { of_thread: PhantomData }
    }
}

impl Drop for Quiet {
    #[inline]
    fn drop(&mut self) {
        let is_due = THREAD.with(|thread| {
            thread.held.set(thread.held.get() - 1);
            thread.held.get() == ANY
        });
        if is_due {
            send_waiting();
        }
    }
}

/// The thread is inside of a subscriber as long as this lives.
struct Sending;

impl Sending {
    /// `None` where it is inside already.
    fn begin() -> Option<Self> {
        THREAD.with(|thread| (!thread.is_sending.replace(true)).then_some(Self))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        THREAD.with(|thread| thread.is_sending.set(false));
    }
}

/// Says something now, or once the thread holds no lock. Of a value that the host has no memory for, as much as there is.
#[cold]
pub(crate) fn say(values: &[&dyn Display], send: Emit) {
    THREAD.with(|thread| {
        if thread.is_sending.get() {
            return;
        }
        if thread.held.get() & !ANY == 0 {
            let _sending = Sending::begin();
            return send(values);
        }
        thread.held.set(thread.held.get() | ANY);
        let mut waiting = ManuallyDrop::into_inner(thread.waiting.take());
        if waiting.len() < MOST_EVENTS && waiting.try_reserve(1).is_ok() {
            waiting.push(Waiting { send, values: texts(values), fields: values.len() });
        } else {
            thread.lost.set(thread.lost.get() + 1);
        }
        thread.waiting.set(ManuallyDrop::new(waiting));
    });
}

/// The thread has let go of its last lock.
#[cold]
fn send_waiting() {
    // A panic in a subscriber would then end the process. The next unlock sends it.
    if std::thread::panicking() {
        return;
    }
    let Some(_sending) = Sending::begin() else { return };
    let (waiting, lost) = THREAD.with(|thread| {
        thread.held.set(thread.held.get() & !ANY);
        (ManuallyDrop::into_inner(thread.waiting.take()), thread.lost.take())
    });
    for Waiting { send, values, fields } in waiting {
        let values = values.each_ref().map(|value| value as &dyn Display);
        send(&values[..fields]);
    }
    if lost > 0 {
        tracing::warn!(
            lost,
            "events are missing: too many came while a lock was held, or the host had no memory"
        );
    }
}

/// The values as text. What the host has no memory for is missing.
fn texts(values: &[&dyn Display]) -> [String; FIELDS] {
    std::array::from_fn(|at| {
        let mut text = Text(String::new());
        values.get(at).into_iter().for_each(|value| _ = write!(text, "{value}"));
        text.0
    })
}

/// A text that the host may refuse.
struct Text(String);

impl Write for Text {
    fn write_str(&mut self, more: &str) -> Result {
        self.0.try_reserve(more.len()).map_err(|_| Error)?;
        self.0.push_str(more);
        Ok(())
    }
}

/// Warns by `tracing`, or on the standard error if nobody listens there, as in most programs in C or Python.
#[cold]
pub fn warn_in_any_case(text: &str) {
    fn send(values: &[&dyn Display]) {
        for text in values {
            if tracing::enabled!(tracing::Level::WARN) {
                tracing::warn!("{text}");
            } else {
                write_error(text);
            }
        }
    }
    if tracing::Level::WARN <= tracing::level_filters::LevelFilter::current() {
        say(&[&text], send);
    } else {
        write_error(&text);
    }
}

/// To the standard error.
fn write_error(text: &dyn Display) {
    use std::io::Write;
    // Where that is closed, there is nobody to be told.
    writeln!(std::io::stderr(), "millpond: {text}").ok();
}

#[cfg(test)]
pub(crate) use heard::heard;

/// For tests: what the library says meanwhile.
#[cfg(test)]
mod heard {
    use std::fmt::Debug;
    use std::sync::Arc;

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use crate::system::lock::Mutex;

    /// Keeps the texts of all events.
    #[derive(Default, Clone)]
    struct Texts(Arc<Mutex<Vec<String>>>);

    impl Visit for Texts {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "message" {
                self.0.lock().push(format!("{value:?}"));
            }
        }
    }

    impl Subscriber for Texts {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// The texts of all that this thread says while it does this. For tests in a process of their own: `tracing` asks about an event
    /// once, perhaps in a thread of another test, where nobody listens.
    pub(crate) fn heard(work: impl FnOnce()) -> Vec<String> {
        let texts = Texts::default();
        tracing::subscriber::with_default(texts.clone(), work);
        std::mem::take(&mut *texts.0.lock())
    }
}
