//! What a pool with a delay knows, and one look at it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::thread::DecayThread;
use crate::core::{Core, HasCore, giving_back};
use crate::log::{log, warn_in_any_case};
use crate::policy::decay::{self, Due, Observation};
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// The variable that says the delay for all pools of a process.
const VARIABLE: &str = "MILLPOND_DECAY";

/// The delay that the environment asks for, in seconds; zero for "off". `None` where it asks for nothing.
pub(crate) fn from_environment() -> Option<Duration> {
    let text = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty())?;
    let delay = read(&text);
    if delay.is_none() {
        warn_in_any_case(&format!(
            "{VARIABLE} is ignored: it is '{text}': use seconds, such as 1 or 0.5, or off"
        ));
    }
    delay
}

fn read(text: &str) -> Option<Duration> {
    if text == "off" {
        return Some(Duration::ZERO);
    }
    text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// The delay of a pool; nothing where free memory stays.
#[derive(Debug, Default)]
pub(crate) struct Decay(OfProcess<Mutex<Option<Decaying>>>);

#[derive(Debug)]
struct Decaying {
    delay: Duration,
    policy: decay::Decay,
    thread: Arc<DecayThread>,
}

impl Decay {
    /// The delay, if there is one.
    pub(crate) fn get(&self) -> Option<Duration> {
        OfProcess::here(&self.0)?.lock().as_ref().map(|decaying| decaying.delay)
    }

    /// Has free memory go back after this delay from now on, or not any more. Where the system has no thread for that, it stays.
    pub(crate) fn set(self: &Arc<Self>, pool: &Arc<impl HasCore + 'static>, delay: Option<Duration>) {
        let core = pool.core();
        let Some(own) = OfProcess::here(&self.0) else { return };
        let before = self.take(core);
        let Some(delay) = delay.filter(|delay| !delay.is_zero()) else { return };
        // What a pool keeps in use, the next one finds.
        let thread = match DecayThread::get() {
            Ok(thread) => thread,
            Err(error) => {
                return log!(WARN, "what a pool no longer uses stays held", error, pool = core.name);
            }
        };
        drop(before);
        let policy = decay::Decay::new(delay, core.now());
        *own.lock() = Some(Decaying { delay, policy, thread: thread.clone() });
        let own = Arc::downgrade(self);
        let look = move |core: &Core| own.upgrade()?.look(core);
        let pool: Arc<dyn HasCore> = pool.clone();
        thread.enter(core.number, Arc::downgrade(&pool), Arc::new(look));
    }

    /// Has the thread look at the pool no more, and waits for a look that is under way: so the pool ends in the thread that drops
    /// it.
    pub(crate) fn end(&self, core: &Core) {
        drop(self.take(core));
    }

    /// As [`end`](Self::end). Returns what keeps the thread.
    fn take(&self, core: &Core) -> Option<Arc<DecayThread>> {
        let ended = OfProcess::here(&self.0)?.lock().take()?;
        ended.thread.leave(core);
        Some(ended.thread)
    }

    /// One look at a pool: gives back what is due. Returns how long until the next; `None` where the pool has no delay.
    fn look(&self, core: &Core) -> Option<Duration> {
        let own = OfProcess::here(&self.0)?;
        let (due, now) = {
            let mut own = own.lock();
            let now = core.now();
            let stats = core.stats();
            let seen = Observation {
                now,
                requests: stats.allocations.wrapping_add(stats.frees),
                used: stats.allocated.current,
                peak: core.peak_since_mark(),
                reserved: stats.reserved.current,
            };
            (own.as_mut()?.policy.look(&seen), now)
        };
        match due {
            Due::Nothing => {}
            Due::Mark => core.mark_high_water(),
            Due::Trim(keep) => {
                // Relaxed: a setting. What the program said that the pool may keep stays; by default it said nothing.
                let threshold = core.release_threshold.load(Ordering::Relaxed);
                let floor = if threshold == u64::MAX { 0 } else { threshold };
                let trimmed = giving_back::trim(core, keep.max(floor));
                if let Err(error) = &trimmed {
                    log!(WARN, "what a pool no longer uses stays held", error, pool = core.name);
                }
                // Also what the trim itself took is behind.
                own.lock().as_mut()?.policy.gave_back(trimmed.unwrap_or(0), core.now());
            }
        }
        Some(own.lock().as_ref()?.policy.pause(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Bench, Freeing, MIB};
    use crate::policy::decay::DELAY;

    /// A pool whose looks the test makes: the thread makes none in this time. The clock is the simulated device's.
    fn bench() -> Bench {
        Bench::new(|pool| pool.decay(Duration::from_secs(1 << 30)))
    }

    fn asked(bench: &Bench, delay: Duration) {
        let own = &bench.pool.inner().decay;
        let mut own = own.0.lock();
        own.as_mut().unwrap().policy = decay::Decay::new(delay, bench.sim.now());
    }

    /// Looks once in each quarter of these seconds, before which the program does something.
    fn pass(bench: &Bench, seconds: u32, mut each: impl FnMut()) {
        for _ in 0..4 * seconds {
            each();
            bench.sim.advance_to(bench.sim.now() + DELAY / 4);
            bench.pool.inner().decay.look(bench.pool.inner()).unwrap();
        }
    }

    fn reserved(bench: &Bench) -> u64 {
        bench.pool.reserved().current
    }

    #[test]
    fn a_quiet_pool_gives_back_all_but_what_is_live() {
        let bench = bench();
        asked(&bench, DELAY);
        let live = bench.pool.alloc(100 * MIB, &bench.stream).unwrap();
        let free = bench.pool.alloc(1000 * MIB, &bench.stream).unwrap();
        pass(&bench, 5, || ());
        assert_eq!(reserved(&bench), 1100 * MIB, "it is live");
        bench.pool.free_block(free, &bench.stream).unwrap();
        pass(&bench, 1, || ());
        assert_eq!(reserved(&bench), 1100 * MIB, "not at once");
        pass(&bench, 1, || ());
        assert_eq!(reserved(&bench), 100 * MIB);
        assert_eq!(bench.pool.stats().allocated.high, 1100 * MIB);
        bench.pool.free_block(live, &bench.stream).unwrap();
        pass(&bench, 2, || ());
        assert_eq!(reserved(&bench), 0);
        bench.pool.check().unwrap();
    }

    #[test]
    fn a_busy_pool_gives_back_what_it_no_longer_uses() {
        let bench = bench();
        asked(&bench, DELAY);
        let step = |mib: u64| {
            let blocks: Vec<_> = (0..mib).map(|_| bench.pool.alloc(MIB, &bench.stream).unwrap()).collect();
            blocks.into_iter().for_each(|ptr| bench.pool.free_block(ptr, &bench.stream).unwrap());
        };
        pass(&bench, 5, || step(1000));
        assert_eq!(reserved(&bench), 1000 * MIB, "each step uses all");
        let created = bench.pool.stats().calls.create;
        pass(&bench, 5, || step(100));
        assert!((100 * MIB..200 * MIB).contains(&reserved(&bench)), "{}", reserved(&bench));
        assert_eq!(bench.pool.stats().calls.create, created, "what is used stays");
        assert_eq!(bench.pool.stats().allocated.high, 1000 * MIB, "marks are the program's own");
        bench.pool.reset_high_water();
        assert_eq!(bench.pool.stats().allocated.high, 0);
        bench.pool.check().unwrap();
    }

    #[test]
    fn what_pending_work_uses_stays_and_so_does_what_the_program_keeps() {
        let bench = bench();
        asked(&bench, DELAY);
        bench.pool.set_release_threshold(300 * MIB);
        let [one, other] = [600, 200].map(|mib| bench.pool.alloc(mib * MIB, &bench.stream).unwrap());
        let held = bench.sim.hold(bench.stream.handle()).unwrap();
        [one, other].into_iter().for_each(|ptr| bench.pool.free_block(ptr, &bench.stream).unwrap());
        pass(&bench, 8, || ());
        assert_eq!(reserved(&bench), 800 * MIB);
        bench.sim.release(held);
        // No later than twice as long as the work took.
        pass(&bench, 8, || ());
        // By whole pages.
        assert!((200 * MIB..=300 * MIB).contains(&reserved(&bench)), "{}", reserved(&bench));
    }

    #[test]
    fn the_delay_is_read_or_refused() {
        let millis = Duration::from_millis;
        for (text, delay) in
            [("1", millis(1000)), ("0.25", millis(250)), ("0", millis(0)), ("off", millis(0))]
        {
            assert_eq!(read(text), Some(delay), "{text}");
        }
        assert!(["soon", "-1", "1s", "inf", "nan", "1e99"].iter().all(|text| read(text).is_none()));
    }

    #[test]
    fn the_thread_ends_with_the_last_pool() {
        let bench = bench();
        let thread = || Arc::downgrade(&bench.pool.inner().decay.0.lock().as_ref().unwrap().thread);
        let first = thread();
        assert_eq!(bench.pool.decay(), Some(Duration::from_secs(1 << 30)));
        bench.pool.set_decay(Some(DELAY));
        assert!(first.ptr_eq(&thread()) || first.upgrade().is_none(), "another test may keep it");
        bench.pool.set_decay(None);
        assert_eq!(bench.pool.decay(), None);
        assert_eq!(bench.pool.inner().decay.look(bench.pool.inner()), None);
    }
}
