//! The questions a pool asks of the timelines: may memory behind a fence be used, and what makes it so?

use std::sync::atomic::Ordering;

use super::timelines::Table;
use super::{Fence, Reached, ReusePolicies, Stream, Tick, Timeline, TimelineId, Timelines};
use crate::device::{DeviceResult, EventHandle};
use crate::policy::streams::MANY;
use crate::system::lock::RwLockReadGuard;

/// Whether a stream may use what is behind a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is ordered after it, or the work is complete.
    Ready,
    /// It was made to wait.
    Waits,
    /// Not by these policies, or the device cannot be told to.
    Refused,
}

impl Timelines {
    /// Lets later work on `stream` use what is behind `fence`, as far as the policies allow. It goes by what is known,
    /// asks the device, or makes the stream wait.
    pub(crate) fn admit(
        &self,
        fence: &Fence,
        stream: &Timeline,
        policies: ReusePolicies,
    ) -> DeviceResult<Admission> {
        let is_ready = || self.readiness(stream, policies).covers(fence);
        if is_ready() || (policies.opportunistic && self.poll(fence)? && is_ready()) {
            return Ok(Admission::Ready);
        }
        let waits = policies.internal_dependencies && self.make_wait(fence, stream)?;
        Ok(if waits { Admission::Waits } else { Admission::Refused })
    }

    /// Whether memory behind fences may be used by later work on `stream`, by what is known already. No device call.
    pub(crate) fn readiness<'a>(
        &'a self,
        stream: &'a Timeline,
        policies: ReusePolicies,
    ) -> ReadinessQuery<'a> {
        ReadinessQuery { timelines: self, stream, policies, all: None }
    }

    /// Whether everything in `fence` is known to be complete, so that nobody needs it. No device call.
    pub(crate) fn is_complete(&self, fence: &Fence) -> bool {
        self.reached(fence).is_some()
    }

    /// Proof that everything in `fence` is [known to be complete](Self::is_complete).
    pub(crate) fn reached(&self, fence: &Fence) -> Option<Reached> {
        if fence.is_empty() {
            return fence.reached();
        }
        let all = self.all();
        fence.reached_if(|id, tick| all.get(id).is_none_or(|timeline| timeline.observed() >= tick))
    }

    /// Whether everything in `fence` is complete or can be waited for. Work of a stream that is being captured cannot
    /// be waited for, until the capture has ended.
    #[cold]
    pub(crate) fn can_be_reached(&self, fence: &Fence) -> bool {
        fence.iter().all(|(id, tick)| {
            self.get(id).is_none_or(|timeline| {
                let can_be_marked = || timeline.is_captured(false) == Ok(Some(false));
                timeline.observed() >= tick || timeline.has_mark_for(tick) || can_be_marked()
            })
        })
    }

    /// Drops from `fence` what is complete, as far as these policies look. That stays true when the policies change.
    pub(crate) fn prune(&self, fence: &mut Fence, policies: ReusePolicies) {
        let all = self.all();
        fence.retain(|id, tick| all.get(id).is_some_and(|other| other.ready_up_to(policies) < tick));
    }

    /// Notes in `uses`, those of a live block, that `stream` uses it. Drops complete uses now and then. `false`, and
    /// nothing noted, where the host has no memory for it.
    #[must_use]
    pub(crate) fn add_use(&self, uses: &mut Fence, stream: &Stream) -> bool {
        // One is for the stream that frees.
        if uses.tick_of(stream.timeline().id) == 0 && !uses.make_room(2) {
            return false;
        }
        uses.raise(stream.timeline().id, stream.tick());
        if uses.len() >= MANY && uses.len().is_power_of_two() {
            let all = self.all();
            uses.retain(|id, tick| {
                all.get(id).is_some_and(|timeline| timeline.synchronized() < timeline.last_tick(tick))
            });
        }
        true
    }

    /// Adds to `fence` the streams that a block's uses were recorded on, at their present ticks. Work given to them
    /// since may use the block, too. Leaves garbage in `uses`. Takes no host memory for a fence of one stream.
    pub(crate) fn add_uses(&self, fence: &mut Fence, uses: &mut Fence) {
        if uses.is_empty() {
            return;
        }
        let all = self.all();
        uses.update(|id, tick| all.get(id).map(|timeline| timeline.last_tick(tick)));
        fence.iter().for_each(|(id, tick)| uses.raise(id, tick));
        std::mem::swap(fence, uses);
    }

    /// The work that all streams were given so far, as far as it is not known to be complete: but for streams that are [for
    /// copies](Timeline::is_for_copies), and for what no mark closes here. `None` where the host has no memory for it.
    pub(crate) fn work_so_far(&self) -> Option<Fence> {
        let (all, mut fence) = (self.all(), Fence::empty());
        // Relaxed: the mark is set before anybody else has the stream.
        for timeline in all.iter().filter(|timeline| !timeline.is_for_copies.load(Ordering::Relaxed)) {
            // What cannot be marked here has closed all ticks but the present one.
            let is_closed = !timeline.may_be_marked_here() || timeline.is_retired();
            let tick = if is_closed { timeline.now() - 1 } else { timeline.now() };
            if timeline.observed() < tick {
                if !fence.make_room(1) {
                    return None;
                }
                fence.raise(timeline.id, tick);
            }
        }
        Some(fence)
    }

    /// Waits for the device where another thread has a default stream: what that was given last can be waited for in no other way.
    /// `false` where a capture is under way, which the wait would end. To be called without locks.
    pub(crate) fn wait_for_other_threads(&self) -> DeviceResult<bool> {
        // A stream that has ended is in order up to its last mark. What was freed to it later has none.
        let has_ended = |timeline: &Timeline| {
            let last = timeline.now() - 1;
            timeline.is_retired() && (timeline.observed() >= last || timeline.has_mark_for(last))
        };
        let is_unmarked = |timeline: &Timeline| timeline.is_of_other_thread() && !has_ended(timeline);
        let must_wait = self.all().iter().any(|timeline| is_unmarked(timeline));
        if must_wait { self.synchronize_device_unless_capturing() } else { Ok(true) }
    }

    /// Looks whether the work in `fence` is complete. Records a mark where there is none, so that a later
    /// look can tell, unless the stream is far behind. Returns whether anything new was learned.
    pub(crate) fn poll(&self, fence: &Fence) -> DeviceResult<bool> {
        let (all, mut learned) = (self.all(), false);
        for (id, tick) in fence.iter() {
            if let Some(timeline) = all.get(id) {
                learned |= timeline.look(tick)?;
            }
        }
        Ok(learned)
    }

    /// Makes later work on `stream` wait for `event`, which stands for the ticks in `after`.
    ///
    /// # Safety
    /// The event is valid on this device.
    pub(super) unsafe fn wait(
        &self,
        stream: &Timeline,
        event: EventHandle,
        after: &Fence,
    ) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        if unsafe { stream.wait(event, after) }? {
            let all = self.all();
            // Of those that are gone, and of what the host has waited for, everything is reached anyway.
            stream
                .prune_ordered_after(|id, tick| all.get(id).is_some_and(|other| other.synchronized() < tick));
        }
        Ok(())
    }

    /// Makes later work on `stream` wait for everything in `fence`. `false` where the device cannot be told to: a
    /// stream is gone without a mark, or either is being captured. The memory is not ready then.
    pub(crate) fn make_wait(&self, fence: &Fence, stream: &Timeline) -> DeviceResult<bool> {
        let mut asked = false;
        for (id, tick) in fence.iter() {
            if id == stream.id || stream.is_ordered_after(id, tick) {
                continue;
            }
            let Some(other) = self.get(id) else { continue };
            if other.synchronized() >= tick {
                continue;
            }
            if !asked && stream.is_captured(true)? != Some(false) {
                return Ok(false);
            }
            asked = true;
            let Some(mark) = other.mark(tick, false)? else { return Ok(false) };
            // SAFETY: the mark keeps its event.
            unsafe { self.wait(stream, mark.event().handle, &mark.clock) }?;
        }
        Ok(true)
    }

    /// Waits on the host until everything in `fence` is complete. Skips streams that are being captured, and, while
    /// pools know of a capture, what only a wait for the whole device could tell.
    pub(crate) fn wait_on_host(&self, fence: &Fence) -> DeviceResult<()> {
        for (id, tick) in fence.iter() {
            let Some(timeline) = self.get(id) else { continue };
            if timeline.synchronized() >= tick {
                continue;
            }
            match timeline.mark(tick, false)? {
                Some(mark) => {
                    mark.event().synchronize()?;
                    self.note_synchronized(&mark.clock);
                }
                None if timeline.is_captured(false)? == Some(true) => {}
                None => _ = self.synchronize_device_unless_capturing()?,
            }
        }
        Ok(())
    }
}

/// Answers whether many fences are ready for one stream, as one search asks. Locks are taken once. Drop it before any other
/// call to the timelines or the device.
pub(crate) struct ReadinessQuery<'a> {
    timelines: &'a Timelines,
    stream: &'a Timeline,
    policies: ReusePolicies,
    /// All timelines, locked at the first look.
    all: Option<RwLockReadGuard<'a, Table>>,
}

impl ReadinessQuery<'_> {
    /// Whether later work on the stream may use memory behind `fence`.
    #[inline]
    pub(crate) fn covers(&mut self, fence: &Fence) -> bool {
        fence.iter().all(|(id, tick)| id == self.stream.id || self.is_reached(id, tick))
    }

    #[inline]
    fn is_reached(&mut self, id: TimelineId, tick: Tick) -> bool {
        let all = self.all.get_or_insert_with(|| self.timelines.all());
        let ready = all.get(id).map_or(Tick::MAX, |timeline| timeline.ready_up_to(self.policies));
        ready >= tick || (self.policies.follows() && self.stream.is_ordered_after(id, tick))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::sim::{Call, SimDevice, SimOptions};
    use crate::device::{Device, DeviceError};
    use crate::order::Stream;
    use crate::testing::capturing::CapturingDevice;

    #[test]
    fn a_fence_forgets_complete_ticks_where_policies_allow_it() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let timelines = Timelines::new(sim.clone());
        let (idle, busy) = (Stream::create(&timelines).unwrap(), Stream::create(&timelines).unwrap());
        let hold = sim.hold(busy.handle()).unwrap();
        let pending = busy.fence();
        let mut fence = idle.fence();
        fence.join(&pending);
        assert!(timelines.poll(&fence).unwrap());
        let mut strict = fence.clone();
        timelines.prune(&mut strict, ReusePolicies { opportunistic: false, ..ReusePolicies::ALL });
        assert_eq!(strict, fence, "the host has waited for nothing");
        timelines.prune(&mut fence, ReusePolicies::ALL);
        assert_eq!(fence, pending);
        sim.release(hold);
    }

    #[test]
    fn a_few_marks_suffice_to_see_a_late_stream_complete() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let timelines = Timelines::new(sim.clone());
        let busy = Stream::create(&timelines).unwrap();
        let hold = sim.hold(busy.handle()).unwrap();
        let looks = if cfg!(miri) { 2 } else { 100 } * MANY as u64;
        for _ in 0..looks {
            assert!(!timelines.poll(&busy.fence()).unwrap());
        }
        let calls = sim.calls();
        assert_eq!(calls[Call::RecordEvent], MANY as u64);
        assert_eq!(calls[Call::StreamIsIdle], 1, "it had no mark then");
        assert_eq!(calls[Call::QueryEvent], looks - 1, "one for each look");
        let last = busy.fence();
        sim.release(hold);
        assert!(timelines.poll(&last).unwrap());
        assert!(timelines.is_complete(&last));
    }

    #[test]
    fn a_stream_waits_once_for_others_and_never_for_itself() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let timelines = Timelines::new(sim.clone());
        let (first, second) = (Stream::create(&timelines).unwrap(), Stream::create(&timelines).unwrap());
        let mut both = first.fence();
        both.join(&second.fence());
        for _ in 0..2 {
            assert!(timelines.make_wait(&both, second.timeline()).unwrap());
        }
        assert_eq!(sim.calls()[Call::WaitEvent], 1);
    }

    #[test]
    fn a_stream_that_others_wait_for_keeps_few_events() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let timelines = Timelines::new(sim.clone());
        let (first, second) = (Stream::create(&timelines).unwrap(), Stream::create(&timelines).unwrap());
        for _ in 0..1000 {
            assert!(timelines.make_wait(&first.fence(), second.timeline()).unwrap());
        }
        assert_eq!(sim.calls()[Call::WaitEvent], 1000, "each waited for what came since");
        assert!(sim.calls()[Call::CreateEvent] <= MANY as u64 + 1);
    }

    /// A stream of a device with captures, which is asked about while another thread begins to capture it.
    struct Race {
        device: Arc<CapturingDevice>,
        sim: Arc<SimDevice>,
        timelines: Arc<Timelines>,
        stream: Stream,
    }

    impl Race {
        fn new() -> Self {
            let sim = SimDevice::new(SimOptions::default()).unwrap();
            let device = CapturingDevice::new(sim.clone());
            let timelines = Timelines::new(device.clone());
            let stream = Stream::create(&timelines).unwrap();
            Self { device, sim, timelines, stream }
        }
    }

    #[test]
    fn a_mark_within_a_capture_is_none_and_adds_nobody() {
        let Race { device, sim, timelines, stream } = Race::new();
        let waiting = Stream::create(&timelines).unwrap();
        let hold = sim.hold(stream.handle()).unwrap();
        let fence = stream.fence();
        device.begin_capture_unseen(stream.handle());
        assert!(!timelines.make_wait(&fence, waiting.timeline()).unwrap());
        // SAFETY: the stream lives.
        let capture_of = |stream: &Stream| unsafe { device.capture_of(stream.handle()) };
        assert!(capture_of(&stream).unwrap().is_some(), "it began just then");
        assert_eq!(capture_of(&waiting), Ok(None));
        sim.release(hold);
        timelines.poll(&fence).unwrap();
        device.end_capture(stream.handle()).expect("no rule was broken");
        let created = sim.calls()[Call::CreateEvent];
        assert!(timelines.make_wait(&fence, waiting.timeline()).unwrap(), "a later mark closes the tick");
        assert_eq!(sim.calls()[Call::CreateEvent], created + 1, "by an event that no capture recorded");
    }

    #[test]
    fn during_known_captures_streams_are_not_asked_but_found_idle() {
        let Race { device, sim, timelines, stream } = Race::new();
        timelines.begin_capture();
        assert!(timelines.poll(&stream.fence()).unwrap(), "it is complete");
        let fence = stream.fence();
        device.begin_capture_unseen(stream.handle());
        assert!(!timelines.poll(&fence).unwrap());
        assert_eq!(sim.calls()[Call::StreamIsIdle], 0);
        device.end_capture(stream.handle()).expect("no rule was broken");
        timelines.end_capture();
        assert!(timelines.poll(&fence).unwrap() && timelines.is_complete(&fence));
    }

    #[test]
    fn asking_does_not_fail_for_a_capture_begun_unseen() {
        let Race { device, timelines, stream, .. } = Race::new();
        let fence = stream.fence();
        device.begin_capture_unseen(stream.handle());
        assert_eq!(timelines.poll(&fence), Ok(false));
        device.end_capture(stream.handle()).expect_err("its owner is");
        assert!(timelines.poll(&fence).unwrap());
    }

    #[test]
    fn work_that_a_mark_closed_before_a_capture_can_be_reached() {
        let Race { device, sim, timelines, stream } = Race::new();
        let hold = sim.hold(stream.handle()).unwrap();
        let marked = stream.fence();
        assert_eq!(timelines.poll(&marked), Ok(false));
        let later = stream.fence();
        device.begin_capture(stream.handle()).unwrap();
        assert!(timelines.can_be_reached(&marked) && !timelines.can_be_reached(&later));
        sim.release(hold);
        device.end_capture(stream.handle()).expect("no rule was broken");
        assert!(timelines.can_be_reached(&later));
    }

    #[test]
    fn a_question_that_fails_outside_of_captures_is_an_error() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let timelines = Timelines::new(sim.clone());
        let stream = Stream::create(&timelines).unwrap();
        let failed =
            DeviceError::Driver { call: "planned", code: 1, name: "PLANNED".to_owned(), text: String::new() };
        sim.fail_next(Call::StreamIsIdle, 1, failed.clone());
        assert_eq!(timelines.poll(&stream.fence()), Err(failed));
    }

    #[test]
    fn uses_of_ended_streams_are_forgotten_beside_many_pending_ones() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let timelines = Timelines::new(sim.clone());
        let mut uses = Fence::empty();
        let busy: Vec<_> = (0..MANY + 4).map(|_| Stream::create(&timelines).unwrap()).collect();
        let holds: Vec<_> = busy.iter().map(|stream| sim.hold(stream.handle()).unwrap()).collect();
        busy.iter().for_each(|stream| assert!(timelines.add_use(&mut uses, stream)));
        for _ in 0..20 * MANY {
            assert!(timelines.add_use(&mut uses, &Stream::create(&timelines).unwrap()));
        }
        assert!((busy.len()..4 * MANY).contains(&uses.len()), "{}", uses.len());
        holds.into_iter().for_each(|hold| sim.release(hold));
    }

    #[test]
    fn a_use_on_a_stream_that_is_gone_ends_with_its_last_mark() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let timelines = Timelines::new(sim.clone());
        let ends = Stream::create(&timelines).unwrap();
        let (mut uses, mut fence) = (Fence::empty(), Fence::empty());
        assert!(timelines.add_use(&mut uses, &ends));
        let hold = sim.hold(ends.handle()).unwrap();
        drop(ends);
        timelines.add_uses(&mut fence, &mut uses);
        assert!(!timelines.poll(&fence).unwrap() && !timelines.is_complete(&fence));
        sim.release(hold);
        assert!(timelines.poll(&fence).unwrap() && timelines.is_complete(&fence));
    }
}
