//! Models of a named budget's register. loom tries every order in which processes may run, and every value that they may
//! see; any of them may be killed at any instruction. `scripts/check-concurrency loom` runs them.
//!
//! **What is real** are `register.rs` and `table.rs`, which are compiled here once more, with words of loom's. A process is a
//! thread. **What is modelled** is the system. Locks on the file say who is there. A process that
//! is killed stops writing at once; then the system lets go of its locks. A lease tells at once whether its process has ended.

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use self::lease::Lease;
use self::mapped::Register;
use self::modelled::Life;
use self::seat::Seat;
use self::table::{Table, lower};

#[path = "register.rs"]
#[expect(dead_code, reason = "models use a part of it")]
mod register;
#[path = "table.rs"]
mod table;

/// Words that a process that was killed does not change, with time that passes by turns.
mod modelled {
    use std::cell::Cell;
    use std::time::Duration;

    use loom::sync::atomic;
    pub(super) use loom::sync::atomic::Ordering;

    pub(super) const SLOTS: usize = 3;

    /// What decides nothing.
    pub(super) type PlainWord = std::sync::atomic::AtomicU64;

    loom::thread_local! {
        /// The words that the present process may still reach, if it is to be killed.
        static LEFT: Cell<Option<u32>> = Cell::new(None);
    }

    /// A process that is killed before it reaches its next word after so many.
    pub(super) struct Life;

    impl Life {
        pub(super) fn of(words: u32) -> Self {
            LEFT.with(|left| left.set(Some(words)));
            Self
        }

        pub(super) fn is_over() -> bool {
            LEFT.with(|left| left.get() == Some(0))
        }
    }

    /// Whether the process goes on to reach a word.
    fn goes_on() -> bool {
        LEFT.with(|left| match left.get() {
            None => true,
            Some(0) => false,
            Some(words) => {
                left.set(Some(words - 1));
                words > 1
            }
        })
    }

    impl AtomicU64 {
        pub(super) fn new(value: u64) -> Self {
            Self(atomic::AtomicU64::new(value))
        }

        pub(super) fn fetch_update(
            &self,
            order: Ordering,
            failed: Ordering,
            change: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            if goes_on() { self.0.fetch_update(order, failed, change) } else { Ok(0) }
        }
    }

    macro_rules! word {
        ($word:ident, $value:ty) => {
            #[derive(Debug, Default)]
            pub(super) struct $word(atomic::$word);

            #[expect(clippy::allow_attributes, reason = "each word has what one of them needs")]
            #[allow(dead_code, reason = "as above")]
            impl $word {
                pub(super) fn load(&self, order: Ordering) -> $value {
                    if goes_on() { self.0.load(order) } else { 0 }
                }

                pub(super) fn store(&self, value: $value, order: Ordering) {
                    if goes_on() {
                        self.0.store(value, order);
                    }
                }

                pub(super) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    if goes_on() { self.0.fetch_add(value, order) } else { 0 }
                }

                pub(super) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    if goes_on() { self.0.fetch_max(value, order) } else { 0 }
                }

                pub(super) fn compare_exchange(
                    &self,
                    seen: $value,
                    new: $value,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    if goes_on() { self.0.compare_exchange(seen, new, order, failed) } else { Ok(seen) }
                }
            }
        };
    }
    word!(AtomicU32, u32);
    word!(AtomicU64, u64);

    /// A thread that waits lets others run. It is long after that before it gives up.
    #[derive(Default)]
    pub(super) struct Patience(Option<Duration>);

    impl Patience {
        pub(super) fn waited(&self) -> Option<Duration> {
            self.0
        }

        pub(super) fn wait(&mut self) {
            self.0 = Some(Duration::from_millis(1));
            loom::thread::yield_now();
        }
    }
}

/// What the system says of processes.
mod lease {
    use loom::sync::atomic::{AtomicU64, Ordering};

    loom::lazy_static! {
        /// A bit for each process: it begins to end, and its memory is the device's again.
        static ref ENDING: AtomicU64 = AtomicU64::new(0);
        static ref ENDED: AtomicU64 = AtomicU64::new(0);
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Lease(u64);

    impl Lease {
        pub(super) fn from_bits(bits: u64, _: impl FnOnce() -> u64) -> Option<Self> {
            (bits != 0).then_some(Self(bits))
        }

        pub(super) fn spaces(self) -> u64 {
            0
        }

        pub(super) fn bits(self) -> u64 {
            self.0
        }

        pub(super) fn begin_to_end(self) {
            // Relaxed, here and below: this gives no order to memory. Words are changed only, as with locks.
            ENDING.fetch_add(1 << self.0, Ordering::Relaxed);
        }

        pub(super) fn end(self) {
            ENDED.fetch_add(1 << self.0, Ordering::Relaxed);
        }

        pub(super) fn is_alive(self) -> bool {
            ENDED.fetch_add(0, Ordering::Relaxed) >> self.0 & 1 == 0
        }

        pub(super) fn is_ending(self) -> bool {
            self.is_alive() && ENDING.fetch_add(0, Ordering::Relaxed) >> self.0 & 1 == 1
        }
    }
}

/// Locks on the file.
mod seat {
    use std::io;
    use std::time::Instant;

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};

    use super::modelled::{Life, SLOTS};

    const FREE: u32 = 0;
    const CLAIMED: u32 = 1;
    const TAKEN: u32 = 2;

    /// The locks of each slot's byte.
    pub(super) type Locks = Arc<[AtomicU32; SLOTS]>;

    #[derive(Debug)]
    pub(super) struct Seat {
        pub(super) slot: usize,
        locks: Locks,
    }

    pub(super) struct Claim(Option<Seat>);

    impl Claim {
        pub(super) fn take(locks: &Locks, slot: usize) -> io::Result<Option<Self>> {
            // AcqRel, here and below: Linux takes a spin lock for each. Whoever asks hears of the last change, which loom
            // knows of words that are only changed, neither loaded nor stored.
            let taken = !Life::is_over()
                && locks[slot].compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Acquire).is_ok();
            Ok(taken.then(|| Self(Some(Seat { slot, locks: locks.clone() }))))
        }

        pub(super) fn keep(mut self) -> io::Result<Seat> {
            let seat = self.0.take().expect("it is no seat yet");
            seat.locks[seat.slot].swap(TAKEN, Ordering::AcqRel);
            Ok(seat)
        }
    }

    impl Drop for Seat {
        fn drop(&mut self) {
            self.locks[self.slot].swap(FREE, Ordering::AcqRel);
        }
    }

    /// Nobody waits for who only claims it.
    pub(super) fn is_taken(locks: &Locks, slot: usize) -> bool {
        locks[slot].fetch_add(0, Ordering::AcqRel) != FREE
    }

    /// Nothing is shared.
    pub(super) fn lent_bytes(_: &Locks, _: usize, _: Option<Instant>) -> u64 {
        0
    }
}

/// The shared memory, and its file.
mod mapped {
    use super::seat::Locks;
    use super::table::Table;

    #[derive(Debug)]
    pub(super) struct Register {
        pub(super) table: Table,
        pub(super) locks: Locks,
    }

    impl Register {
        pub(super) fn file(&self) -> &Locks {
            &self.locks
        }

        /// Nobody removes it.
        pub(super) fn is_removed(&self) -> bool {
            false
        }
    }

    impl std::ops::Deref for Register {
        type Target = Table;

        fn deref(&self) -> &Table {
            &self.table
        }
    }
}

/// Bytes that all processes may hold.
const LIMIT: u64 = 3;

/// The words that a process reaches at most until it ends.
const MOST_WORDS: u32 = 60;

/// A register that nobody has yet, and the device's memory that is in use.
#[derive(Clone)]
struct Machine {
    register: Arc<Register>,
    used: Arc<AtomicU64>,
}

impl Machine {
    fn new() -> Self {
        let locks = Arc::new(std::array::from_fn(|_| loom::sync::atomic::AtomicU32::new(0)));
        let register = Register { table: Table::modelled(LIMIT), locks };
        Self { register: Arc::new(register), used: Arc::new(AtomicU64::new(0)) }
    }

    /// A process that has joined.
    fn process(&self, number: u64) -> ModelProcess {
        let lease = Lease::from_bits(number, || 0).unwrap();
        let seat = self.register.join(lease, LIMIT).unwrap().unwrap();
        ModelProcess { machine: self.clone(), lease, seat: Some(seat), used: 0 }
    }

    /// All is as if nobody but these had ever been there.
    fn check(&self, alive: &[&ModelProcess]) {
        self.register.settle_all();
        let mut owners: Vec<_> = self.register.owned().map(|(slot, _, owner)| (slot, owner)).collect();
        let mut expected: Vec<_> = alive.iter().map(|process| (process.slot(), process.lease)).collect();
        owners.sort_by_key(|(slot, _)| *slot);
        expected.sort_by_key(|(slot, _)| *slot);
        assert_eq!(owners, expected);
        assert_eq!(self.register.held(), alive.iter().map(|process| process.used).sum::<u64>());
        if let Some(process) = alive.first() {
            assert!(self.register.lock(process.slot()).is_some(), "the lock comes free");
        }
    }
}

struct ModelProcess {
    machine: Machine,
    lease: Lease,
    /// `None` where it was killed before it had one.
    seat: Option<Seat>,
    used: u64,
}

impl ModelProcess {
    fn slot(&self) -> usize {
        self.seat.as_ref().unwrap().slot
    }

    /// Takes memory from the register, and then from the device.
    fn take(&mut self, bytes: u64) -> bool {
        if !self.machine.register.take(self.slot(), bytes) || Life::is_over() {
            return false;
        }
        // Relaxed, here and below: the device gives no order to memory.
        let used = self.machine.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        assert!(used <= LIMIT, "more is in use than the limit");
        self.used += bytes;
        true
    }

    fn give_back(&mut self, bytes: u64) {
        if Life::is_over() {
            return;
        }
        self.machine.used.fetch_sub(bytes, Ordering::Relaxed);
        self.used -= bytes;
        lower(&self.machine.register.slots[self.slot()].held, bytes);
    }

    /// As the system ends a process, however far it came.
    fn end(mut self) {
        self.lease.begin_to_end();
        drop(self.seat.take());
        // Others run meanwhile.
        thread::yield_now();
        self.machine.used.fetch_sub(self.used, Ordering::Relaxed);
        self.lease.end();
    }
}

/// Tries every order with so many switches between processes at most, beside those where one waits.
fn model(switches: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(run);
}

/// As [`model`], with one process that is killed after each number of words; `run` says whether it came to its end.
fn killed_anywhere(switches: usize, run: impl Fn(u32) -> bool + Send + Sync + Clone + 'static) {
    for words in 1..=MOST_WORDS {
        let run = run.clone();
        model(switches, move || {
            let ended = run(words);
            assert!(words < MOST_WORDS || ended, "it reaches more words");
        });
    }
}

#[test]
fn of_two_that_want_the_rest_one_gets_it() {
    model(3, || {
        let machine = Machine::new();
        let (mut first, mut second) = (machine.process(1), machine.process(2));
        let other = thread::spawn(move || (second.take(2), second));
        let got = first.take(2);
        let (other_got, second) = other.join().unwrap();
        assert!(got != other_got);
        machine.check(&[&first, &second]);
    });
}

#[test]
fn what_one_gives_back_another_may_take() {
    model(3, || {
        let machine = Machine::new();
        let (mut first, mut second) = (machine.process(1), machine.process(2));
        assert!(first.take(2));
        let other = thread::spawn(move || {
            let _ = second.take(2);
            second
        });
        first.give_back(2);
        let _ = first.take(1);
        let second = other.join().unwrap();
        machine.check(&[&first, &second]);
    });
}

#[test]
fn a_process_that_is_killed_while_it_takes_leaves_nothing() {
    killed_anywhere(2, |words| {
        let machine = Machine::new();
        let (mut killed, mut other) = (machine.process(1), machine.process(2));
        let doomed = thread::spawn(move || {
            let _life = Life::of(words);
            if killed.take(2) {
                killed.give_back(1);
            }
            let ended = !Life::is_over();
            killed.end();
            ended
        });
        let _ = other.take(2);
        other.machine.register.settle_all();
        let ended = doomed.join().unwrap();
        machine.check(&[&other]);
        let rest = LIMIT - other.used;
        assert!(other.take(rest), "what the killed process had is free");
        ended
    });
}

#[test]
fn a_process_that_is_killed_while_it_joins_or_leaves_leaves_nothing() {
    killed_anywhere(2, |words| {
        let machine = Machine::new();
        let mut other = machine.process(2);
        let doomed = thread::spawn({
            let machine = machine.clone();
            move || {
                let _life = Life::of(words);
                let lease = Lease::from_bits(1, || 0).unwrap();
                let seat = machine.register.join(lease, LIMIT).ok().flatten();
                if let Some(seat) = seat {
                    machine.register.leave(seat);
                }
                let ended = !Life::is_over();
                ModelProcess { machine, lease, seat: None, used: 0 }.end();
                ended
            }
        });
        let _ = other.take(2);
        let ended = doomed.join().unwrap();
        machine.check(&[&other]);
        ended
    });
}

#[test]
fn a_process_that_is_killed_while_it_settles_leaves_the_rest_to_others() {
    killed_anywhere(2, |words| {
        let machine = Machine::new();
        let (mut gone, killed, mut other) = (machine.process(3), machine.process(1), machine.process(2));
        assert!(gone.take(2));
        gone.end();
        let doomed = thread::spawn(move || {
            let _life = Life::of(words);
            killed.machine.register.settle_all();
            let ended = !Life::is_over();
            killed.end();
            ended
        });
        other.machine.register.settle_all();
        let _ = other.take(2);
        let ended = doomed.join().unwrap();
        machine.check(&[&other]);
        ended
    });
}

#[test]
fn who_joins_while_others_settle_keeps_its_slot() {
    model(2, || {
        let machine = Machine::new();
        let (mut gone, other) = (machine.process(3), machine.process(2));
        assert!(gone.take(2));
        gone.end();
        let joins = thread::spawn({
            let machine = machine.clone();
            move || {
                let mut joined = machine.process(1);
                let _ = joined.take(1);
                joined
            }
        });
        other.machine.register.settle_all();
        let joined = joins.join().unwrap();
        machine.check(&[&other, &joined]);
    });
}

#[test]
fn a_slot_is_settled_before_it_is_taken_again() {
    model(3, || {
        let machine = Machine::new();
        let comes_and_goes = thread::spawn({
            let machine = machine.clone();
            move || {
                let mut process = machine.process(1);
                let _ = process.take(2);
                process.end();
            }
        });
        // Before or while the other one is there, and while it ends.
        thread::yield_now();
        let mut joined = machine.process(2);
        let _ = joined.take(2);
        comes_and_goes.join().unwrap();
        machine.check(&[&joined]);
    });
}

#[test]
fn a_lock_that_is_taken_over_has_one_holder() {
    model(3, || {
        let machine = Machine::new();
        let (gone, mut first, mut second) = (machine.process(3), machine.process(1), machine.process(2));
        // It was killed with the lock.
        std::mem::forget(machine.register.lock(gone.slot()));
        gone.end();
        let takes = thread::spawn(move || {
            let _ = first.take(2);
            first
        });
        // Another process gets the slot, and so the same name for its lock.
        let _ = second.take(1);
        let mut newcomer = machine.process(4);
        let _ = newcomer.take(2);
        let first = takes.join().unwrap();
        machine.check(&[&first, &second, &newcomer]);
    });
}
