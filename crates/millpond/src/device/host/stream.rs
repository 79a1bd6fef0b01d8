//! A stream: a thread that runs the work given to it in order, and counts what is done.
//!
//! Work is numbered from 1 as it is given. A [`Moment`] is a stream and a number, and is reached once the stream has
//! done that many. So an event only remembers one. To wait for an event on another stream is work like any other.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::inventory::invalid;
use crate::device::{DeviceError, DeviceResult, StreamId};
use crate::system::lock::{Condvar, Mutex};

/// How often the end of a thread looks whether a lock is free.
const PATIENCE: u32 = 10_000;

/// Work of a stream.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// One stream; its thread runs [`Stream::run`].
#[derive(Debug)]
pub(super) struct Stream {
    id: StreamId,
    /// How many pieces of work are done. Only the stream's thread writes it.
    done: AtomicU64,
    state: Mutex<State>,
    /// There is work, or the stream was closed.
    work: Condvar,
    /// `done` went up.
    progress: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Work>,
    /// How many pieces of work were given.
    submitted: u64,
    closed: bool,
    /// What the first job that panicked said, until a synchronise reports it.
    fault: Option<String>,
}

enum Work {
    Run(Job),
    WaitFor(Moment),
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run(_) => f.write_str("Run"),
            Self::WaitFor(moment) => write!(f, "WaitFor({:?}, {})", moment.stream.id, moment.position),
        }
    }
}

/// All work that a stream had been given at some time.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    stream: Arc<Stream>,
    position: u64,
}

impl Moment {
    pub(super) fn stream_id(&self) -> StreamId {
        self.stream.id
    }

    pub(super) fn is_reached(&self) -> bool {
        self.stream.has_done(self.position)
    }

    /// Waits for the moment. Reports a panic of the stream's work, once.
    pub(super) fn wait(&self, call: &'static str) -> DeviceResult<()> {
        if on_stream_thread() {
            return invalid(call, "work on a stream must not wait for the device: it would wait for itself");
        }
        let mut state = self.stream.state.lock();
        while !self.is_reached() {
            state = self.stream.progress.wait(state);
        }
        match state.fault.take() {
            None => Ok(()),
            Some(panic) => Err(launch_failed(panic)),
        }
    }
}

impl Stream {
    pub(super) fn new(id: StreamId) -> Self {
        Self {
            id,
            done: AtomicU64::new(0),
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            progress: Condvar::new(),
        }
    }

    pub(super) fn id(&self) -> StreamId {
        self.id
    }

    /// Adds work to the end of the queue.
    pub(super) fn submit(&self, call: &'static str, job: Job) -> DeviceResult<()> {
        self.push(call, Work::Run(job))
    }

    /// Makes later work wait for `moment`.
    pub(super) fn wait_for(self: &Arc<Self>, call: &'static str, moment: Moment) -> DeviceResult<()> {
        if Arc::ptr_eq(&moment.stream, self) || moment.is_reached() {
            return Ok(());
        }
        self.push(call, Work::WaitFor(moment))
    }

    fn push(&self, call: &'static str, work: Work) -> DeviceResult<()> {
        let mut state = self.state.lock();
        if state.closed {
            return invalid(call, "the stream was destroyed");
        }
        state.queue.push_back(work);
        state.submitted += 1;
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// All work given so far.
    pub(super) fn now(self: &Arc<Self>) -> Moment {
        let position = self.state.lock().submitted;
        Moment { stream: Arc::clone(self), position }
    }

    /// Takes no more work; what was given still runs, then the thread ends.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_one();
    }

    /// As [`close`](Self::close), unless the lock is not to be had for [`PATIENCE`] looks. Others hold it for instants, so
    /// that then the calling thread has it itself: it was interrupted by a signal, whose handler ends the process.
    pub(super) fn close_soon(&self) {
        for _ in 0..PATIENCE {
            if let Some(mut state) = self.state.try_lock() {
                state.closed = true;
                drop(state);
                self.work.notify_one();
                return;
            }
            std::thread::yield_now();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    fn has_done(&self, position: u64) -> bool {
        // Acquire pairs with the Release in `run`: whoever sees the work done sees what it wrote.
        self.done.load(Ordering::Acquire) >= position
    }

    /// The life of the stream's thread.
    pub(super) fn run(&self) {
        ON_STREAM_THREAD.set(true);
        let mut state = self.state.lock();
        loop {
            let Some(work) = state.queue.pop_front() else {
                if state.closed {
                    return;
                }
                state = self.work.wait(state);
                continue;
            };
            drop(state);
            let fault = work.execute();
            state = self.state.lock();
            if let Some(panic) = fault {
                state.fault.get_or_insert(panic);
            }
            // Only this thread writes `done`, so the load needs no order. Release: see `has_done`. The lock
            // is held, so that no waiter can miss the change between its check and its wait.
            self.done.store(self.done.load(Ordering::Relaxed) + 1, Ordering::Release);
            self.progress.notify_all();
        }
    }
}

impl Work {
    /// Does the work; what it panicked with, if it did.
    fn execute(self) -> Option<String> {
        match self {
            // The job is dropped inside as well, and nothing of ours is touched by it: unwind safe.
            Self::Run(job) => catch_unwind(AssertUnwindSafe(job)).err().map(text_of),
            Self::WaitFor(moment) => {
                let mut state = moment.stream.state.lock();
                while !moment.is_reached() {
                    state = moment.stream.progress.wait(state);
                }
                None
            }
        }
    }
}

thread_local! {
    static ON_STREAM_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is that of a stream, of any device.
pub(super) fn on_stream_thread() -> bool {
    ON_STREAM_THREAD.get()
}

fn text_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    // Its drop could panic, too.
    std::mem::forget(panic);
    text.unwrap_or_else(|| "(no message)".to_owned())
}

/// As a GPU reports a kernel that crashed: at the next synchronise, `CUDA_ERROR_LAUNCH_FAILED`.
fn launch_failed(panic: String) -> DeviceError {
    DeviceError::Driver {
        call: "launch",
        code: 719,
        name: "HOST_WORK_PANICKED".to_owned(),
        text: format!("work on the stream panicked: {panic}"),
    }
}
