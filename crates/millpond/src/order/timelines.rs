//! All timelines of one device: the table, and streams coming and going. What a pool asks of it is in `questions`.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::events::Events;
use super::thread_end::{ThreadEnd, tell_end};
use super::timeline::Promise;
use super::timeline_table::TimelineTable;
use super::watchers::Watchers;
use super::{Fence, Tick, Timeline, TimelineId};
use crate::device::{Device, DeviceError, DeviceResult, StreamHandle, StreamId};
use crate::log::log;
use crate::system::lock::{Mutex, RwLock, RwLockReadGuard};
use crate::system::process::{OfProcess, Process};

/// Who wants to know that the host has waited for the device. Called without locks held.
pub(crate) trait AfterSync: Send + Sync {
    fn after_sync(&self);
}

/// A stream's timeline for as long as the program holds the stream. Its end retires the timeline.
#[derive(Debug)]
pub(super) struct HeldTimeline {
    pub(super) timelines: Arc<Timelines>,
    pub(super) timeline: Arc<Timeline>,
    /// Whether the stream is ours to destroy.
    owned: bool,
    /// How often the stream is registered. Written with the table locked.
    pub(super) registrations: AtomicUsize,
    /// Where somebody else's object destroys the stream: that object. Let go of after the last tick is closed.
    #[cfg(feature = "cudarc")]
    pub(super) owner: std::sync::OnceLock<Arc<dyn std::any::Any + Send + Sync>>,
    /// The streams of other devices that stand for this one there: see `peers`.
    pub(super) stand_ins: Mutex<Vec<Arc<HeldTimeline>>>,
    /// The context, which lives as long as a stream of the program's: not of a pool's own, which the context would hold again. Let go
    /// of last: it may end pools.
    context: OnceLock<Holder>,
}

impl HeldTimeline {
    fn new(timelines: Arc<Timelines>, timeline: Arc<Timeline>, owned: bool) -> Self {
        let registrations = usize::from(timeline.promise == Promise::WhileRegistered);
        Self {
            timelines,
            timeline,
            owned,
            registrations: AtomicUsize::new(registrations),
            #[cfg(feature = "cudarc")]
            owner: Default::default(),
            stand_ins: Mutex::default(),
            context: OnceLock::new(),
        }
    }

    /// The stream, if somebody holds it by a promise that suffices for a caller with this one. A registration counts.
    fn find(table: &Table, handle: StreamHandle, id: StreamId, promise: Promise) -> Option<Arc<Self>> {
        let found = table.find(handle, id, promise)?;
        if promise == Promise::WhileRegistered {
            // Relaxed: the last one ends with the table locked.
            found.registrations.fetch_add(1, Ordering::Relaxed);
        }
        Some(found)
    }

    /// The program has the stream: it keeps the context from now on.
    pub(super) fn keep_context(self: Arc<Self>) -> Arc<Self> {
        if self.context.get().is_none()
            && let Some(context) = self.timelines.context.lock().as_ref().and_then(Weak::upgrade)
        {
            _ = self.context.set(context);
        }
        self
    }
}

/// The timelines, and who holds their streams.
pub(super) type Table = TimelineTable<HeldTimeline>;

/// What programs hold of the device, one floor or more above this one.
pub(crate) type Holder = Arc<dyn Any + Send + Sync>;

impl Drop for HeldTimeline {
    fn drop(&mut self) {
        self.timelines.retire(self);
    }
}

/// See the [module](super).
#[derive(Debug)]
pub(crate) struct Timelines {
    events: Arc<Events>,
    process: Process,
    table: OfProcess<RwLock<Table>>,
    /// Retired timelines that are not known to be complete. Those at the back were asked last.
    retired: OfProcess<Mutex<VecDeque<Arc<Timeline>>>>,
    listeners: OfProcess<Mutex<Vec<Weak<dyn AfterSync>>>>,
    /// Locked while a capture begins, and while the device is synchronised for a pool's own sake, which would end one.
    beginning: Mutex<()>,
    /// For those who await events.
    pub(super) watchers: Watchers,
    /// The context's own state, for as long as there is anything of the device.
    context_state: OnceLock<Holder>,
    /// What programs hold of the context, while they do.
    context: OfProcess<Mutex<Option<Weak<dyn Any + Send + Sync>>>>,
}

impl Timelines {
    pub(crate) fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self {
            events: Events::new(device),
            process: Process::here(),
            table: OfProcess::default(),
            retired: OfProcess::default(),
            listeners: OfProcess::default(),
            beginning: Mutex::default(),
            watchers: Watchers::default(),
            context_state: OnceLock::new(),
            context: OfProcess::default(),
        })
    }

    // ---- the context -------------------------------------------------------------------------------

    /// The context's own state, which is there as long as these timelines. The first one stays.
    pub(crate) fn context_state(&self, make: impl FnOnce() -> Holder) -> &Holder {
        self.context_state.get_or_init(make)
    }

    /// What programs hold of the context; made anew where nobody holds it. Each stream holds it from now on.
    pub(crate) fn context(&self, make: impl FnOnce() -> Holder) -> Holder {
        // In a forked child, a thread that is gone may have the lock.
        let Some(context) = OfProcess::here(&self.context) else { return make() };
        let mut context = context.lock();
        context.as_ref().and_then(Weak::upgrade).unwrap_or_else(|| {
            let made = make();
            *context = Some(Arc::downgrade(&made));
            made
        })
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.events.device
    }

    /// Whether streams of both may wait for each other's events.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let ids = self.device().peer_id().zip(other.device().peer_id());
        ids.is_some_and(|(one, other)| one.is_beside(other))
    }

    /// Asked before anything is locked, waited for, or asked of the device.
    #[inline]
    pub(crate) fn check_process(&self) -> DeviceResult<()> {
        Ok(self.process.check()?)
    }

    /// Whether this process made them, and was not forked from the one that did.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_here()
    }

    // ---- streams ---------------------------------------------------------------------------------

    /// A stream of our own. With [`Promise::InCalls`], each of its ticks is closed at once.
    pub(super) fn create(self: &Arc<Self>, promise: Promise) -> DeviceResult<Arc<HeldTimeline>> {
        self.check_process()?;
        let handle = self.device().create_stream()?;
        // SAFETY: the stream was created above.
        let id = unsafe { self.device().stream_id(handle) };
        id.and_then(|id| self.enter(handle, id, promise, true))
            // SAFETY: the stream was created above and nobody else knows it.
            .inspect_err(|_| _ = unsafe { self.device().destroy_stream(handle) })
    }

    /// The stream behind a handle that somebody else made.
    ///
    /// # Safety
    /// The handle is valid for as long as the promise says.
    pub(super) unsafe fn adopt(
        self: &Arc<Self>,
        handle: StreamHandle,
        promise: Promise,
    ) -> DeviceResult<Arc<HeldTimeline>> {
        self.check_process()?;
        // SAFETY: the caller's promise.
        let id = unsafe { self.device().stream_id(handle) }?;
        let promise = match handle {
            StreamHandle::PER_THREAD => self.promise_of_thread(),
            // The legacy default stream's, by either of its names. It is there as long as the device is.
            _ if handle.raw() <= StreamHandle::LEGACY.raw() => Promise::Stays,
            _ => promise,
        };
        if promise == Promise::WhileRegistered && id.is_in_capture() {
            let what = "the stream is being captured: register it before or after".to_owned();
            return Err(DeviceError::Invalid { call: "register_stream", what });
        }
        let found = HeldTimeline::find(&self.all(), handle, id, promise);
        found.map_or_else(|| self.enter(handle, id, promise, false), Ok)
    }

    /// What is known of how long the calling thread's default stream is valid. Asked once the driver has it.
    fn promise_of_thread(self: &Arc<Self>) -> Promise {
        let this: Weak<dyn ThreadEnd> = Arc::<Self>::downgrade(self);
        if tell_end(&this) { Promise::OfThread } else { Promise::InCalls }
    }

    fn enter(
        self: &Arc<Self>,
        handle: StreamHandle,
        id: StreamId,
        promise: Promise,
        owned: bool,
    ) -> DeviceResult<Arc<HeldTimeline>> {
        self.sweep_retired();
        let mut table = self.table.write();
        if let Some(other) = HeldTimeline::find(&table, handle, id, promise) {
            // Another thread was faster.
            return Ok(other);
        }
        if promise == Promise::OfThread
            && let Some(held) = self.hold_again(&mut table, id)
        {
            return Ok(held);
        }
        let mut retired = self.retired.lock();
        let more = (table.slots.len() + 1).saturating_sub(retired.len());
        if !table.make_room() || retired.try_reserve(more).is_err() {
            let bytes = (table.slots.len() * size_of::<Arc<Timeline>>()) as u64;
            return Err(DeviceError::HostMemory { what: "a list of streams", bytes });
        }
        drop(retired);
        let slot = table.free_slot();
        let timeline = Arc::new(Timeline::new(slot, handle, id, promise, self.events.clone()));
        let held = Arc::new(HeldTimeline::new(self.clone(), timeline.clone(), owned));
        table.put(timeline, Arc::downgrade(&held));
        Ok(held)
    }

    /// The calling thread's default stream, which nobody held any more.
    fn hold_again(self: &Arc<Self>, table: &mut Table, id: StreamId) -> Option<Arc<HeldTimeline>> {
        // A driver does not identify it while it is captured.
        let timeline = table.of_this_thread(Some(id).filter(|id| !id.is_in_capture()))?.0.clone();
        let held = Arc::new(HeldTimeline::new(self.clone(), timeline.clone(), false));
        table.hold(timeline, Arc::downgrade(&held));
        Some(held)
    }

    /// One registration ends. With the last one, who presents the handle is given the stream no more. Returns whether
    /// the promise that the handle is valid has ended, too.
    pub(super) fn unregister(&self, held: &HeldTimeline) -> bool {
        let (mut table, timeline) = (self.table.write(), &held.timeline);
        // Relaxed: under the lock. A default stream is found without a registration, and has none.
        let less = |count: usize| count.checked_sub(1);
        let is_last = held.registrations.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) == Ok(1);
        let ends = is_last && timeline.promise == Promise::WhileRegistered;
        if ends {
            table.hide(timeline);
        }
        ends
    }

    /// Closes a stream's last tick, while its handle is still valid. It may be destroyed after this call. Whoever still has a
    /// clone finds it gone.
    pub(super) fn close_last(&self, timeline: &Timeline) {
        let closed = timeline.close(timeline.now(), false);
        if let Err(error) = &closed {
            log!(
                WARN,
                "a stream's last event could not be recorded; its memory waits for a device synchronise",
                error
            );
        }
        if !matches!(closed, Ok(true)) {
            // After an error, or while the stream is being captured, the last tick stays open. The counter goes past
            // it, so that the timeline is not taken for complete.
            timeline.turn();
        }
        timeline.retire();
    }

    /// The last clone of a stream is gone. Closes its last tick while the handle is still valid, destroys the stream if
    /// it is ours, and leaves the timeline to [`sweep_retired`](Self::sweep_retired).
    fn retire(&self, held: &HeldTimeline) {
        if !self.is_here() {
            // The stream is the parent's.
            return;
        }
        let timeline = &held.timeline;
        if timeline.promise == Promise::OfThread && !timeline.is_retired() {
            // It ends with its thread, which may present it again.
            return;
        }
        if timeline.is_retired() {
            // What was freed by a clone after the registration's end is closed by no mark: as in `close_last`.
            timeline.turn();
        } else if timeline.is_marked_at_once() {
            timeline.retire();
        } else {
            self.close_last(timeline);
        }
        if held.owned {
            // SAFETY: the stream is ours, and this was the last clone.
            if let Err(error) = unsafe { self.device().destroy_stream(timeline.handle) } {
                log!(WARN, "a stream could not be destroyed", error);
            }
        }
        self.leave(timeline);
    }

    /// Nobody holds the stream, which is retired.
    fn leave(&self, timeline: &Arc<Timeline>) {
        let was_there = self.table.write().hide(timeline);
        // The end of its thread, and of what held it, may come at the same time. A registration's end hides a timeline before.
        if was_there || timeline.promise != Promise::OfThread {
            self.retired.lock().push_back(timeline.clone());
        }
        self.sweep_retired();
    }

    /// Frees the slots of retired timelines that are complete, up to one that is pending: so as many are looked at as came. No
    /// lock is held meanwhile.
    fn sweep_retired(&self) {
        loop {
            let Some(timeline) = self.retired.lock().pop_front() else { return };
            // The turn at retirement closed every tick below `now`.
            if timeline.look(timeline.now() - 1).is_err() || timeline.observed() + 1 < timeline.now() {
                return self.retired.lock().push_back(timeline);
            }
            self.table.write().remove(timeline.id);
        }
    }

    /// All timelines, for several questions. To be dropped before any other is asked: streams that come or go wait.
    pub(super) fn all(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read()
    }

    /// A timeline, or `None` where it is gone: then all of it is reached.
    pub(super) fn get(&self, id: TimelineId) -> Option<Arc<Timeline>> {
        self.all().get(id).cloned()
    }

    // ---- waiting for the device --------------------------------------------------------------------

    /// Waits on the host for all work on the device, and notes it.
    pub(crate) fn synchronize_device(&self) -> DeviceResult<()> {
        self.check_process()?;
        let mut turned = Vec::new();
        {
            let all = self.all();
            let bytes = (all.slots.len() * size_of::<(Tick, Arc<Timeline>)>()) as u64;
            let no_memory = |_| DeviceError::HostMemory { what: "a list of streams", bytes };
            turned.try_reserve_exact(all.slots.len()).map_err(no_memory)?;
            turned.extend(all.iter().map(|timeline| (timeline.turn(), timeline.clone())));
        }
        self.device().synchronize()?;
        turned.iter().for_each(|(tick, timeline)| timeline.note_synchronized(*tick));
        Ok(())
    }

    // ---- captures --------------------------------------------------------------------------------------

    /// A pool was told that a stream is about to be captured. Waits while the device is synchronised, and while a
    /// stream is asked whether it is idle. Once this has returned, neither is done until the capture has ended.
    pub(crate) fn begin_capture(&self) {
        {
            let _beginning = self.beginning.lock();
            // Relaxed: as for `is_capturing`.
            self.events.captures.fetch_add(1, Ordering::Relaxed);
        }
        // Who adds a timeline after this look sees the store above, through the table's lock.
        self.all().iter().for_each(|timeline| timeline.let_calls_end());
    }

    /// Whether a capture is under way that a pool was told of.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.events.is_capturing()
    }

    /// A capture that [began](Self::begin_capture) has ended; whether it was the last.
    pub(crate) fn end_capture(&self) -> bool {
        // Relaxed: as for `is_capturing`.
        self.events.captures.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// As [`synchronize_device`](Self::synchronize_device), but where a capture is under way, which that would end:
    /// `false`, and nothing is done.
    pub(crate) fn synchronize_device_unless_capturing(&self) -> DeviceResult<bool> {
        let _none_begins = self.beginning.lock();
        if self.is_capturing() { Ok(false) } else { self.synchronize_device().map(|()| true) }
    }

    /// Notes that the host has waited for everything in `clock`.
    pub(crate) fn note_synchronized(&self, clock: &Fence) {
        let all = self.all();
        clock.iter().for_each(|(id, tick)| _ = all.get(id).map(|timeline| timeline.note_synchronized(tick)));
    }

    // ---- listeners ---------------------------------------------------------------------------------

    pub(crate) fn listen(&self, listener: Weak<dyn AfterSync>) {
        let mut listeners = self.listeners.lock();
        // A pool's memory stays as long as its listener is known.
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Tells the pools that the host has waited.
    pub(crate) fn after_sync(&self) {
        let mut told = Vec::new();
        {
            let listeners = self.listeners.lock();
            // Without memory for the list, none is told: what they do now they do after the next wait.
            if told.try_reserve_exact(listeners.len()).is_err() {
                return;
            }
            told.extend(listeners.iter().filter_map(Weak::upgrade));
        }
        for listener in told {
            listener.after_sync();
        }
    }
}

impl ThreadEnd for Timelines {
    fn thread_ends(&self) {
        if !self.is_here() {
            return;
        }
        loop {
            let found = self.all().of_this_thread(None).cloned();
            let Some((timeline, held)) = found else { return };
            // A driver that has ended the thread's streams first would begin another one: an event on that would say nothing.
            // SAFETY: the handle means a stream on every thread.
            if unsafe { self.device().stream_id(timeline.handle) } == Ok(timeline.stream) {
                self.close_last(&timeline);
            } else {
                timeline.turn();
                timeline.retire();
            }
            // Who holds it yet lets go of it later, and sees that it is retired.
            if held.strong_count() == 0 {
                self.leave(&timeline);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline_table::{LOOKS, hash};
    use super::*;
    use crate::device::sim::{Call, SimDevice, SimOptions};
    use crate::device::{DeviceError, EventHandle, Forward};
    use crate::order::{RegisteredStream, ReusePolicies, Stream};

    fn sim() -> (Arc<SimDevice>, Arc<Timelines>) {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        (sim.clone(), Timelines::new(sim))
    }

    fn adopt(timelines: &Arc<Timelines>, handle: StreamHandle) -> Stream {
        // SAFETY: on a simulated device a handle that is gone is an error.
        unsafe { Stream::adopt(timelines, handle) }.unwrap()
    }

    fn present(timelines: &Arc<Timelines>, handle: StreamHandle) -> Stream {
        // SAFETY: as above.
        unsafe { Stream::present(timelines, handle) }.unwrap()
    }

    fn failure() -> DeviceError {
        DeviceError::Driver { call: "planned", code: 1, name: "PLANNED".to_owned(), text: String::new() }
    }

    impl Timelines {
        /// Timelines that are not known to be complete, of streams that are there or gone.
        fn count(&self) -> usize {
            self.all().iter().count()
        }
    }

    /// Names that are looked up to find a stream, and one that is not there.
    fn looks_beside(streams: usize) -> usize {
        let (sim, timelines) = sim();
        let all: Vec<_> = (0..streams).map(|_| Stream::create(&timelines).unwrap()).collect();
        let foreign = sim.create_stream().unwrap();
        let before = LOOKS.get();
        let last = all.last().unwrap();
        assert_eq!(present(&timelines, last.handle()).timeline().id, last.timeline().id);
        present(&timelines, foreign);
        LOOKS.get() - before
    }

    #[test]
    fn a_stream_is_found_equally_fast_beside_many() {
        assert_eq!(looks_beside(3000), looks_beside(2));
    }

    #[test]
    fn slots_of_streams_that_are_gone_serve_again() {
        let (_, timelines) = sim();
        for _ in 0..3 {
            drop((0..50).map(|_| Stream::create(&timelines).unwrap()).collect::<Vec<_>>());
        }
        let table = timelines.all();
        assert_eq!((table.slots.len(), table.free.len()), (50, 50));
        assert!(table.by_id.is_empty() && table.by_handle.is_empty());
    }

    #[test]
    fn streams_that_come_and_go_ask_equally_often() {
        let (sim, timelines) = sim();
        let handle = sim.create_stream().unwrap();
        let hold = sim.hold(handle).unwrap();
        let mut asked = Vec::new();
        for _ in 0..3 {
            let before = sim.calls()[Call::QueryEvent];
            for _ in 0..200 {
                present(&timelines, handle).tick();
            }
            asked.push(sim.calls()[Call::QueryEvent] - before);
        }
        assert!(asked[2] <= 200 * 2, "{asked:?}");
        assert!(asked[2] <= asked[1] + 2, "as many for as many: {asked:?}");
        assert_eq!(timelines.count(), 600);
        sim.release(hold);
        drop(Stream::create(&timelines).unwrap());
        assert_eq!(timelines.count(), 0, "all are complete, and one sweep finds them");
    }

    /// Does something between the answer to the next question about an event and what is made of it.
    #[derive(Default)]
    struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl std::fmt::Debug for Meanwhile {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Meanwhile")
        }
    }

    #[derive(Debug)]
    struct Interrupted(Arc<SimDevice>, Meanwhile);

    // SAFETY: each call goes to the device below, and its answer is given back.
    unsafe impl Forward for Interrupted {
        fn below(&self) -> &dyn Device {
            &*self.0
        }

        unsafe fn query_event(&self, event: EventHandle) -> DeviceResult<bool> {
            // SAFETY: the caller's promise.
            let answer = unsafe { self.0.query_event(event) };
            if let Some(meanwhile) = self.1.0.lock().take() {
                meanwhile();
            }
            answer
        }
    }

    #[test]
    fn a_stream_that_ends_while_the_host_synchronises_loses_no_event() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let device = Arc::new(Interrupted(sim.clone(), Meanwhile::default()));
        let timelines = Timelines::new(device.clone());
        let ends = Stream::create(&timelines).unwrap();
        let hold = sim.hold(ends.handle()).unwrap();
        let (synchronises, other) = (Arc::downgrade(&timelines), sim.clone());
        *device.1.0.lock() = Some(Box::new(move || {
            other.release(hold);
            let waits = std::thread::spawn(move || synchronises.upgrade().unwrap().synchronize_device());
            waits.join().unwrap().unwrap();
        }));
        drop(ends);
        assert_eq!(timelines.count(), 0, "all is complete");
        drop(timelines);
        assert_eq!(sim.calls()[Call::CreateEvent], 1);
        assert_eq!(sim.calls()[Call::DestroyEvent], 1);
    }

    #[test]
    fn one_pending_stream_keeps_no_other_timeline() {
        let (sim, timelines) = sim();
        let busy = Stream::create(&timelines).unwrap();
        let hold = sim.hold(busy.handle()).unwrap();
        drop(busy);
        for _ in 0..100 {
            let handle = sim.create_stream().unwrap();
            present(&timelines, handle).tick();
        }
        assert!(timelines.count() <= 3, "{}", timelines.count());
        sim.release(hold);
    }

    #[test]
    fn what_a_stream_waited_for_is_forgotten_with_the_streams() {
        let (_, timelines) = sim();
        let (long, other) = (Stream::create(&timelines).unwrap(), Stream::create(&timelines).unwrap());
        long.wait_for(&other).unwrap();
        let tick = other.timeline().now() - 1;
        for _ in 0..1000 {
            let request = Stream::create(&timelines).unwrap();
            long.wait_for(&request).unwrap();
        }
        // It is pruned when it names more than 16, or twice as many as were left the last time.
        let known = long.timeline().ordered_after().unwrap().len();
        assert!(known < 32, "{known}");
        assert!(long.timeline().is_ordered_after(other.timeline().id, tick), "it is still there");
        assert!(long.record().unwrap().clock.len() < 32);
    }

    #[test]
    fn a_long_lived_block_forgets_uses_of_ended_streams() {
        let (sim, timelines) = sim();
        let mut uses = Fence::empty();
        let busy = Stream::create(&timelines).unwrap();
        let hold = sim.hold(busy.handle()).unwrap();
        assert!(timelines.add_use(&mut uses, &busy));
        for _ in 0..1000 {
            assert!(timelines.add_use(&mut uses, &Stream::create(&timelines).unwrap()));
        }
        // They are pruned at 16, and whenever they have doubled; one is left.
        assert!(uses.len() < 64, "{}", uses.len());
        let mut fence = Fence::empty();
        timelines.add_uses(&mut fence, &mut uses);
        assert!(!timelines.is_complete(&fence), "one is pending");
        sim.release(hold);
    }

    #[test]
    fn each_promise_about_a_handle_ends_with_its_own_streams() {
        let (sim, timelines) = sim();
        let handle = sim.create_stream().unwrap();
        let kept = adopt(&timelines, handle);
        let foreign = present(&timelines, handle);
        assert!(foreign.timeline().is_marked_at_once());
        let again = adopt(&timelines, handle);
        assert_eq!(again.key(), kept.key(), "the same promise, the same timeline");
        let fence = foreign.fence();
        drop((kept, again));
        // SAFETY: who promised that the stream stays has no clone any more.
        unsafe { sim.destroy_stream(handle) }.unwrap();
        let records = sim.calls()[Call::RecordEvent];
        timelines.poll(&fence).unwrap();
        drop(foreign);
        assert_eq!(sim.calls()[Call::RecordEvent], records, "nothing is given to the stream that is gone");
    }

    #[test]
    fn a_promise_is_not_weakened_by_who_came_first() {
        let (sim, timelines) = sim();
        let handle = sim.create_stream().unwrap();
        let foreign = present(&timelines, handle);
        let kept = adopt(&timelines, handle);
        let mut uses = Fence::empty();
        assert!(timelines.add_use(&mut uses, &kept));
        let hold = sim.hold(handle).unwrap();
        let mut fence = Fence::empty();
        timelines.add_uses(&mut fence, &mut uses);
        let other = Stream::create(&timelines).unwrap();
        timelines.poll(&fence).unwrap();
        assert!(
            !timelines.readiness(other.timeline(), ReusePolicies::ALL).covers(&fence),
            "work after the record counts"
        );
        sim.release(hold);
        drop(foreign);
    }

    #[test]
    fn a_use_noted_after_a_registrations_end_waits_for_the_device() {
        let (sim, timelines) = sim();
        let handle = sim.create_stream().unwrap();
        // SAFETY: it is never destroyed.
        let registered = unsafe { RegisteredStream::register(&timelines, handle) }.unwrap();
        let left = registered.clone();
        drop(registered);
        let hold = sim.hold(handle).unwrap();
        let (mut uses, mut fence) = (Fence::empty(), Fence::empty());
        assert!(timelines.add_use(&mut uses, &left));
        timelines.add_uses(&mut fence, &mut uses);
        assert!(!timelines.is_complete(&fence), "no mark closes its tick");
        sim.release(hold);
        timelines.synchronize_device().unwrap();
        assert!(timelines.is_complete(&fence));
    }

    #[test]
    fn a_stream_of_ours_stays_for_whoever_presents_it() {
        let (sim, timelines) = sim();
        let (ours, legacy) = (Stream::create(&timelines).unwrap(), StreamHandle::LEGACY);
        let presented = present(&timelines, ours.handle());
        assert_eq!(presented.key(), ours.key());
        drop(ours);
        presented.synchronize().expect("it lives as long as anybody holds it");
        let default = present(&timelines, legacy);
        assert!(!default.timeline().is_marked_at_once(), "it is always there");
        drop(presented);
        assert_eq!(sim.calls()[Call::DestroyStream], 1);
    }

    #[test]
    fn a_stream_whose_last_mark_failed_is_not_complete() {
        let (sim, timelines) = sim();
        // So that the stream itself is not asked.
        timelines.begin_capture();
        let stream = Stream::create(&timelines).unwrap();
        let hold = sim.hold(stream.handle()).unwrap();
        let fence = stream.fence();
        sim.fail_next(Call::CreateEvent, 1, failure());
        drop(stream);
        assert!(!timelines.is_complete(&fence));
        sim.release(hold);
        timelines.end_capture();
        timelines.synchronize_device().unwrap();
        assert!(timelines.is_complete(&fence));
    }

    #[test]
    fn listeners_that_are_gone_are_forgotten_without_a_synchronise() {
        struct Listener;
        impl AfterSync for Listener {
            fn after_sync(&self) {}
        }
        let (_, timelines) = sim();
        for _ in 0..100 {
            let gone: Arc<dyn AfterSync> = Arc::new(Listener);
            timelines.listen(Arc::downgrade(&gone));
        }
        assert_eq!(timelines.listeners.lock().len(), 1);
    }

    #[test]
    fn names_of_streams_have_hashes_of_their_own() {
        let hashes: std::collections::BTreeSet<_> =
            (0..1000_u64).map(|id| hash(id, Promise::Stays)).collect();
        assert_eq!(hashes.len(), 1000);
    }

    #[test]
    fn the_end_of_a_stream_takes_no_host_memory() {
        let (_, timelines) = sim();
        let mut streams = Vec::new();
        for _ in 0..50 {
            streams.push(Stream::create(&timelines).unwrap());
            let table = timelines.all();
            assert!(table.free.capacity() >= table.slots.len(), "all slots may become free");
        }
    }

    #[test]
    fn a_stream_is_registered_until_its_registration_ends() {
        let (sim, timelines) = sim();
        let handle = sim.create_stream().unwrap();
        // SAFETY: it is never destroyed.
        let registered = unsafe { RegisteredStream::register(&timelines, handle) }.unwrap();
        let stream = registered.clone();
        assert!(stream.is_registered() && !present(&timelines, sim.create_stream().unwrap()).is_registered());
        drop(registered);
        assert!(!stream.is_registered());
    }
}
