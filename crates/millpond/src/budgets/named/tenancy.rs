//! What a process has of a named budget, and how it asks the others for more.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;

use super::folder::{self, Folder};
use super::lease::Lease;
use super::look;
use super::mapped::Register;
use super::seat::{self, Seat};
use super::table::{Slot, lower};
use super::tenants::{LONGEST_NAME, is_a_name, largest_first, program};
use crate::error::{Error, Result};
use crate::figures::tenant::{SeenBudget, Tenant};
use crate::log::log;
use crate::policy::budgets::{PATIENCE, ROUND};
use crate::system::lock::Mutex;
use crate::system::process::{OfProcess, Process};

/// What has memory under the budget: a pool.
pub(crate) trait GivesBack: Send + Sync {
    /// Another process wants so many bytes. Gives free memory back, at most so much; returns the bytes given back.
    fn give_back_free(&self, wanted: u64, at_most: u64) -> u64;
}

/// What the present process has of a named budget. See the [module](self).
#[derive(Debug)]
pub(crate) struct Tenancy {
    pub(in crate::budgets) name: String,
    pub(in crate::budgets) path: PathBuf,
    register: Arc<Register>,
    /// Which slot of the register.
    at: usize,
    /// `None` once this is dropped.
    seat: Option<Seat>,
    /// Nanoseconds.
    patience: AtomicU64,
    givers: OfProcess<Mutex<Vec<Weak<dyn GivesBack>>>>,
    process: Process,
}

impl Tenancy {
    /// The limit of the budget with this name; `None` where no process has it.
    pub(in crate::budgets) fn limit_of(name: &str) -> Result<Option<u64>> {
        let place = Place::of(name)?;
        let register = Register::open_existing(&place.folder, name).map_err(|what| place.refused(what))?;
        Ok(register.and_then(|register| register.limit_in_use()))
    }

    /// Sets the limit of the budget with this name, whether or not anybody has it.
    pub(in crate::budgets) fn keep_limit(name: &str, bytes: u64) -> Result<()> {
        let place = Place::of(name)?;
        let failed = |what| place.refused(what);
        let me = Lease::mine().map_err(failed)?;
        place.until_it_stays(|register| {
            let stays = register.keep_limit(me, bytes);
            register.asks.fetch_add(1, Ordering::SeqCst);
            wake_all(&register.asks);
            Ok(stays.then_some(()))
        })
    }

    /// Removes the budget with this name, if no process has it; whether it did.
    pub(in crate::budgets) fn remove(name: &str) -> Result<bool> {
        let place = Place::of(name)?;
        let failed = |what| place.refused(what);
        let Some(register) = Register::open_existing(&place.folder, name).map_err(failed)? else {
            return Ok(false);
        };
        let mut removed = Ok(());
        let remove = || removed = std::fs::remove_file(place.path());
        let is_free = register.remove(Lease::mine().map_err(failed)?, remove).map_err(failed)?;
        removed.map_err(|error| place.refused(format!("it cannot be removed: {error}")))?;
        Ok(is_free)
    }

    /// The budget with this name, as it is now.
    pub(in crate::budgets) fn look(name: &str) -> Result<Option<SeenBudget>> {
        let place = Place::of(name)?;
        look::at(&place.path(), look::latest()).map_err(|what| place.refused(what))
    }

    /// All budgets that this process may look at.
    pub(in crate::budgets) fn look_at_all() -> Vec<SeenBudget> {
        look::all()
    }

    /// Joins the processes that have this budget, and starts the thread that answers them.
    pub(in crate::budgets) fn join(name: &str, limit: u64) -> Result<Arc<Self>> {
        let place = Place::of(name)?;
        let failed = |what: String| place.refused(what);
        let lease = Lease::mine().map_err(failed)?;
        let (register, seat) = place.until_it_stays(|register| {
            let seat = register.join(lease, limit)?;
            Ok(seat.map(|seat| (register, seat)))
        })?;
        let register = Arc::new(register);
        let present = register.limit.load(Ordering::SeqCst);
        if limit != present {
            log!(WARN, "a budget that others have keeps its limit", name, limit, present);
        }
        let tenancy = Arc::new(Self {
            name: name.to_owned(),
            path: place.path(),
            register: register.clone(),
            at: seat.slot,
            seat: Some(seat),
            patience: AtomicU64::new(PATIENCE.as_nanos() as u64),
            givers: OfProcess::default(),
            process: Process::here(),
        });
        let weak = Arc::downgrade(&tenancy);
        std::thread::Builder::new()
            .name("millpond-budget".to_owned())
            .spawn(move || answer(&register, &weak))
            .map_err(|error| {
                failed(format!("the thread that answers other processes cannot start: {error}"))
            })?;
        Ok(tenancy)
    }

    /// What `read` gives, with the register's lock; a forked child, and who does not get it, read without.
    fn locked<T>(&self, read: impl FnOnce(&Register) -> T) -> T {
        let _still = if self.process.is_here() { self.register.lock(self.at) } else { None };
        read(&self.register)
    }

    fn slot(&self) -> &Slot {
        &self.register.slots[self.at]
    }

    /// An error in a process that was forked from the one that joined: it would count as its parent.
    pub(in crate::budgets) fn check_process(&self) -> Result<()> {
        self.process.check().map_err(|_| Error::Forked)
    }

    pub(in crate::budgets) fn limit(&self) -> u64 {
        self.register.limit.load(Ordering::Relaxed)
    }

    /// For all processes. Those above it are asked to give back what is free.
    pub(in crate::budgets) fn set_limit(&self, bytes: u64) {
        if self.process.is_here() {
            self.register.limit.store(bytes, Ordering::SeqCst);
            self.wake();
        }
    }

    /// What all processes hold. Asks the system about each of them.
    pub(in crate::budgets) fn held(&self) -> u64 {
        self.register.settle_all();
        self.locked(Register::held)
    }

    /// As [`held`](Self::held), at once. Those that are gone may count, and memory that passes to another process
    /// meanwhile may count twice.
    pub(in crate::budgets) fn about_held(&self) -> u64 {
        self.register.held()
    }

    /// The most that this process may ever hold.
    pub(in crate::budgets) fn most(&self) -> u64 {
        self.limit().min(self.slot().claim.load(Ordering::Relaxed))
    }

    /// The limit that a request of so many bytes meets, and what is held under it.
    pub(in crate::budgets) fn limit_met(&self, bytes: u64) -> (u64, u64) {
        let (claim, mine) =
            (self.slot().claim.load(Ordering::Relaxed), self.slot().held.load(Ordering::Relaxed));
        if mine.saturating_add(bytes) > claim && claim <= self.limit() {
            return (claim, mine);
        }
        (self.limit(), self.about_held())
    }

    pub(in crate::budgets) fn take(&self, bytes: u64) -> bool {
        self.process.is_here() && self.register.take(self.at, bytes)
    }

    pub(in crate::budgets) fn give_back(&self, bytes: u64) {
        if self.process.is_here() {
            lower(&self.slot().held, bytes);
        }
    }

    pub(in crate::budgets) fn set_floor(&self, bytes: u64) -> Result<()> {
        self.check_process()?;
        self.register.settle_all();
        self.register.set_floor(self.at, bytes).map_err(|most| Error::BadOption {
            option: "floor",
            why: format!(
                "{bytes} bytes are more than budget '{}' has left beside the others' floors: use at most {most}, or lower theirs",
                self.name
            ),
        })
    }

    pub(in crate::budgets) fn set_claim(&self, bytes: u64) {
        if self.process.is_here() {
            self.slot().claim.store(bytes, Ordering::SeqCst);
        }
    }

    /// How long a request may wait for other processes.
    pub(crate) fn patience(&self) -> Duration {
        // Relaxed: a setting.
        Duration::from_nanos(self.patience.load(Ordering::Relaxed))
    }

    pub(in crate::budgets) fn set_patience(&self, patience: Duration) {
        // Relaxed: as above.
        self.patience.store(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The processes that have the budget: all, or the others.
    pub(crate) fn tenants(&self, all: bool) -> Vec<Tenant> {
        self.register.settle_all();
        let figures = |(_, slot, owner): (usize, &Slot, Lease)| {
            let [held, floor, claim] =
                [&slot.held, &slot.floor, &slot.claim].map(|word| word.load(Ordering::SeqCst));
            (owner, Tenant { pid: owner.pid(), program: String::new(), held, floor, claim })
        };
        let found: Vec<_> = self.locked(|register| {
            register.owned().filter(|(at, ..)| all || *at != self.at).map(figures).collect()
        });
        // Without the lock: to look for a process takes some microseconds.
        let named = found.into_iter().map(|(owner, tenant)| Tenant { program: program(owner), ..tenant });
        largest_first(named.collect())
    }

    /// A descriptor for others who open the memory at these addresses: it counts as long as anybody has that descriptor, or the
    /// file that it stands for, also after this process.
    pub(crate) fn lend(&self, addresses: Range<u64>) -> Result<OwnedFd> {
        seat::lend(self.register.file(), self.at, addresses).map_err(|error| {
            let what = format!("what is shared cannot be locked (F_OFD_SETLK): {error}");
            Error::SharedBudget { path: self.path.display().to_string(), what }
        })
    }

    /// A pool has the budget. An error in a forked child of the process whose budget it is.
    pub(crate) fn add_giver(&self, giver: Weak<dyn GivesBack>) -> Result<()> {
        self.check_process()?;
        let mut givers = self.givers.lock();
        givers.retain(|giver| giver.strong_count() > 0);
        givers.push(giver);
        Ok(())
    }

    // ---- asking ------------------------------------------------------------------------------------

    fn wake(&self) -> u32 {
        let ask = self.register.asks.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        wake_all(&self.register.asks);
        ask
    }

    /// Waits until the process may take so many bytes: asks the others, once at least, and again until the time is over.
    /// `false` where they do not hold so much beyond their floors, or did not give it back. The time begins again whenever
    /// something comes: many pages take long.
    pub(crate) fn ask(&self, bytes: u64, patience: Duration) -> bool {
        if !self.process.is_here() {
            return false;
        }
        let wants = &self.slot().wants;
        wants.fetch_add(bytes, Ordering::SeqCst);
        let mut waiting = (Instant::now(), 0);
        let mut round = ROUND;
        let has_room = loop {
            // Who is gone does not answer.
            self.register.settle_all();
            let room = self.register.room(self.at);
            if bytes <= room {
                break true;
            }
            if bytes > self.register.may_have(self.at) {
                break false;
            }
            if !self.wait_for_answers(self.wake(), bytes, round) {
                // Nor who left only children.
                self.register.look_for_ended(self.at);
            }
            let room = self.register.room(self.at);
            let left = patience_left(patience, room, &mut waiting);
            if bytes <= room || left.is_zero() {
                break bytes <= room;
            }
            // They may free something.
            std::thread::sleep(left.min(round));
            round = (round * 2).min(8 * ROUND);
        };
        lower(wants, bytes);
        has_room
    }

    /// Until there is room, or all have answered; `false` where the time was over first.
    fn wait_for_answers(&self, ask: u32, bytes: u64, patience: Duration) -> bool {
        let mut waiting = (Instant::now(), 0);
        loop {
            let answers = self.register.answers.load(Ordering::SeqCst);
            let room = self.register.room(self.at);
            if bytes <= room || self.register.others_answered(self.at, ask) {
                return true;
            }
            let left = patience_left(patience, room, &mut waiting);
            if left.is_zero() {
                return false;
            }
            wait(&self.register.answers, answers, Some(left));
        }
    }

    // ---- answering ---------------------------------------------------------------------------------

    /// Has the pools give back what others ask for, and what is beyond the limit; but what they hold up to the floor is
    /// theirs.
    fn give_what_is_wanted(&self) {
        // Who asked, and is gone, wants nothing any more.
        self.register.settle_all();
        let beyond_limit = self.about_held().saturating_sub(self.limit());
        let mut wanted = self.register.others_want(self.at).max(beyond_limit);
        let givers: Vec<_> = self.givers.lock().iter().filter_map(Weak::upgrade).collect();
        for giver in givers {
            let (held, floor) = (&self.slot().held, &self.slot().floor);
            let beyond_floor = held.load(Ordering::SeqCst).saturating_sub(floor.load(Ordering::SeqCst));
            if wanted == 0 || beyond_floor == 0 {
                return;
            }
            wanted = wanted.saturating_sub(giver.give_back_free(wanted, beyond_floor));
        }
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        if self.process.is_here()
            && let Some(seat) = self.seat.take()
        {
            self.register.leave(seat);
            // The thread that answers ends.
            self.wake();
        }
    }
}

/// What is left of a request's patience. It begins anew whenever there is more room than ever.
fn patience_left(patience: Duration, room: u64, (since, most_room): &mut (Instant, u64)) -> Duration {
    if room > *most_room {
        (*since, *most_room) = (Instant::now(), room);
    }
    patience.saturating_sub(since.elapsed())
}

/// What the thread does that answers other processes, as long as anybody has the budget.
fn answer(register: &Register, tenancy: &Weak<Tenancy>) {
    loop {
        let asks = register.asks.load(Ordering::SeqCst);
        let Some(tenancy) = tenancy.upgrade() else { return };
        let answered = &tenancy.slot().answered;
        if answered.load(Ordering::SeqCst) != asks {
            tenancy.give_what_is_wanted();
            answered.store(asks, Ordering::SeqCst);
            register.answers.fetch_add(1, Ordering::SeqCst);
            wake_all(&register.answers);
        }
        drop(tenancy);
        wait(&register.asks, asks, None);
    }
}

/// Where a register is.
struct Place<'a> {
    folder: Folder,
    name: &'a str,
}

impl<'a> Place<'a> {
    fn of(name: &'a str) -> Result<Self> {
        if !is_a_name(name) {
            return Err(Error::BadOption {
                option: "budget",
                why: format!("the name is '{name}': use 1 to {LONGEST_NAME} letters, digits, '-' and '_'"),
            });
        }
        let folder = folder::present();
        let folder =
            folder.map_err(|(path, what)| Error::SharedBudget { path: path.display().to_string(), what })?;
        Ok(Self { folder, name })
    }

    fn path(&self) -> PathBuf {
        self.folder.path.join(self.name)
    }

    /// The file or folder cannot be used.
    fn refused(&self, what: String) -> Error {
        Error::SharedBudget { path: self.path().display().to_string(), what }
    }

    /// Does this with the register, again as long as its file was removed meanwhile.
    fn until_it_stays<T>(
        &self,
        with: impl Fn(Register) -> std::result::Result<Option<T>, String>,
    ) -> Result<T> {
        /// Each time, somebody else removes the file at the same moment.
        const MOST: usize = 100;
        for _ in 0..MOST {
            let register = Register::open(&self.folder, self.name).map_err(|what| self.refused(what))?;
            if let Some(done) = with(register).map_err(|what| self.refused(what))? {
                return Ok(done);
            }
        }
        Err(self.refused("it is removed again and again: use another name".to_owned()))
    }
}

/// Waits until the word is another and somebody wakes it, or the time is over; or for no reason.
fn wait(word: &AtomicU32, seen: u32, patience: Option<Duration>) {
    let timeout = patience.and_then(|patience| futex::Timespec::try_from(patience).ok());
    // Not private: other processes wake it.
    match futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref()) {
        Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => {}
        // A sandbox without it.
        Err(_) => std::thread::sleep(Duration::from_millis(2)),
    }
}

fn wake_all(word: &AtomicU32) {
    // Fails only where `wait` does not wait for it either.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX.cast_unsigned());
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn memory_that_comes_slowly_is_waited_for() {
        let name = format!("slowly-{}", std::process::id());
        let tenancy = Tenancy::join(&name, 10).unwrap();
        let register = &tenancy.register;
        let seat = register.join(Lease::mine().unwrap(), 10).unwrap().unwrap();
        let other = seat.slot;
        assert!(register.take(other, 10));
        let patience = Duration::from_millis(400);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10 {
                    std::thread::sleep(Duration::from_millis(60));
                    lower(&register.slots[other].held, 1);
                }
            });
            assert!(tenancy.ask(10, patience), "all of it comes, after more than the patience");
        });
        assert!(tenancy.take(10) && !tenancy.ask(1, patience));
        std::fs::remove_file(&tenancy.path).unwrap();
    }

    /// A budget of the test's own, whose file is removed with it.
    struct Own(Arc<Tenancy>);

    impl Own {
        fn new(name: &str, limit: u64) -> Self {
            Self(Tenancy::join(&format!("{name}-{}", std::process::id()), limit).unwrap())
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0.path).unwrap();
        }
    }

    #[test]
    fn the_limit_that_a_request_meets_is_the_one_that_it_exceeds() {
        let own = Own::new("met", 100);
        own.0.set_claim(10);
        assert_eq!(own.0.limit_met(10), (100, 0), "the claim allows it");
        assert_eq!(own.0.limit_met(11), (10, 0));
    }

    #[test]
    fn who_left_only_children_is_found_while_others_are_asked() {
        let mut program = crate::fixtures::begin(std::process::Command::new("sleep").arg("1000"));
        let ended = Lease::of(program.id()).unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
        let own = Own::new("children", 10);
        let register = &own.0.register;
        let child = register.join(Lease::mine().unwrap(), 10).unwrap().unwrap();
        assert!(register.take(child.slot, 10));
        register.slots[child.slot].owner.store(ended.bits(), Ordering::SeqCst);
        assert!(!own.0.ask(1, Duration::ZERO), "the child has all of it");
        assert!(register.slots[child.slot].has_ended(), "nobody waits for it again");
    }

    /// Counts how often it is asked.
    #[derive(Default)]
    struct Counts(AtomicU32);

    impl GivesBack for Counts {
        fn give_back_free(&self, wanted: u64, _: u64) -> u64 {
            self.0.fetch_add(1, Ordering::SeqCst);
            wanted
        }
    }

    #[test]
    fn pools_give_back_what_others_want_and_no_more() {
        let own = Own::new("wanted", 100);
        let register = &own.0.register;
        let other = register.join(Lease::mine().unwrap(), 100).unwrap().unwrap();
        let givers: [Arc<Counts>; 2] = Default::default();
        let dynamic = |giver: &Arc<Counts>| -> Weak<dyn GivesBack> {
            let weak: Weak<Counts> = Arc::downgrade(giver);
            weak
        };
        givers.iter().for_each(|giver| own.0.add_giver(dynamic(giver)).unwrap());
        assert!(own.0.take(50));
        let asked = || givers.each_ref().map(|giver| giver.0.load(Ordering::SeqCst));
        own.0.give_what_is_wanted();
        assert_eq!((register.others_want(own.0.at), asked()), (0, [0, 0]));
        register.slots[other.slot].wants.store(7, Ordering::SeqCst);
        own.0.give_what_is_wanted();
        assert_eq!((register.others_want(own.0.at), asked()), (7, [1, 0]), "the first gave all of it");
        register.slots[other.slot].wants.store(0, Ordering::SeqCst);
        own.0.give_back(50);
    }
}
