//! The register of a named budget: a page of memory that processes share, in which each has a slot.
//!
//! **It is right at every instruction.** A slot says in one word what its process holds. The sum is not kept: it is
//! computed over all slots, so that no step lies between a slot and the sum.
//!
//! **Whose a slot is.** Who has the [seat](super::seat) of a slot may claim and clear it. A process has its own as long as
//! it, or a child that it forked, has the driver's descriptors. Then its slot is [settled](Register::settle_all) by whoever looks:
//! it is cleared, or it counts what others have open of its memory, as long as they do.
//!
//! **Who may write.** A slot grows under the register's lock, a word with its holder's slot. The lock of a process that is gone is
//! taken over: it left nothing half done. What a process holds may shrink at any time, without the lock.
//!
//! **What is mapped may hold anything** ([why](super::mapped)). So all of it is atomic words, any value of each has a meaning, and
//! sums saturate. A slot counts for nothing where nobody has its seat, whatever stands there.

use std::io;
use std::time::Duration;

use super::lease::Lease;
use super::mapped::Register;
use super::modelled::{Patience, SLOTS};
use super::seat::{self, Claim, Seat};
use super::table::{ORDER, Slot};
use crate::log::log;
use crate::policy::budgets::ROUND;
use crate::policy::other_processes::STOPPED;

impl Register {
    // ---- slots -------------------------------------------------------------------------------------

    /// Slots that have an owner, by their number.
    pub(super) fn owned(&self) -> impl Iterator<Item = (usize, &Slot, Lease)> {
        let used = (self.used.load(ORDER) as usize).min(SLOTS);
        let slots = self.slots[..used].iter().enumerate();
        slots.filter_map(|(at, slot)| Some((at, slot, slot.owner()?)))
    }

    fn others(&self, mine: usize) -> impl Iterator<Item = &Slot> {
        self.owned().filter(move |(at, ..)| *at != mine).map(|(_, slot, _)| slot)
    }

    fn sum_of<'a>(slots: impl Iterator<Item = &'a Slot>, bytes: impl Fn(&Slot) -> u64) -> u64 {
        slots.fold(0, |sum, slot| sum.saturating_add(bytes(slot)))
    }

    /// Bytes that all processes hold. Without the lock, memory may pass from one to another meanwhile, and count twice.
    pub(super) fn held(&self) -> u64 {
        Self::sum_of(self.owned().map(|(_, slot, _)| slot), |slot| slot.held.load(ORDER))
    }

    /// Bytes that the process with this slot may take now: up to its floor, what nobody holds; beyond it, what is kept for
    /// nobody.
    pub(super) fn room(&self, mine: usize) -> u64 {
        let slot = &self.slots[mine];
        let (held, limit) = (slot.held.load(ORDER), self.limit.load(ORDER));
        let left = |theirs: u64| limit.saturating_sub(theirs).saturating_sub(held);
        let beyond_floor = left(Self::sum_of(self.others(mine), Slot::counted));
        let unheld = left(Self::sum_of(self.others(mine), |slot| slot.held.load(ORDER)));
        let within_floor = unheld.min(slot.floor.load(ORDER).saturating_sub(held));
        beyond_floor.max(within_floor).min(slot.claim.load(ORDER).saturating_sub(held))
    }

    /// Bytes that the process with this slot might take, if the others gave back all that they hold beyond their floors.
    pub(super) fn may_have(&self, mine: usize) -> u64 {
        let slot = &self.slots[mine];
        let beyond_floor = |slot: &Slot| slot.held.load(ORDER).saturating_sub(slot.floor.load(ORDER));
        let might = self.room(mine).saturating_add(Self::sum_of(self.others(mine), beyond_floor));
        might.min(slot.claim.load(ORDER).saturating_sub(slot.held.load(ORDER)))
    }

    /// Bytes that the others ask for.
    pub(super) fn others_want(&self, mine: usize) -> u64 {
        Self::sum_of(self.others(mine).filter(|slot| !slot.has_ended()), |slot| slot.wants.load(ORDER))
    }

    /// Whether all others that run have answered this request.
    pub(super) fn others_answered(&self, mine: usize, ask: u32) -> bool {
        self.others(mine).all(|slot| slot.has_answered(ask) || slot.has_ended())
    }

    /// Finds those that run no more among the others whose answer is missing.
    pub(super) fn look_for_ended(&self, mine: usize) {
        let asks = self.asks.load(ORDER);
        for slot in self.others(mine).filter(|slot| !slot.has_answered(asks)) {
            if let Some(owner) = slot.owner().filter(|owner| !owner.is_alive()) {
                // Means nothing if the slot is another one's by now.
                slot.ended.store(owner.bits(), ORDER);
            }
        }
    }

    // ---- who has which ------------------------------------------------------------------------------

    /// The limit, if a process has the budget, or it was set for those that come.
    pub(super) fn limit_in_use(&self) -> Option<u64> {
        self.settle_all();
        let is_in_use = || self.owned().any(|(_, slot, _)| slot.joined.load(ORDER) != 0);
        (self.kept.load(ORDER) != 0 || is_in_use()).then(|| self.limit.load(ORDER))
    }

    /// Sets the limit for all processes, also for those that come. `false` where the file was removed before.
    pub(super) fn keep_limit(&self, me: Lease, bytes: u64) -> bool {
        self.settle_all();
        // Where all slots are taken, nobody comes who would set another one.
        let seat = self.take_seat(me).ok();
        let locked = seat.as_ref().and_then(|seat| self.lock(seat.slot));
        self.limit.store(bytes, ORDER);
        self.kept.store(1, ORDER);
        drop(locked);
        if let Some(seat) = seat {
            self.leave(seat);
        }
        !self.is_removed()
    }

    /// A slot for the process. The first process sets the limit, unless it was set for all. `None` where the file was removed
    /// before: who comes later finds another one.
    pub(super) fn join(&self, me: Lease, limit: u64) -> Result<Option<Seat>, String> {
        self.settle_all();
        let seat = self.take_seat(me)?;
        let Some(_locked) = self.lock(seat.slot) else {
            self.leave(seat);
            let what =
                "its lock is held by a process that does not go on: resume that process, or use another name";
            return Err(what.to_owned());
        };
        if self.is_removed() {
            self.leave(seat);
            return Ok(None);
        }
        if self.kept.load(ORDER) == 0 && self.is_alone(seat.slot) {
            self.limit.store(limit, ORDER);
        }
        self.slots[seat.slot].joined.store(1, ORDER);
        Ok(Some(seat))
    }

    /// Whether no other process has joined.
    fn is_alone(&self, mine: usize) -> bool {
        self.others(mine).all(|slot| slot.joined.load(ORDER) == 0)
    }

    /// Calls `remove` if no process has the budget, and nobody joins meanwhile; whether it did.
    pub(super) fn remove(&self, me: Lease, remove: impl FnOnce()) -> Result<bool, String> {
        self.settle_all();
        let seat = self.take_seat(me)?;
        let locked = self.lock(seat.slot);
        let is_free = locked.is_some() && !self.is_removed() && self.is_alone(seat.slot);
        if is_free {
            remove();
        }
        drop(locked);
        self.leave(seat);
        Ok(is_free)
    }

    /// A slot that is nobody's, with its seat.
    fn take_seat(&self, me: Lease) -> Result<Seat, String> {
        let failed = |error: io::Error| {
            format!("it cannot be locked (F_OFD_SETLK): {error}: does the system have such locks, and /proc?")
        };
        // What stands behind the used ones was never a process's.
        let is_free = |at: usize, slot: &Slot| at >= self.used.load(ORDER) as usize || slot.owner().is_none();
        for (at, slot) in self.slots.iter().enumerate().filter(|(at, slot)| is_free(*at, slot)) {
            let Some(claim) = Claim::take(self.file(), at).map_err(failed)? else { continue };
            // Somebody else was faster, and has ended.
            if !is_free(at, slot) {
                continue;
            }
            for word in [&slot.held, &slot.floor, &slot.wants, &slot.ended] {
                word.store(0, ORDER);
            }
            slot.claim.store(u64::MAX, ORDER);
            slot.joined.store(0, ORDER);
            slot.answered.store(self.asks.load(ORDER), ORDER);
            slot.spaces.store(me.spaces(), ORDER);
            let seat = claim.keep().map_err(failed)?;
            // Before it has an owner: who has the lock sees all that ever took memory.
            self.used.fetch_max(at as u32 + 1, ORDER);
            // The owner last: until then, it is nobody's.
            slot.owner.store(me.bits(), ORDER);
            return Ok(seat);
        }
        Err(format!("{SLOTS} processes have it, which is the most: end one, or use another name"))
    }

    /// Gives the slot up. One that still holds something stays until the process ends: its memory is lost, not free.
    pub(super) fn leave(&self, seat: Seat) {
        let slot = &self.slots[seat.slot];
        if slot.held.load(ORDER) > 0 {
            // As long as the process lives.
            std::mem::forget(seat);
        } else if let Some(owner) = slot.owner() {
            slot.held.store(seat::lent_bytes(self.file(), seat.slot, None), ORDER);
            slot.settle(owner, u64::MAX);
        }
    }

    /// Settles the slots of processes that are gone, and of their children.
    pub(super) fn settle_all(&self) {
        // The seat of who is there is taken: one call of the system.
        for (at, slot, _) in self.owned().filter(|(at, ..)| !seat::is_taken(self.file(), *at)) {
            // Nobody takes the slot meanwhile. If that fails, somebody else settles it.
            let Ok(Some(_claim)) = Claim::take(self.file(), at) else { continue };
            // A process that ends may let go of its seat before the driver has its memory back: its threads end at once. One
            // that becomes another program lets go of its seat last.
            if let Some(owner) = slot.owner().filter(|owner| !owner.is_ending()) {
                slot.settle(owner, seat::lent_bytes(self.file(), at, None));
            }
        }
    }

    // ---- with the lock ------------------------------------------------------------------------------

    /// Takes `bytes` for the process with this slot, or nothing.
    pub(super) fn take(&self, mine: usize, bytes: u64) -> bool {
        let Some(_locked) = self.lock(mine) else { return false };
        let fits = bytes <= self.room(mine);
        if fits {
            // The room was computed with it, so that the sum does not overflow.
            self.slots[mine].held.fetch_add(bytes, ORDER);
        }
        fits
    }

    /// Keeps `bytes` for the process with this slot, or says how much can be kept.
    pub(super) fn set_floor(&self, mine: usize, bytes: u64) -> Result<(), u64> {
        let Some(_locked) = self.lock(mine) else { return Err(0) };
        let others = Self::sum_of(self.others(mine), |slot| slot.floor.load(ORDER));
        let most = self.limit.load(ORDER).saturating_sub(others);
        if bytes > most {
            return Err(most);
        }
        self.slots[mine].floor.store(bytes, ORDER);
        Ok(())
    }

    /// Waits for the lock; `None` where its holder is there, but does not go on.
    pub(super) fn lock(&self, mine: usize) -> Option<Locked<'_>> {
        let mut patience = Patience::default();
        let mut seen = self.lock.load(ORDER);
        loop {
            // Each taking has a number of its own: who looked at an earlier one cannot take this one over.
            let free = (seen | holder(u64::MAX)).wrapping_add(1);
            let waited = patience.waited();
            if holder(seen) == 0 || waited.is_some_and(|waited| self.is_left_behind(seen, waited)) {
                match self.lock.compare_exchange(seen, free | (mine as u64 + 1), ORDER, ORDER) {
                    Ok(_) => return Some(Locked { register: self, free }),
                    Err(other) => seen = other,
                }
                continue;
            }
            if waited.is_some_and(|waited| waited >= STOPPED) {
                log!(WARN, "the lock of a budget does not come free", slot = holder(seen));
                return None;
            }
            patience.wait();
            seen = self.lock.load(ORDER);
        }
    }

    /// Whether nobody goes on with the lock: the holder's seat is free, or only its children have that.
    fn is_left_behind(&self, lock: u64, waited: Duration) -> bool {
        let at = holder(lock) as usize - 1;
        // A number that no slot has is no holder's.
        let Some(slot) = self.slots.get(at) else { return true };
        let owner = slot.owner();
        // To look for it in `/proc` takes some microseconds.
        let runs = |owner: Lease| waited < ROUND || owner.is_alive();
        !seat::is_taken(self.file(), at) || !owner.is_some_and(runs)
    }
}

/// Who has the lock: a slot, counted from 1, or 0.
fn holder(lock: u64) -> u64 {
    const BITS: u64 = (SLOTS as u64 + 1).next_power_of_two() - 1;
    lock & BITS
}

/// As long as it lives, nobody else takes memory, or joins.
pub(super) struct Locked<'a> {
    register: &'a Register,
    /// What the lock is afterwards.
    free: u64,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.register.lock.store(self.free, ORDER);
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use std::fs;
    use std::ops::Range;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::sync::OnceLock;

    use super::super::folder;
    use super::*;
    use crate::fixtures::{begin, nobody_begins};
    use crate::system::lock::RwLockReadGuard;
    use crate::system::open_file::keep_open;

    const MIB: u64 = 1 << 20;

    /// How long a process of another namespace counts as ending.
    const GONE_AFTER: Duration = crate::policy::other_processes::PATIENCE;

    /// A folder of the test's own, and who has a register in it is not changed by other tests meanwhile.
    type Folder = (tempfile::TempDir, RwLockReadGuard<'static, ()>);

    fn in_folder() -> (Folder, std::path::PathBuf) {
        // It begins a process.
        gone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("register");
        ((folder, nobody_begins()), path)
    }

    fn open(path: &Path) -> Register {
        let folder = folder::Folder { path: path.parent().unwrap().into(), mode: 0o600, is_shared: false };
        Register::open(&folder, "register").unwrap()
    }

    fn lend(register: &Register, slot: usize, addresses: Range<u64>) -> OwnedFd {
        seat::lend(register.file(), slot, addresses).unwrap()
    }

    impl Register {
        fn joined(&self, limit: u64) -> Seat {
            self.join(Lease::mine().unwrap(), limit).unwrap().unwrap()
        }

        /// Settles all; whether anything is less now.
        fn settles(&self) -> bool {
            let state = || (self.owned().count(), self.held());
            let before = state();
            self.settle_all();
            state() != before
        }

        fn settled(&self) -> u64 {
            self.settle_all();
            self.held()
        }

        /// A slot of a process, as it is when it is killed: its owner, and nobody at its seat.
        fn left_by(&self, owner: Lease, held: u64) -> usize {
            let slot = self.joined(0).slot;
            self.slots[slot].owner.store(owner.bits(), ORDER);
            self.slots[slot].held.store(held, ORDER);
            slot
        }
    }

    /// A process that waits.
    struct Waits(Child);

    impl Waits {
        fn new() -> Self {
            Self(begin(Command::new("sleep").arg("1000").stdin(Stdio::null())))
        }

        fn lease(&self) -> Lease {
            Lease::of(self.0.id()).unwrap()
        }
    }

    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    /// The lease of a process that is gone.
    fn gone() -> Lease {
        static GONE: OnceLock<Lease> = OnceLock::new();
        *GONE.get_or_init(|| Waits::new().lease())
    }

    #[test]
    fn processes_never_take_more_than_the_limit_together() {
        let (_folder, path) = in_folder();
        let (register, again) = (open(&path), open(&path));
        let seats = (register.joined(10), again.joined(99));
        let (first, second) = (seats.0.slot, seats.1.slot);
        assert_eq!((first, second, again.limit.load(ORDER)), (0, 1, 10));
        assert!(register.take(first, 6) && !again.take(second, 5) && again.take(second, 4));
        assert_eq!((register.held(), register.room(first)), (10, 0));
        assert!(!again.take(second, u64::MAX));
        register.slots[first].held.fetch_sub(6, ORDER);
        assert!(again.take(second, 6));
        again.slots[second].held.store(0, ORDER);
        register.leave(seats.0);
        again.leave(seats.1);
        assert_eq!(register.owned().count(), 0);
        assert_eq!(register.limit_in_use(), None);
        // Nobody is there: who comes sets the limit.
        assert_eq!((register.joined(20).slot, again.limit.load(ORDER)), (0, 20));
    }

    #[test]
    fn floors_are_left_alone_and_claims_are_kept() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let seats = (register.joined(10), register.joined(10));
        let (first, second) = (seats.0.slot, seats.1.slot);
        register.set_floor(first, 4).unwrap();
        assert_eq!((register.room(first), register.room(second)), (10, 6));
        assert_eq!(register.set_floor(second, 7), Err(6));
        assert!(register.take(second, 6) && !register.take(second, 1));
        assert!(register.take(first, 4) && !register.take(first, 1));
        // A limit below what is held forbids all, floors or not; but not what nobody holds of a floor.
        register.limit.store(8, ORDER);
        assert_eq!((register.room(first), register.room(second)), (0, 0));
        register.slots[first].held.store(1, ORDER);
        assert_eq!((register.room(first), register.room(second)), (1, 0));
        register.limit.store(100, ORDER);
        register.slots[second].claim.store(8, ORDER);
        assert_eq!((register.room(second), register.may_have(second)), (2, 2));
        assert_eq!((register.room(first), register.may_have(first)), (93, 99));
    }

    #[test]
    fn what_a_process_that_is_gone_held_and_locked_comes_back() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let mine = register.joined(10);
        let theirs = register.left_by(gone(), 9);
        register.lock.store((7 << 11) | (theirs as u64 + 1), ORDER);
        assert!(!register.take(mine.slot, 2), "it counts until somebody looks");
        assert_eq!(register.lock.load(ORDER), 8 << 11, "the lock was taken over, and is free");
        assert!(register.settles() && !register.settles());
        assert!(register.take(mine.slot, 10) && register.owned().count() == 1);
    }

    #[test]
    fn a_slot_counts_as_long_as_somebody_has_its_seat() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let (mine, child) = (register.joined(10), register.joined(10));
        // The process is gone, and its child has the seat.
        register.slots[child.slot].owner.store(gone().bits(), ORDER);
        assert!(register.take(child.slot, 9) && !register.settles());
        assert!(!register.take(mine.slot, 2));
        // It answers nobody, and nobody waits for it.
        let ask = register.asks.fetch_add(1, ORDER) + 1;
        assert!(!register.others_answered(mine.slot, ask));
        register.look_for_ended(mine.slot);
        assert!(register.others_answered(mine.slot, ask));
        drop(child);
        assert!(register.settles() && register.take(mine.slot, 10));
    }

    #[test]
    fn a_process_that_became_another_program_lets_go_of_slot_and_lock() {
        let program = Waits::new();
        let (_folder, path) = in_folder();
        let register = open(&path);
        let mine = register.joined(10);
        let theirs = register.left_by(program.lease(), 9);
        // One of its threads had the lock.
        register.lock.store(theirs as u64 + 1, ORDER);
        assert!(!register.take(mine.slot, 2), "the lock is taken over at once");
        assert!(register.settles() && register.take(mine.slot, 10));
    }

    #[test]
    fn who_looked_at_an_earlier_holder_does_not_take_the_lock_of_a_later_one() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let mine = register.joined(10);
        let before = register.lock.load(ORDER);
        let taken = || {
            let _locked = register.lock(mine.slot).unwrap();
            register.lock.load(ORDER)
        };
        let (first, second) = (taken(), taken());
        assert_eq!((holder(first), holder(second)), (1, 1));
        assert_ne!(first, second, "the same slot, and another taking");
        assert!(before != register.lock.load(ORDER));
    }

    #[test]
    fn what_others_have_open_of_a_process_that_is_gone_counts() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let mine = register.joined(100);
        let theirs = register.left_by(gone(), 90);
        let (large, small) = (lend(&register, theirs, 1000..1060), lend(&register, theirs, 1050..1070));
        assert!(register.settles() && !register.settles());
        assert_eq!(register.held(), 70);
        assert!(register.slots[theirs].has_ended(), "nobody waits for its answers");
        assert!(register.take(mine.slot, 30) && !register.take(mine.slot, 1));
        // Who comes now does not set the limit, nor gets the slot.
        let next = register.joined(5);
        assert_eq!((register.limit.load(ORDER), next.slot), (100, theirs + 1));
        drop(large);
        assert_eq!(register.settled(), 50);
        // The opener's process has it without a descriptor.
        let kept = keep_open(&small).unwrap();
        drop(small);
        assert!(!register.settles());
        drop(kept);
        assert_eq!(register.settled(), 30);
        assert_eq!(register.owned().count(), 2);
    }

    #[test]
    fn what_others_have_open_counts_for_no_more_than_was_held() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let theirs = register.left_by(gone(), 90);
        let _everything = lend(&register, theirs, 0..1 << 50);
        register.settle_all();
        assert_eq!(register.held(), 90);
    }

    #[test]
    fn a_slot_is_settled_by_one_at_a_time() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let theirs = register.left_by(gone(), 9);
        let claim = Claim::take(register.file(), theirs).unwrap().unwrap();
        assert!(!register.settles(), "somebody else does");
        assert_eq!(register.joined(10).slot, theirs + 1);
        drop(claim);
        assert!(register.settles());
    }

    #[test]
    fn who_is_killed_while_it_joins_or_settles_leaves_nothing() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        // It has the seat, and is no owner yet; then it is, and has not joined; or it has written half of a settled slot.
        for step in 0..3 {
            let at = register.left_by(gone(), 0);
            let slot = &register.slots[at];
            slot.joined.store(0, ORDER);
            match step {
                0 => slot.owner.store(0, ORDER),
                1 => slot.claim.store(7, ORDER),
                _ => slot.ended.store(slot.owner.load(ORDER), ORDER),
            }
            assert_eq!(register.limit_in_use(), None, "nobody has joined");
            assert_eq!(register.owned().count(), 0);
        }
        let seat = register.joined(10);
        assert_eq!((seat.slot, register.room(0), register.limit.load(ORDER)), (0, 10, 10));
    }

    #[test]
    fn what_is_lost_counts_as_long_as_its_process_lives() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let (mine, lost) = (register.joined(10), register.joined(10));
        assert!(register.take(lost.slot, 4));
        register.leave(lost);
        assert!(!register.settles() && !register.take(mine.slot, 7));
    }

    #[test]
    fn who_leaves_what_others_have_open_leaves_it_counted() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let (mine, theirs) = (register.joined(10), register.joined(10));
        let lent = lend(&register, theirs.slot, 0..4);
        register.leave(theirs);
        assert!(!register.settles() && !register.take(mine.slot, 7));
        drop(lent);
        assert_eq!(register.settled(), 0);
        assert!(register.take(mine.slot, 10));
    }

    #[test]
    fn a_full_table_refuses_the_next_process() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let mut seats: Vec<_> = (0..SLOTS).map(|_| register.joined(10)).collect();
        assert!(seats.iter().enumerate().all(|(at, seat)| seat.slot == at));
        let refused = register.join(Lease::mine().unwrap(), 10).unwrap_err();
        assert!(refused.starts_with("1024 processes have it"), "{refused}");
        assert!(register.keep_limit(Lease::mine().unwrap(), 20), "also then");
        register.leave(seats.remove(5));
        assert_eq!(register.joined(10).slot, 5);
        // All killed at once: there is room again.
        seats.into_iter().for_each(drop);
        assert_eq!(register.joined(20).slot, 0);
        assert_eq!(register.limit.load(ORDER), 20);
    }

    #[test]
    fn a_holder_that_does_not_go_on_ends_no_wait_but_is_an_error() {
        let (_folder, path) = in_folder();
        let register = open(&path);
        let mine = register.joined(10);
        let _locked = register.lock(mine.slot).unwrap();
        assert!(!register.take(mine.slot, 1));
        let refused = register.join(Lease::mine().unwrap(), 10).unwrap_err();
        assert!(refused.contains("does not go on"), "{refused}");
        assert_eq!((register.slots[mine.slot].held.load(ORDER), register.owned().count()), (0, 1));
    }

    #[test]
    fn any_content_of_a_ledger_is_survived() {
        let (_folder, path) = in_folder();
        drop(open(&path));
        let mut content = fs::read(&path).unwrap();
        let mut random = 7_u64;
        for _ in 0..3 {
            for byte in &mut content[32..] {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (random >> 56) as u8;
            }
            fs::write(&path, &content).unwrap();
            let register = open(&path);
            register.kept.store(0, ORDER);
            // Nobody has a seat. Who is of another namespace counts for a while.
            register.settle_all();
            std::thread::sleep(GONE_AFTER);
            let mine = register.joined(100 * MIB);
            assert_eq!((register.owned().count(), register.room(mine.slot)), (1, 100 * MIB));
            assert!(register.take(mine.slot, 100 * MIB));
        }
    }

    #[test]
    fn a_living_process_whose_lease_was_written_there_keeps_nothing() {
        let stranger = Waits::new();
        let (_folder, path) = in_folder();
        let register = open(&path);
        for slot in &register.slots {
            slot.owner.store(stranger.lease().bits(), ORDER);
            slot.held.store(u64::MAX, ORDER);
        }
        register.lock.store(u64::MAX, ORDER);
        let mine = register.joined(10);
        assert!(register.take(mine.slot, 10));
    }
}
