//! One stream's timeline: its counter, its marks, what is known to be complete, and what it has waited for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::ReusePolicies;
use super::events::{Events, MarkEvent, OwnedEvent};
use super::fence::{Fence, Tick, TimelineId};
use crate::device::{DeviceError, DeviceResult, EventHandle, StreamHandle, StreamId, calling_thread};
use crate::log::log;
use crate::policy::streams::MANY;
use crate::system::host_memory::Shared;
use crate::system::lock::Mutex;

/// How long the handle of a stream is valid. What comes first is the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Promise {
    /// While anybody holds the stream: either we destroy it, or nobody does.
    Stays,
    /// Until its [registrations](super::RegisteredStream) have ended. Against its owner's promise, it may be another stream's
    /// by then.
    WhileRegistered,
    /// Until the last clone of what was returned for it is gone. Against its owner's promise, it may be another stream's by then.
    UntilDropped,
    /// Until the thread ends whose default stream it is, and on that thread only. What it frees to the pool is closed at once, since
    /// no other thread can mark the stream. What it caches is closed when the thread next marks the stream, or ends.
    OfThread,
    /// In each call that presents it: its owner may destroy it at any time afterwards. So each tick taken is closed at once.
    /// The others' are marked when that is needed.
    InCalls,
}

/// An event recorded on the stream, the tick that it closes, and the stream's clock there.
///
/// The event is shared with whoever is about to wait for it. So it is neither destroyed nor recorded anew meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    tick: Tick,
    event: Shared<MarkEvent>,
    pub(super) clock: Fence,
}

impl Mark {
    /// Valid as long as the mark lives.
    pub(super) fn event(&self) -> &OwnedEvent {
        self.event.event()
    }
}

#[derive(Debug)]
struct TimelineState {
    /// Whether the timeline is retired: the stream may be gone. Before that the handle is *valid*: for whoever holds this
    /// lock; by [`Promise::InCalls`] only for who presents the stream, and by [`Promise::OfThread`] for its thread.
    is_retired: bool,
    /// Marks not yet seen complete, in the order of their ticks. Each keeps its event.
    marks: VecDeque<Mark>,
    /// The ticks of other streams that later work on this one is ordered after.
    ordered_after: Fence,
    /// How many streams `ordered_after` may name before it is pruned.
    most_named: usize,
}

impl TimelineState {
    fn has_mark_for(&self, tick: Tick) -> bool {
        self.marks.back().is_some_and(|mark| mark.tick >= tick)
    }
}

/// What a handle means: the streams that have one differ by thread.
pub(super) type HandleName = (StreamHandle, Option<u64>);

/// The thread whose own stream the handle means, if each thread has one of that handle.
pub(super) fn thread_of(handle: StreamHandle) -> Option<u64> {
    (handle == StreamHandle::PER_THREAD).then(calling_thread)
}

/// Notes that what a timeline was given up to `tick` is complete. No `fetch_max`: ThreadSanitizer does not see the order of that.
fn raise(complete: &AtomicU64, tick: Tick) {
    // Release: whoever sees the tick also sees that the wait is over. Where a later one is there, who wrote that has waited, too.
    _ = complete.fetch_update(Ordering::Release, Ordering::Relaxed, |now| (now < tick).then_some(tick));
}

/// What is said where the host has no memory for so many streams or events and one more.
fn no_memory(count: usize) -> DeviceError {
    DeviceError::HostMemory {
        what: "a list of streams or events",
        bytes: ((count + 1) * size_of::<Mark>()) as u64,
    }
}

/// See the [module](super).
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) id: TimelineId,
    /// Unlike any other timeline's, of any device, for the life of the process. Never 0.
    pub(crate) serial: u64,
    pub(crate) stream: StreamId,
    pub(super) handle: StreamHandle,
    pub(super) promise: Promise,
    /// The thread whose default stream it is: to others, its handle means a stream of their own.
    of_thread: Option<u64>,
    /// The tick that work given now belongs to.
    now: AtomicU64,
    /// The highest tick that was seen complete by asking.
    observed: AtomicU64,
    /// The highest tick that the host has waited for.
    synchronized: AtomicU64,
    /// Whether another thread looked for a mark that only the stream's own thread can make.
    is_mark_wanted: AtomicBool,
    state: Mutex<TimelineState>,
    events: Arc<Events>,
    /// Whether it only carries copies of memory that nobody else uses meanwhile.
    pub(crate) is_for_copies: AtomicBool,
}

impl Timeline {
    pub(super) fn new(
        slot: u32,
        handle: StreamHandle,
        stream: StreamId,
        promise: Promise,
        events: Arc<Events>,
    ) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Self {
            id: TimelineId { slot, generation: serial as u32 },
            serial,
            stream,
            handle,
            promise,
            of_thread: thread_of(handle),
            is_mark_wanted: AtomicBool::new(false),
            now: AtomicU64::new(1),
            observed: AtomicU64::new(0),
            synchronized: AtomicU64::new(0),
            state: Mutex::new(TimelineState {
                is_retired: false,
                marks: VecDeque::new(),
                ordered_after: Fence::empty(),
                most_named: MANY,
            }),
            events,
            is_for_copies: AtomicBool::new(false),
        }
    }

    /// The tick that work given so far belongs to.
    #[inline]
    pub(crate) fn now(&self) -> Tick {
        // Relaxed is enough. What must not happen is that this reads a tick that a mark recorded *before*
        // the caller's work closes. `close` raises the counter before it records; a device takes work and
        // records on one stream in one order, with the synchronisation that this implies. If the mark came
        // first, the raise happened before the caller's work was taken, and coherence shows it here.
        self.now.load(Ordering::Relaxed)
    }

    /// Whether the stream can be marked only by who presents it, or by its own thread.
    #[inline]
    pub(crate) fn is_marked_at_once(&self) -> bool {
        matches!(self.promise, Promise::OfThread | Promise::InCalls)
    }

    /// Whether the calling thread can mark the stream at any time. So it may keep what it frees there, without a mark yet.
    pub(crate) fn may_be_marked_here(&self) -> bool {
        match self.promise {
            Promise::InCalls => false,
            Promise::OfThread => self.is_of_this_thread(),
            Promise::Stays | Promise::WhileRegistered | Promise::UntilDropped => true,
        }
    }

    /// Whether it is the calling thread's default stream, which is there as long as the thread is.
    fn is_of_this_thread(&self) -> bool {
        self.of_thread.is_some_and(|thread| thread == calling_thread())
    }

    /// Whether it is another thread's default stream: what that was given since its last mark, nobody here can mark.
    pub(super) fn is_of_other_thread(&self) -> bool {
        self.promise == Promise::OfThread && !self.is_of_this_thread()
    }

    /// The handle, and which thread's stream that means where each has one.
    pub(super) fn name(&self) -> HandleName {
        (self.handle, self.of_thread)
    }

    /// Closes the ticks so far, on the stream's own thread, if others [looked](Self::look) for that in vain.
    #[inline]
    pub(crate) fn mark_if_wanted(&self) {
        // Relaxed, and here alone: a wish that is seen late is fulfilled late.
        if self.is_mark_wanted.load(Ordering::Relaxed) {
            self.mark_for_others();
        }
    }

    /// Closes the ticks so far, if only this thread can: for what others may take from now on.
    #[cold]
    pub(crate) fn mark_for_others(&self) {
        if self.promise == Promise::OfThread && self.is_of_this_thread() {
            self.is_mark_wanted.store(false, Ordering::Relaxed);
            if let Err(error) = self.close(self.now(), true) {
                log!(WARN, "no event could be recorded on a stream", error);
            }
        }
    }

    /// The last tick that work using a block may belong to, if the use was recorded at `recorded`. That is the present
    /// one while marks can be recorded, else the last closed one.
    pub(crate) fn last_tick(&self, recorded: Tick) -> Tick {
        match self.state.lock().is_retired {
            _ if self.is_marked_at_once() => recorded,
            false => self.now(),
            // What was recorded since is closed by no mark.
            true => recorded.max(self.now() - 1),
        }
    }

    /// The highest tick that the host has waited for.
    #[inline]
    pub(crate) fn synchronized(&self) -> Tick {
        // Acquire: pairs with the Release in `raise`; what the host learned by waiting is visible.
        self.synchronized.load(Ordering::Acquire)
    }

    /// The highest tick known to be complete, by waiting or by asking.
    #[inline]
    pub(crate) fn observed(&self) -> Tick {
        // Acquire: as for `synchronized`.
        self.observed.load(Ordering::Acquire).max(self.synchronized())
    }

    /// The highest tick that memory is ready for everybody after, by these policies.
    #[inline]
    pub(super) fn ready_up_to(&self, policies: ReusePolicies) -> Tick {
        if policies.opportunistic { self.observed() } else { self.synchronized() }
    }

    /// Notes that the host has waited for `tick`.
    pub(crate) fn note_synchronized(&self, tick: Tick) {
        raise(&self.synchronized, tick);
    }

    fn note_observed(&self, tick: Tick) {
        raise(&self.observed, tick);
    }

    /// Ends the present tick without an event, for a caller that will wait for the whole stream or device.
    pub(crate) fn turn(&self) -> Tick {
        // Relaxed: see `now`; the caller's wait on the device does the ordering.
        self.now.fetch_add(1, Ordering::Relaxed)
    }

    /// The ticks of other streams that later work on this one is ordered after. `None` where the host has no memory
    /// for them.
    pub(crate) fn ordered_after(&self) -> Option<Fence> {
        self.state.lock().ordered_after.try_clone_to_raise()
    }

    /// Whether later work on this stream is ordered after `tick` of `other`.
    pub(crate) fn is_ordered_after(&self, other: TimelineId, tick: Tick) -> bool {
        self.state.lock().ordered_after.tick_of(other) >= tick
    }

    /// Whether the stream is being captured: then work given to it does not run, so that no event on it says
    /// anything about ticks, and it must not wait for work outside of the capture. `presented` as for [`mark`](Self::mark);
    /// `None` for a stream that cannot be asked.
    pub(crate) fn is_captured(&self, presented: bool) -> DeviceResult<Option<bool>> {
        self.if_usable(&self.state.lock(), presented).map_or(Ok(None), |handle| self.captures(handle))
    }

    /// Whether this stream is being captured, whose handle is [usable](Self::usable_handle). `None` where the device knows no
    /// such stream: it ended with its context (a green one, say). A wait for the device then tells of its work, and nothing else.
    fn captures(&self, handle: StreamHandle) -> DeviceResult<Option<bool>> {
        // SAFETY: the stream is valid, since `usable_handle` said so within the lock.
        match unsafe { self.events.device.capture_of(handle) } {
            Ok(capture) => Ok(Some(capture.is_some())),
            Err(DeviceError::Invalid { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The stream's handle, if it can be used by a caller that has the stream in hand or not.
    fn if_usable(&self, state: &TimelineState, presented: bool) -> Option<StreamHandle> {
        let has_it = presented || self.is_of_this_thread();
        let is_out_of_reach = state.is_retired || self.is_marked_at_once() && !has_it;
        if is_out_of_reach { None } else { self.usable_handle(state.is_retired).ok() }
    }

    /// Records `event` on the stream for its owner; returns the stream's clock there, with the tick that the
    /// event closes. An event of a capture orders nothing but the nodes of the graph: its clock is empty.
    ///
    /// # Safety
    /// The event is valid on this device.
    pub(super) unsafe fn record(&self, event: EventHandle) -> DeviceResult<Fence> {
        let state = self.state.lock();
        let handle = self.usable_handle(state.is_retired)?;
        if self.captures(handle)? == Some(true) {
            // SAFETY: the stream is valid, as `usable_handle` says within the lock. The event is the caller's promise.
            unsafe { self.events.device.record_event(event, handle) }?;
            return Ok(Fence::empty());
        }
        // SAFETY: as above.
        unsafe { self.close_tick(&state, event, handle) }
    }

    /// Records the event, and returns the stream's clock there, with the tick that the event closes.
    ///
    /// # Safety
    /// Stream and event are valid.
    unsafe fn close_tick(
        &self,
        state: &TimelineState,
        event: EventHandle,
        handle: StreamHandle,
    ) -> DeviceResult<Fence> {
        let clock = state.ordered_after.try_clone_to_raise();
        let mut clock = clock.ok_or_else(|| no_memory(state.ordered_after.len()))?;
        // The raise comes before the record: see `now`. If the record fails the tick is not closed, and a
        // later mark closes it too.
        let tick = self.turn();
        // SAFETY: the caller's promise.
        unsafe { self.events.device.record_event(event, handle) }?;
        clock.raise(self.id, tick);
        Ok(clock)
    }

    /// Makes later work on this stream wait for `event`, which stands for the ticks in `after`. Returns whether so many
    /// streams are known to come before it that they should be [pruned](Self::prune_ordered_after).
    ///
    /// # Safety
    /// The event is valid on this device.
    pub(super) unsafe fn wait(&self, event: EventHandle, after: &Fence) -> DeviceResult<bool> {
        let mut state = self.state.lock();
        let handle = self.usable_handle(state.is_retired)?;
        if !state.ordered_after.make_room_to_join(after) {
            return Err(no_memory(after.len()));
        }
        // SAFETY: the stream is valid, as in `record`; the event is the caller's promise.
        unsafe { self.events.device.wait_event(handle, event) }?;
        state.ordered_after.join(after);
        Ok(state.ordered_after.len() > state.most_named)
    }

    /// Forgets that the stream comes after a tick, where `matters` says that this answers no question.
    pub(super) fn prune_ordered_after(&self, matters: impl Fn(TimelineId, Tick) -> bool) {
        let mut state = self.state.lock();
        state.ordered_after.retain(|id, tick| id != self.id && matters(id, tick));
        // Twice what is left: so pruning costs each wait a constant.
        state.most_named = (2 * state.ordered_after.len()).max(MANY);
    }

    /// The mark that closes `tick`: the one that is there already, or one recorded now. `None` where there is
    /// none and the stream cannot be marked: it is gone, or it is being captured. `presented` says that the caller
    /// has the stream in hand, so that it is alive.
    pub(super) fn mark(&self, tick: Tick, presented: bool) -> DeviceResult<Option<Mark>> {
        let mut state = self.state.lock();
        let closed = self.close_in(&mut state, tick, presented)?;
        let at = state.marks.partition_point(|mark| mark.tick < tick);
        Ok(closed.then(|| state.marks[at].clone()))
    }

    /// Makes sure that a mark closes `tick`; `false` where the stream cannot be marked.
    pub(crate) fn close(&self, tick: Tick, presented: bool) -> DeviceResult<bool> {
        self.close_in(&mut self.state.lock(), tick, presented)
    }

    fn close_in(&self, state: &mut TimelineState, tick: Tick, presented: bool) -> DeviceResult<bool> {
        // A program that only waits never looks.
        if state.marks.len() >= MANY
            && let Err(error) = self.take_complete(state)
        {
            log!(WARN, "a stream's events could not be queried", error);
        }
        if state.has_mark_for(tick) {
            return Ok(true);
        }
        let Some(handle) = self.if_usable(state, presented) else { return Ok(false) };
        // The mark would be a node of the graph, and whoever waited for it part of the capture.
        if self.captures(handle)? != Some(false) {
            return Ok(false);
        }
        let refused = no_memory(state.marks.len());
        if state.marks.try_reserve(1).is_err() {
            return Err(refused);
        }
        let event = Shared::try_new(self.events.spare()?).ok_or(refused)?;
        // SAFETY: the stream is valid, as `usable_handle` says within the lock, and the event this mark's alone.
        let recorded = unsafe { self.close_tick(state, event.event().handle, handle) };
        // Whoever has the stream in hand may have begun a capture since. The event is then of the capture, which
        // that does not hurt, but to ask or to wait for it would.
        if !presented && !matches!(self.captures(handle), Ok(Some(false))) {
            event.spoil();
            return Ok(false);
        }
        let clock = recorded?;
        state.marks.push_back(Mark { tick: clock.tick_of(self.id), event, clock });
        Ok(true)
    }

    /// The present tick of a foreign stream, closed at once. Where that fails the tick stays open, and is
    /// reached only when the device is synchronised: late, but safe.
    #[cold]
    pub(super) fn close_tick_slow(&self) -> Tick {
        let tick = self.now();
        let closed = self.close(tick, true);
        match &closed {
            Ok(true) => return tick,
            Ok(false) if self.is_captured(true) == Ok(Some(true)) => {}
            Ok(false) => log!(WARN, "a stream was used after its handle became another's"),
            Err(error) => log!(WARN, "no event could be recorded on a stream", error),
        }
        // No mark closes the tick that is handed out. The counter goes past it, so that a retired timeline
        // is not taken for complete by what was seen before.
        self.turn()
    }

    /// Takes the marks that are complete off the front. Returns whether anything new was learned.
    fn take_complete(&self, state: &mut TimelineState) -> DeviceResult<bool> {
        let mut learned = false;
        while let Some(mark) = state.marks.front() {
            if mark.tick > self.synchronized() && !mark.event().query()? {
                break;
            }
            self.note_observed(mark.tick);
            learned = true;
            state.marks.pop_front();
        }
        Ok(learned)
    }

    /// Looks whether `tick` is complete: at the marks, and where there are none at the stream itself. Records a mark where
    /// there is none, so that a later look can tell, unless the stream is far behind. Returns whether anything new was learned.
    pub(super) fn look(&self, tick: Tick) -> DeviceResult<bool> {
        if self.observed() >= tick {
            return Ok(false);
        }
        let mut state = self.state.lock();
        let mut learned = self.take_complete(&mut state)?;
        if self.observed() >= tick || state.has_mark_for(tick) {
            return Ok(learned);
        }
        if self.is_of_other_thread() {
            self.is_mark_wanted.store(true, Ordering::Relaxed);
            return Ok(learned);
        }
        // A stream with a mark that is pending is not idle.
        if state.marks.is_empty() && self.is_idle(&state)? {
            return Ok(true);
        }
        if state.marks.len() < MANY && self.close_in(&mut state, tick, false)? && self.events.is_capturing() {
            // The stream could not be asked, but this can.
            learned |= self.take_complete(&mut state)?;
        }
        Ok(learned)
    }

    /// Whether a recorded mark, complete or not, closes `tick`.
    pub(super) fn has_mark_for(&self, tick: Tick) -> bool {
        self.state.lock().has_mark_for(tick)
    }

    /// Asks the stream itself whether everything given to it is complete; if so, so is every tick so far. While a
    /// capture is known of, one may begin on any stream at any time. Then the stream is not asked, which would end its
    /// capture. An event tells instead.
    fn is_idle(&self, state: &TimelineState) -> DeviceResult<bool> {
        let Some(handle) = self.if_usable(state, false) else { return Ok(false) };
        // Within the lock: see `let_calls_end`.
        if self.events.is_capturing() || self.captures(handle)? != Some(false) {
            return Ok(false);
        }
        let tick = self.turn();
        // SAFETY: valid, as in `close_in`.
        match unsafe { self.events.device.stream_is_idle(handle) } {
            Ok(true) => {
                self.note_observed(tick);
                Ok(true)
            }
            // It began since, and nobody told the pools before.
            Err(error) if self.captures(handle) == Ok(Some(true)) => {
                log!(
                    WARN,
                    "a capture was ended by a question to its stream; tell the pool before it begins",
                    error
                );
                Ok(false)
            }
            other => other,
        }
    }

    /// Returns once every question that another thread began to ask the stream has ended. Later questions see what the
    /// caller did before this call.
    pub(super) fn let_calls_end(&self) {
        drop(self.state.lock());
    }

    /// The stream will not be used again and may be destroyed after this call. What closes its last tick is
    /// recorded already (`mark`) or can only be had by waiting for the device.
    pub(crate) fn retire(&self) {
        self.state.lock().is_retired = true;
    }

    /// Whether that was said.
    pub(super) fn is_retired(&self) -> bool {
        self.state.lock().is_retired
    }

    /// The same as `usable_handle`, for who presents the stream.
    pub(super) fn handle_here(&self) -> DeviceResult<StreamHandle> {
        // Others are not retired as long as somebody holds them. A lock would have to ask for the process first.
        let may_be_retired = matches!(self.promise, Promise::WhileRegistered | Promise::OfThread);
        let state = may_be_retired.then(|| self.state.lock());
        self.usable_handle(state.as_ref().is_some_and(|state| state.is_retired))
    }

    /// The stream's handle, if it is still this stream's, and means no other to the calling thread. Every call that gives the
    /// device the handle asks here first: else its ticks would be another stream's.
    fn usable_handle(&self, is_retired: bool) -> DeviceResult<StreamHandle> {
        let gone = |what: &str| Err(DeviceError::Invalid { call: "stream", what: what.to_owned() });
        if is_retired {
            return gone("the stream was destroyed");
        }
        if self.of_thread.is_some_and(|thread| thread != calling_thread()) {
            return gone(
                "it is another thread's default stream; use it on that thread, or synchronise the device",
            );
        }
        // Foreign streams are presented by callers who promise that they are alive, but may have been recycled in between. So may
        // others that are not ours, against their owner's promise, as those of a green context that the program destroys; their
        // calls to the device are few. (One that was met in a capture is kept by the capture's route until its end, and is known by
        // its handle. So is one that is being captured now. The driver does not identify that.) A thread has another default stream
        // once its own was destroyed, by a reset or at the thread's end.
        if self.promise != Promise::Stays && !self.stream.is_in_capture() {
            // SAFETY: presented by the caller, registered or adopted, so valid by promise.
            let id = unsafe { self.events.device.stream_id(self.handle) }?;
            if id != self.stream && !id.is_in_capture() {
                return gone("the handle is another stream's now");
            }
        }
        Ok(self.handle)
    }
}

#[cfg(test)]
mod tests {
    use crate::device::sim::{SimDevice, SimOptions};
    use crate::order::{Stream, Timelines};

    #[test]
    fn a_capture_waits_until_no_stream_is_being_asked() {
        let timelines = Timelines::new(SimDevice::new(SimOptions::default()).unwrap());
        let stream = Stream::create(&timelines).unwrap();
        let asking = stream.timeline().state.lock();
        std::thread::scope(|threads| {
            let begins = threads.spawn(|| timelines.begin_capture());
            while !timelines.is_capturing() {
                std::thread::yield_now();
            }
            (0..1000).for_each(|_| std::thread::yield_now());
            assert!(!begins.is_finished());
            drop(asking);
        });
        timelines.end_capture();
    }

    #[cfg(not(miri))]
    #[test]
    fn the_use_of_a_stream_whose_handle_is_anothers_is_told() {
        let name = "order::timeline::tests::the_use_of_a_stream_whose_handle_is_anothers_is_told";
        crate::fixtures::alone(name, use_after_the_handle_is_anothers);
    }

    #[cfg(not(miri))]
    fn use_after_the_handle_is_anothers() {
        use crate::device::Device;
        use crate::log::heard;
        use crate::testing::recycling::RecyclingDevice;

        let device = RecyclingDevice::new(SimDevice::new(SimOptions::default()).unwrap());
        let timelines = Timelines::new(device.clone());
        let handle = device.create_stream().unwrap();
        // SAFETY: the handle is valid; what is done with it later is refused.
        let stream = unsafe { Stream::present(&timelines, handle) }.unwrap();
        assert!(heard(|| _ = stream.tick()).is_empty());
        // SAFETY: the stream was created above.
        unsafe { device.destroy_stream(handle) }.unwrap();
        assert_eq!(device.create_stream(), Ok(handle));
        let said = heard(|| _ = stream.tick());
        assert_eq!(said, ["a stream was used after its handle became another's"]);
    }
}
