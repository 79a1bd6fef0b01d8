//! A pool's end of a recording: a switch, and one function for each thing that is recorded.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::called_from::Wanted;
use super::clock::Moment;
use super::encoder::{Event, Kind, cut};
use super::format::Record;
use super::labels::{current_site, current_tag};
use super::options::Options;
use super::recorder::{Recorder, Status};
use super::thread::{self, Channel, Happening};
use super::tracking::{LiveBlock, OfPool, Tracker, Tracking};
use super::watched::Watched;
use crate::device::{self, Device, DevicePtr, MemoryKind};
use crate::error::{Error, Result};
use crate::figures::counters::Counters;
use crate::order::Stream;
use crate::out_of_memory::OutOfMemory;
use crate::system::lock::Mutex;

/// See the [module](self). One belongs to one pool.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Where events go: a [`Channel`], or 0 while recording is off.
    channel: AtomicU64,
    call_sites: AtomicBool,
    /// The bytes held that were told last.
    reserved: AtomicU64,
    counters: Arc<Counters>,
    /// One thread at a time starts or stops. Not held while an event is noted. With call sites, lines are wanted for them.
    switch: Mutex<Option<Wanted>>,
    recorder: Mutex<Option<Arc<Recorder>>>,
    /// There once the pool has tracked blocks.
    tracker: OnceLock<Arc<Tracker>>,
    /// What a tool hears of the pool.
    watched: Watched,
}

/// What a recording says of the pool, once.
pub(crate) struct Introduction<'a> {
    name: &'a str,
    device: &'a dyn Device,
    /// A number that the pools of one device share, and no others of the process.
    device_key: u64,
}

impl<'a> Introduction<'a> {
    /// Of the pool with this name, on its device.
    pub(crate) fn of(name: &'a str, device: &'a dyn Device) -> Self {
        let properties = device.properties();
        let device_key = match properties.kind {
            device::Kind::Cuda if properties.memory == MemoryKind::Device => properties.ordinal as u64,
            // Devices made of software are as many as there are objects, and so is other memory. None lies so low.
            _ => std::ptr::from_ref(device).addr() as u64,
        };
        Self { name, device, device_key }
    }
}

impl Recording {
    /// Of the pool with this name, on its device.
    pub(crate) fn new(name: &str, device: &dyn Device, counters: Arc<Counters>) -> Self {
        Self {
            channel: AtomicU64::new(0),
            call_sites: AtomicBool::new(false),
            reserved: AtomicU64::new(0),
            counters,
            switch: Mutex::new(None),
            recorder: Mutex::new(None),
            tracker: OnceLock::new(),
            watched: Watched::new(name, device),
        }
    }

    /// Whether anything is to be noted. Every function here asks it itself.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_recording() || self.tracker().is_some() || self.watched.checks_blocks()
    }

    #[inline]
    fn is_recording(&self) -> bool {
        self.channel().0 != 0
    }

    /// The tracker, while it is on.
    #[inline]
    fn tracker(&self) -> Option<&Arc<Tracker>> {
        self.tracker.get().filter(|tracker| tracker.is_on())
    }

    #[inline]
    fn channel(&self) -> Channel {
        // Relaxed: the value alone is used. Whoever needs the recorder behind it takes the lock.
        Channel(self.channel.load(Ordering::Relaxed))
    }

    // ---- the hooks -----------------------------------------------------------------------------------

    /// The program has this block. Called after the block was had.
    #[inline]
    pub(crate) fn alloc(&self, ptr: DevicePtr, bytes: u64, stream: &Stream) {
        self.watched.alloc(ptr, bytes, stream);
        self.watched.look(&self.counters);
        if self.is_on() {
            self.note_alloc(ptr, bytes, stream);
        }
    }

    #[cold]
    fn note_alloc(&self, ptr: DevicePtr, bytes: u64, stream: &Stream) {
        let tracker = self.tracker().filter(|tracker| tracker.samples(bytes));
        // Relaxed: a setting, seen sooner or later.
        let asks_site = tracker.is_some() || self.is_recording() && self.call_sites.load(Ordering::Relaxed);
        let site = if asks_site { current_site() } else { 0 };
        if let Some(tracker) = tracker {
            tracker.add(ptr, bytes, stream, (current_tag(), site));
        }
        if self.is_recording() {
            // Of samples alone, a recording would seem to have lost the others' call sites.
            let site = if self.call_sites.load(Ordering::Relaxed) { site } else { 0 };
            self.note_at(Moment::now(), Kind::Alloc, (ptr.raw(), bytes), (Some(stream), site));
        }
    }

    /// Whether the free of this live block is to be told.
    #[inline]
    pub(crate) fn asks_free_of(&self, ptr: DevicePtr) -> bool {
        self.is_recording()
            || self.watched.checks_blocks()
            || self.tracker().is_some_and(|tracker| tracker.may_have(ptr))
    }

    /// The program gave this block back, at a moment when nobody else could have it yet.
    pub(crate) fn free(&self, ptr: DevicePtr, bytes: u64, stream: &Stream, before: Moment) {
        self.watched.free(ptr, before);
        if let Some(tracker) = self.tracker() {
            tracker.free(ptr, before);
        }
        if self.is_recording() {
            self.note_at(before, Kind::Free, (ptr.raw(), bytes), (Some(stream), 0));
        }
    }

    /// The stream's use of a block is recorded.
    #[inline]
    pub(crate) fn record_use(&self, ptr: DevicePtr, stream: &Stream) {
        if self.is_recording() {
            self.note(Kind::Use, (ptr.raw(), 0), Some(stream));
        }
    }

    /// The pool was asked to give back what is above `keep`, and did so.
    #[inline]
    pub(crate) fn trim(&self, keep: u64, released: u64) {
        if self.is_recording() {
            self.note(Kind::Trim, (keep, released), None);
        }
    }

    /// The pool had no memory for a request.
    #[inline]
    pub(crate) fn out_of_memory(&self, bytes: u64, device_free: u64, stream: &Stream) {
        self.watched.look(&self.counters);
        self.watched.out_of_memory(bytes);
        if self.is_recording() {
            self.note(Kind::OutOfMemory, (device_free, bytes), Some(stream));
        }
    }

    /// The pool was evicted: so many bytes left.
    pub(crate) fn evicted(&self, bytes: u64, stream: Option<&Stream>) {
        if self.is_recording() {
            self.note(Kind::Evicted, (0, bytes), stream);
        }
    }

    /// The pool is back: so many bytes came.
    pub(crate) fn restored(&self, bytes: u64, stream: &Stream) {
        if self.is_recording() {
            self.note(Kind::Restored, (0, bytes), Some(stream));
        }
    }

    /// What the pool holds may have changed by what another one did.
    pub(crate) fn tell_held(&self) {
        if self.is_recording() {
            let what = Happening { kind: Kind::Reserved, address: 0, size: 0, stream: 0, under: (0, 0) };
            self.tell_reserved(Moment::now(), what);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&self, kind: Kind, what: (u64, u64), stream: Option<&Stream>) {
        self.note_at(Moment::now(), kind, what, (stream, 0));
    }

    fn note_at(
        &self,
        at: Moment,
        kind: Kind,
        (address, size): (u64, u64),
        (stream, site): (Option<&Stream>, u32),
    ) {
        let stream = stream.map_or(0, |stream| stream.id().0);
        let what = Happening { kind, address, size, stream, under: (current_tag(), site) };
        self.send(at, what);
        self.tell_reserved(at, what);
    }

    /// Tells what is held, where that is not what was told last.
    fn tell_reserved(&self, at: Moment, what: Happening) {
        let reserved = self.counters.reserved.current();
        // Relaxed: of threads that find it changed at once, one tells; the order is by the events' times.
        if self.reserved.load(Ordering::Relaxed) != reserved
            && self.reserved.swap(reserved, Ordering::Relaxed) != reserved
        {
            self.send(at, Happening { kind: Kind::Reserved, address: 0, size: reserved, ..what });
        }
    }

    #[inline]
    fn send(&self, at: Moment, what: Happening) {
        let channel = self.channel();
        if channel.0 != 0 && thread::note(channel, at, what, || self.recorder.lock().clone()).is_err() {
            // Stopped meanwhile, or this is a forked child. Relaxed: as for `channel`. A recording that was
            // started in between stays.
            self.channel.compare_exchange(channel.0, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
        }
    }

    // ---- starting and stopping -----------------------------------------------------------------------

    /// Starts recording; what was recorded to before is stopped. The caller then tells what is
    /// [live](Self::live).
    pub(crate) fn start(&self, options: &Options, pool: &Introduction<'_>) -> Result<()> {
        let mut switch = self.switch.lock();
        self.stop_switched(&mut switch)?;
        let recorder = Recorder::join(options).map_err(|error| Error::Recording {
            path: options.path.display().to_string(),
            what: error.to_string(),
        })?;
        let properties = pool.device.properties();
        let number = recorder.enter_pool(|number| Record::Pool {
            pool: number,
            name: cut(pool.name),
            device: cut(&properties.name),
            ordinal: u32::try_from(properties.ordinal).unwrap_or(u32::MAX),
            device_key: pool.device_key,
        });
        let channel = Channel::new(recorder.id, number);
        *self.recorder.lock() = Some(recorder);
        // Relaxed: whoever sees the channel finds its recorder behind the lock, or a ring of its own.
        self.call_sites.store(options.call_sites, Ordering::Relaxed);
        *switch = options.call_sites.then(Wanted::new);
        self.channel.store(channel.0, Ordering::Relaxed);
        Ok(())
    }

    /// Tells what was live and held when recording began. Called under the lock that keeps the blocks as they are, and
    /// after [`start`](Self::start), so that no event is missed in between. Readers recognise what is told twice.
    pub(crate) fn live(&self, blocks: impl Iterator<Item = (DevicePtr, u64)>) {
        // Else another thread may stop it in between, and the events would name no pool.
        let _switch = self.switch.lock();
        let Some(recorder) = self.recorder.lock().clone() else { return };
        let reserved = self.counters.reserved.current();
        self.reserved.store(reserved, Ordering::Relaxed);
        let event = Event {
            time: recorder.now(),
            address: 0,
            size: reserved,
            stream: 0,
            pool: self.channel().pool(),
            tag: 0,
            site: 0,
            kind: Kind::Reserved,
        };
        let live =
            blocks.map(|(ptr, bytes)| Event { address: ptr.raw(), size: bytes, kind: Kind::Live, ..event });
        recorder.add(std::iter::once(event).chain(live));
    }

    /// Stops recording, writes what was noted, and says what was recorded; `None` if nothing was.
    pub(crate) fn stop(&self) -> Result<Option<Status>> {
        self.stop_switched(&mut self.switch.lock())
    }

    fn stop_switched(&self, wanted: &mut Option<Wanted>) -> Result<Option<Status>> {
        *wanted = None;
        // Relaxed: events that other threads are noting at this moment may be in the file or not.
        let channel = Channel(self.channel.swap(0, Ordering::Relaxed));
        // In a forked child the parent's threads, and the locks that they held, are as the fork found them.
        let Some(recorder) = self.recorder.lock().take().filter(|recorder| recorder.is_ours()) else {
            return Ok(None);
        };
        if channel.0 != 0 {
            recorder.add(std::iter::once(Event {
                time: recorder.now(),
                address: 0,
                size: 0,
                stream: 0,
                pool: channel.pool(),
                tag: 0,
                site: 0,
                kind: Kind::PoolEnd,
            }));
        }
        let left = recorder.leave();
        let status = recorder.status();
        match left {
            Ok(()) => Ok(Some(status)),
            Err(error) => Err(Error::Recording {
                path: status.path.display().to_string(),
                what: format!("{error}; its last part is missing"),
            }),
        }
    }

    // ---- who holds memory ----------------------------------------------------------------------------

    /// Tracks blocks from now on.
    pub(crate) fn start_tracking(&self, options: &Tracking, pool: &Introduction<'_>) {
        let properties = pool.device.properties();
        let pool = OfPool {
            name: pool.name.to_owned(),
            device: properties.name.clone(),
            ordinal: u32::try_from(properties.ordinal).unwrap_or(u32::MAX),
            device_key: pool.device_key,
        };
        let _switch = self.switch.lock();
        self.tracker.get_or_init(Tracker::new).start(options, pool);
    }

    pub(crate) fn stop_tracking(&self) {
        let _switch = self.switch.lock();
        if let Some(tracker) = self.tracker.get() {
            tracker.stop();
        }
    }

    /// The blocks that are live, as the pool says, with what is known of them.
    pub(crate) fn live_blocks(&self, live: impl FnOnce() -> Vec<(DevicePtr, u64)>) -> Vec<LiveBlock> {
        match self.tracker() {
            Some(tracker) => tracker.live_blocks(live),
            None => live().into_iter().map(|(ptr, bytes)| LiveBlock { ptr, bytes, tracked: None }).collect(),
        }
    }

    /// A request found no memory, and the program is about to be told. What is live is dumped, or a recording written so
    /// far.
    #[cold]
    pub(crate) fn account(&self, failed: &OutOfMemory, live: impl FnOnce() -> Vec<(DevicePtr, u64)>) {
        if !self.is_on() {
            return;
        }
        self.say(&failed.to_string());
        if let Some(tracker) = self.tracker() {
            tracker.dump(failed, live);
        }
    }

    /// Writes a text into the recording, and what was noted so far.
    #[cold]
    pub(crate) fn say(&self, text: &str) {
        if let Some(recorder) = self.recorder.lock().clone().filter(|recorder| recorder.is_ours()) {
            recorder.define(&Record::Message { text: cut(text) });
            // A failure is noted in the status, and warned of.
            recorder.flush().ok();
        }
    }

    /// The pool ends: writes what was noted so far, and reports what is live.
    pub(crate) fn end(&self) {
        self.flush();
        if let Some(tracker) = self.tracker() {
            tracker.report_leaks();
        }
    }

    /// Writes what was noted so far.
    pub(crate) fn flush(&self) {
        let recorder = self.recorder.lock().clone();
        // A failure is noted in the status, and warned of.
        recorder.map(|recorder| recorder.flush().ok());
    }

    /// What was recorded so far; `None` while recording is off.
    pub(crate) fn status(&self) -> Option<Status> {
        let recorder = self.recorder.lock().clone()?;
        recorder.is_ours().then(|| recorder.status())
    }
}
