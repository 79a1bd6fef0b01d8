//! The streams and the threads that run them: those created, the legacy default stream, and one for each thread that
//! asks for its own.
//!
//! No default stream waits for another: all are as streams made with `CU_STREAM_NON_BLOCKING`, so that a
//! program that forgets an event is wrong here too. Handles of destroyed streams are given out again as soon
//! as possible, as a driver may; identities never.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use slab::Slab;

use super::stream::{Moment, Stream, on_stream_thread};
use crate::device::inventory::invalid;
use crate::device::{DeviceError, DeviceResult, StreamHandle, StreamId};
use crate::system::lock::{Mutex, RwLock};
use crate::system::process::{OfProcess, Process};

/// Handles below this are the null stream and the default streams.
const FIRST_HANDLE: u64 = 16;

/// The null stream, which is the legacy default stream.
const NULL_HANDLE: u64 = 0;

/// The streams of one device.
#[derive(Debug)]
pub(super) struct Streams {
    /// Tells devices apart in `PER_THREAD`. Never given twice.
    device: u64,
    next_id: AtomicU64,
    process: Process,
    table: OfProcess<RwLock<Table>>,
    running: Arc<Running>,
    /// Kept by every stream's thread, so that memory outlives the work that uses it.
    memory: Arc<dyn Any + Send + Sync>,
}

#[derive(Debug, Default)]
struct Table {
    legacy: Option<Arc<Stream>>,
    created: Slab<Arc<Stream>>,
}

/// The streams whose threads have not ended, destroyed ones too.
#[derive(Debug, Default)]
struct Running(Mutex<HashMap<StreamId, Thread>>);

#[derive(Debug)]
struct Thread {
    stream: Arc<Stream>,
    handle: JoinHandle<()>,
}

/// A thread's own stream, closed when the thread ends.
struct Own {
    stream: Arc<Stream>,
    process: Process,
}

impl Drop for Own {
    fn drop(&mut self) {
        // A thread's end must not wait for a lock: in a forked child its holder is gone.
        if self.process.is_here() {
            self.stream.close_soon();
        }
    }
}

thread_local! {
    /// The calling thread's default streams, by device.
    static PER_THREAD: RefCell<Vec<(u64, Own)>> = const { RefCell::new(Vec::new()) };
}

impl Streams {
    pub(super) fn new(memory: Arc<dyn Any + Send + Sync>) -> Self {
        static NEXT_DEVICE: AtomicU64 = AtomicU64::new(0);
        Self {
            // Relaxed: only that no number is given twice matters.
            device: NEXT_DEVICE.fetch_add(1, Ordering::Relaxed),
            next_id: AtomicU64::new(1),
            process: Process::here(),
            table: OfProcess::default(),
            running: Arc::default(),
            memory,
        }
    }

    pub(super) fn create(&self) -> DeviceResult<StreamHandle> {
        let stream = self.start("create_stream")?;
        let index = self.table.write().created.insert(stream);
        // SAFETY: the number stands for the stream just made, until `destroy`.
        Ok(unsafe { StreamHandle::from_raw(index as u64 + FIRST_HANDLE) })
    }

    pub(super) fn destroy(&self, stream: StreamHandle) -> DeviceResult<()> {
        const CALL: &str = "destroy_stream";
        let Some(index) = stream.raw().checked_sub(FIRST_HANDLE) else {
            return invalid(CALL, "a default stream cannot be destroyed");
        };
        match self.table.write().created.try_remove(index as usize) {
            Some(stream) => stream.close(),
            None => return unknown(CALL, stream),
        }
        Ok(())
    }

    pub(super) fn get(&self, call: &'static str, stream: StreamHandle) -> DeviceResult<Arc<Stream>> {
        match stream {
            StreamHandle::PER_THREAD => self.per_thread(call),
            StreamHandle::LEGACY => self.legacy(call),
            _ if stream.raw() == NULL_HANDLE => self.legacy(call),
            _ => {
                let index = stream.raw().wrapping_sub(FIRST_HANDLE) as usize;
                match self.table.read().created.get(index) {
                    Some(known) => Ok(Arc::clone(known)),
                    None => unknown(call, stream),
                }
            }
        }
    }

    /// What every stream has been given so far.
    pub(super) fn now(&self) -> Vec<Moment> {
        self.running.0.lock().values().map(|thread| thread.stream.now()).collect()
    }

    fn legacy(&self, call: &'static str) -> DeviceResult<Arc<Stream>> {
        if let Some(stream) = &self.table.read().legacy {
            return Ok(Arc::clone(stream));
        }
        let mut table = self.table.write();
        if table.legacy.is_none() {
            table.legacy = Some(self.start(call)?);
        }
        Ok(Arc::clone(table.legacy.as_ref().expect("it was just set")))
    }

    fn per_thread(&self, call: &'static str) -> DeviceResult<Arc<Stream>> {
        let found = PER_THREAD.try_with(|own| {
            let mut own = own.borrow_mut();
            if let Some((_, own)) = own.iter().find(|(device, _)| *device == self.device) {
                return Ok(Arc::clone(&own.stream));
            }
            // A device that is gone has closed its streams.
            own.retain(|(_, own)| own.process.is_here() && !own.stream.is_closed());
            let stream = self.start(call)?;
            own.push((self.device, Own { stream: Arc::clone(&stream), process: self.process }));
            Ok(stream)
        });
        match found {
            Ok(stream) => stream,
            Err(_) => invalid(call, "the thread is ending, and its default stream is gone"),
        }
    }

    /// Starts the thread of a new stream.
    fn start(&self, call: &'static str) -> DeviceResult<Arc<Stream>> {
        // Relaxed: only that no number is given twice matters.
        let id = StreamId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let stream = Arc::new(Stream::new(id));
        let (of_thread, running, memory) =
            (Arc::clone(&stream), Arc::clone(&self.running), Arc::clone(&self.memory));
        // Held until the stream is in the list, so that its thread cannot take it off before.
        let mut list = self.running.0.lock();
        let handle = thread::Builder::new()
            .name(format!("stream {}", id.0))
            .spawn(move || {
                of_thread.run();
                running.0.lock().remove(&id);
                drop(memory);
            })
            .map_err(|error| DeviceError::Driver {
                call,
                code: error.raw_os_error().unwrap_or(0),
                name: "NO_THREAD".to_owned(),
                text: format!("no thread could be started for a stream: {error}"),
            })?;
        list.insert(id, Thread { stream: Arc::clone(&stream), handle });
        Ok(stream)
    }
}

impl Drop for Streams {
    /// Lets all work run and the threads end. Waits for them, unless called from one of them: another may
    /// have to wait for work that the calling one has yet to do.
    fn drop(&mut self) {
        if !self.process.is_here() {
            // The threads are the parent's.
            return;
        }
        let running = mem::take(&mut *self.running.0.lock());
        for thread in running.values() {
            thread.stream.close();
        }
        if !on_stream_thread() {
            for thread in running.into_values() {
                // A stream's thread does not panic: its work is caught.
                let _ = thread.handle.join();
            }
        }
    }
}

fn unknown<T>(call: &'static str, stream: StreamHandle) -> DeviceResult<T> {
    invalid(call, format!("{:#x} is no stream, or was destroyed", stream.raw()))
}
