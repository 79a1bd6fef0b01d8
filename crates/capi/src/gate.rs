//! The way into a callback of the program's, which is shut when the callback is removed.
//!
//! A pool calls what was registered when memory ran short, also when that is removed meanwhile: in
//! Rust the closure lives on for so long, but what a C program's `data` points to does not. So a call passes the gate,
//! and who shuts the gate waits until those that passed have left.

use std::cell::Cell;

use millpond::bindings::Process;
use millpond::bindings::{Condvar, Mutex};

/// Open until [`shut`](Self::shut).
#[derive(Debug, Default)]
pub(crate) struct Gate {
    process: Process,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_shut: bool,
    /// Calls that passed and have not left.
    inside: usize,
}

thread_local! {
    /// Calls that this thread is inside of, through any gate.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// A call that passed; leaves when it is dropped.
struct Passed<'a>(&'a Gate);

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() - 1);
        if !self.0.process.is_here() {
            // The callback forked. Who else was inside is gone, and may have the lock.
            return;
        }
        self.0.state.lock().inside -= 1;
        self.0.left.notify_all();
    }
}

impl Gate {
    /// Makes the call, unless the gate is shut.
    pub(crate) fn pass<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let mut state = self.state.lock();
        if state.is_shut {
            return None;
        }
        state.inside += 1;
        drop(state);
        INSIDE.set(INSIDE.get() + 1);
        let _passed = Passed(self);
        Some(call())
    }

    /// Lets no call pass from now on, and waits for those that passed: not from within a callback, which might be
    /// what another thread's callback waits for.
    pub(crate) fn shut(&self) {
        if !self.process.is_here() {
            return;
        }
        let mut state = self.state.lock();
        state.is_shut = true;
        while INSIDE.get() == 0 && state.inside > 0 {
            state = self.left.wait(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn shutting_a_gate_waits_for_the_calls_inside() {
        let gate = Gate::default();
        let (entered, has_entered) = channel();
        let (leave, may_leave) = channel::<()>();
        thread::scope(|scope| {
            let gate = &gate;
            let inside = scope.spawn(move || {
                gate.pass(|| {
                    entered.send(()).unwrap();
                    may_leave.recv().unwrap();
                })
            });
            has_entered.recv().unwrap();
            let shutting = scope.spawn(|| {
                gate.shut();
                gate.state.lock().inside
            });
            // Shut at once, however long it waits.
            while gate.pass(|| ()).is_some() {
                thread::yield_now();
            }
            assert!(!shutting.is_finished());
            leave.send(()).unwrap();
            assert_eq!(inside.join().unwrap(), Some(()));
            assert_eq!(shutting.join().unwrap(), 0);
        });
    }

    #[test]
    fn a_callback_may_remove_itself_and_others() {
        let (gate, other) = (Gate::default(), Gate::default());
        assert_eq!(gate.pass(|| other.pass(|| [&gate, &other].map(Gate::shut))), Some(Some([(), ()])));
        assert_eq!((gate.pass(|| ()), other.pass(|| ())), (None, None));
    }
}
