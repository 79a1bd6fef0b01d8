//! The ledger of a named budget: a page of memory that processes share, in which each has a slot.
//!
//! **It is right at every instruction.** A slot belongs to a [`Lease`], and says in one word what that process holds. The
//! sum is not kept: it is computed over all slots, so that no step lies between a slot and the sum. Slots of processes that
//! are gone are cleared by whoever looks.
//!
//! **Who may write.** A slot is claimed, grows and is cleared under the ledger's lock, which is a word with its holder's
//! lease. The lock of a process that is gone is taken over: it left nothing half done. What a process holds may shrink at
//! any time, without the lock.
//!
//! **What is mapped may hold anything.** Whoever may write the file may change it at any time, and it may be of another
//! program. So all of it is atomic words, any value of each has a meaning, and sums saturate. The file never shrinks by
//! our doing; if its owner cuts it, the system ends the processes that use it (`SIGBUS`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};

use super::lease::{Lease, namespaces};

/// Sequentially consistent throughout: all of it is rare, and easier to be right.
const ORDER: Ordering = Ordering::SeqCst;

const MAGIC: u64 = u64::from_le_bytes(*b"millpond");
const VERSION: u64 = 1;

/// Processes that one budget can have.
pub(super) const SLOTS: usize = 63;

/// How long the lock is waited for: it is held for less than a microsecond, unless its holder is stopped.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// What the file holds: one page.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table {
    magic: AtomicU64,
    version: AtomicU64,
    /// In which leases have a meaning.
    namespaces: [AtomicU64; 2],
    /// Bytes that all processes may hold together.
    pub(super) limit: AtomicU64,
    /// The lease of the process that has the lock, or 0.
    lock: AtomicU64,
    /// Counts requests for memory, and processes that leave. Who wants to hear of them waits for it to change.
    pub(super) asks: AtomicU32,
    /// Counts answers to them.
    pub(super) answers: AtomicU32,
    _unused: AtomicU64,
    pub(super) slots: [Slot; SLOTS],
}

/// What one process holds and wants. Bytes.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Slot {
    /// The process's lease, or 0.
    owner: AtomicU64,
    pub(super) held: AtomicU64,
    /// What is kept for it.
    pub(super) floor: AtomicU64,
    /// What it holds at most.
    pub(super) claim: AtomicU64,
    /// What it asks the others for.
    pub(super) wants: AtomicU64,
    /// The last request that it has answered.
    pub(super) answered: AtomicU32,
}

const BYTES: usize = size_of::<Table>();
const _: () = assert!(BYTES == 4096);

impl Slot {
    pub(super) fn owner(&self) -> Option<Lease> {
        Lease::from_bits(self.owner.load(ORDER))
    }

    /// What the others have to leave to it.
    fn counted(&self) -> u64 {
        self.held.load(ORDER).max(self.floor.load(ORDER))
    }

    fn clear(&self) {
        // The owner last: until then, whoever looks next clears it again.
        for word in [&self.held, &self.floor, &self.claim, &self.wants] {
            word.store(0, ORDER);
        }
        self.owner.store(0, ORDER);
    }
}

/// A table in shared memory.
#[derive(Debug)]
pub(super) struct Ledger {
    table: NonNull<Table>,
}

// SAFETY: the table is atomics only, and the mapping is not bound to a thread.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no reference into it outlives the ledger.
        if let Err(error) = unsafe { rustix::mm::munmap(self.table.as_ptr().cast(), BYTES) } {
            tracing::warn!(%error, "the ledger of a budget could not be unmapped");
        }
    }
}

impl std::ops::Deref for Ledger {
    type Target = Table;

    fn deref(&self) -> &Table {
        // SAFETY: mapped by `map`, aligned to a page, as long as the ledger lives. Any bytes are a table, and whoever
        // changes them meanwhile changes atomics.
        unsafe { self.table.as_ref() }
    }
}

impl Ledger {
    /// The ledger in this file, which is made if there is none.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        match Self::open_existing(path)? {
            Some(found) => Ok(found),
            None => {
                create(path).map_err(|error| {
                    format!("it cannot be made: {error}: is the folder there, and writable?")
                })?;
                Self::open_existing(path)?.ok_or_else(|| "it was removed as soon as it was made".to_owned())
            }
        }
    }

    /// The ledger in this file; `None` where there is no such file.
    pub(super) fn open_existing(path: &Path) -> Result<Option<Self>, String> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("it cannot be opened: {error}")),
        };
        let about = file.metadata().map_err(|error| format!("it cannot be read: {error}"))?;
        let user = rustix::process::geteuid().as_raw();
        if !about.is_file() || about.len() != BYTES as u64 {
            return Err(format!("it is no ledger of a budget: {ANOTHER}"));
        }
        if about.uid() != user || about.mode() & 0o077 != 0 {
            let (owner, mode) = (about.uid(), about.mode() & 0o777);
            return Err(format!(
                "it belongs to user {owner} with mode {mode:o}, not to user {user} with mode 600: {ANOTHER}"
            ));
        }
        let ledger = Self::map(&file).map_err(|error| format!("it cannot be mapped: {error}"))?;
        match (ledger.magic.load(ORDER), ledger.version.load(ORDER)) {
            (MAGIC, VERSION) => {}
            (MAGIC, version) => {
                return Err(format!(
                    "it is of version {version}, and this library's is {VERSION}: use the same millpond in all processes"
                ));
            }
            _ => return Err(format!("it is no ledger of a budget: {ANOTHER}")),
        }
        if ledger.namespaces.each_ref().map(|word| word.load(ORDER)) != namespaces() {
            return Err(
                "it was made in another PID or time namespace, where process ids mean others: share the \
                        namespace (docker run --pid), or use another name"
                    .to_owned(),
            );
        }
        Ok(Some(ledger))
    }

    fn map(file: &File) -> rustix::io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the system chooses.
        let at = unsafe { rustix::mm::mmap(ptr::null_mut(), BYTES, access, MapFlags::SHARED, file, 0) }?;
        Ok(Self { table: NonNull::new(at.cast()).expect("nothing is mapped at null") })
    }

    // ---- slots -------------------------------------------------------------------------------------

    /// Slots that have an owner.
    pub(super) fn owned(&self) -> impl Iterator<Item = (&Slot, Lease)> {
        self.slots.iter().filter_map(|slot| Some((slot, slot.owner()?)))
    }

    fn others(&self, mine: usize) -> impl Iterator<Item = &Slot> {
        let others = self.slots.iter().enumerate().filter(move |(at, _)| *at != mine);
        others.map(|(_, slot)| slot).filter(|slot| slot.owner().is_some())
    }

    fn sum<'a>(slots: impl Iterator<Item = &'a Slot>, bytes: impl Fn(&Slot) -> u64) -> u64 {
        slots.fold(0, |sum, slot| sum.saturating_add(bytes(slot)))
    }

    /// Bytes that all processes hold. Without a lease, memory may pass from one to another meanwhile, and count twice.
    pub(super) fn held(&self, me: Option<Lease>) -> u64 {
        let _still = me.and_then(|me| self.lock(me));
        Self::sum(self.owned().map(|(slot, _)| slot), |slot| slot.held.load(ORDER))
    }

    /// Bytes that the process with this slot may take now: up to its floor, what nobody holds; beyond it, what is kept for
    /// nobody.
    pub(super) fn room(&self, mine: usize) -> u64 {
        let slot = &self.slots[mine];
        let (held, limit) = (slot.held.load(ORDER), self.limit.load(ORDER));
        let left = |theirs: u64| limit.saturating_sub(theirs).saturating_sub(held);
        let beyond_floor = left(Self::sum(self.others(mine), Slot::counted));
        let unheld = left(Self::sum(self.others(mine), |slot| slot.held.load(ORDER)));
        let within_floor = unheld.min(slot.floor.load(ORDER).saturating_sub(held));
        beyond_floor.max(within_floor).min(slot.claim.load(ORDER).saturating_sub(held))
    }

    /// Bytes that the process with this slot might take, if the others gave back all that they hold beyond their floors.
    pub(super) fn may_have(&self, mine: usize) -> u64 {
        let slot = &self.slots[mine];
        let beyond_floor = |slot: &Slot| slot.held.load(ORDER).saturating_sub(slot.floor.load(ORDER));
        let might = self.room(mine).saturating_add(Self::sum(self.others(mine), beyond_floor));
        might.min(slot.claim.load(ORDER).saturating_sub(slot.held.load(ORDER)))
    }

    /// Bytes that the others ask for.
    pub(super) fn others_want(&self, mine: usize) -> u64 {
        Self::sum(self.others(mine), |slot| slot.wants.load(ORDER))
    }

    /// Bytes that are kept for the others.
    pub(super) fn others_floors(&self, mine: usize) -> u64 {
        Self::sum(self.others(mine), |slot| slot.floor.load(ORDER))
    }

    /// Whether all others have answered this request.
    pub(super) fn others_answered(&self, mine: usize, ask: u32) -> bool {
        // Requests are counted in a circle.
        self.others(mine).all(|slot| ask.wrapping_sub(slot.answered.load(ORDER)).cast_signed() <= 0)
    }

    /// A slot for the process. The first process sets the limit; without one, `None` where there is no other process.
    pub(super) fn join(&self, me: Lease, limit: Option<u64>) -> Result<Option<usize>, String> {
        self.clear_gone(me);
        let _locked = self.lock(me).ok_or(
            "its lock is held by a process that does not go on: resume that process, or use another name",
        )?;
        if self.owned().next().is_none() {
            let Some(limit) = limit else { return Ok(None) };
            self.limit.store(limit, ORDER);
        }
        let Some(at) = self.slots.iter().position(|slot| slot.owner().is_none()) else {
            return Err(format!(
                "{SLOTS} processes have it, which is the most: end one, or use another name"
            ));
        };
        let slot = &self.slots[at];
        slot.clear();
        slot.claim.store(u64::MAX, ORDER);
        slot.answered.store(self.asks.load(ORDER), ORDER);
        slot.owner.store(me.bits(), ORDER);
        Ok(Some(at))
    }

    /// Gives the slot up. One that still holds something stays until the process ends: its memory is lost, not free.
    pub(super) fn leave(&self, me: Lease, mine: usize) {
        let slot = &self.slots[mine];
        if let Some(_locked) = self.lock(me)
            && slot.held.load(ORDER) == 0
        {
            slot.clear();
        }
    }

    /// Takes `bytes` for the process with this slot, or nothing.
    pub(super) fn take(&self, me: Lease, mine: usize, bytes: u64) -> bool {
        let Some(_locked) = self.lock(me) else { return false };
        let fits = bytes <= self.room(mine);
        if fits {
            // The room was computed with it, so that the sum does not overflow.
            self.slots[mine].held.fetch_add(bytes, ORDER);
        }
        fits
    }

    /// Keeps `bytes` for the process with this slot, or says how much can be kept.
    pub(super) fn set_floor(&self, me: Lease, mine: usize, bytes: u64) -> Result<(), u64> {
        let Some(_locked) = self.lock(me) else { return Err(0) };
        let most = self.limit.load(ORDER).saturating_sub(self.others_floors(mine));
        if bytes > most {
            return Err(most);
        }
        self.slots[mine].floor.store(bytes, ORDER);
        Ok(())
    }

    /// Clears the slots of processes that are gone; whether there were any.
    pub(super) fn clear_gone(&self, me: Lease) -> bool {
        // Looked for without the lock: it takes some microseconds a process.
        let gone: Vec<_> = self.owned().filter(|(_, owner)| *owner != me && !owner.is_alive()).collect();
        if gone.is_empty() {
            return false;
        }
        let Some(_locked) = self.lock(me) else { return false };
        for (slot, owner) in gone {
            if slot.owner() == Some(owner) {
                slot.clear();
            }
        }
        true
    }

    // ---- the lock ----------------------------------------------------------------------------------

    /// Waits for the lock; `None` where its holder is alive, but does not go on.
    pub(super) fn lock(&self, me: Lease) -> Option<Locked<'_>> {
        let mut holder = 0;
        let mut began = None;
        loop {
            match self.lock.compare_exchange(holder, me.bits(), ORDER, ORDER) {
                Ok(_) => return Some(Locked { ledger: self }),
                Err(0) => holder = 0,
                Err(other) => {
                    let waited = began.get_or_insert_with(Instant::now).elapsed();
                    if waited >= LOCK_PATIENCE {
                        tracing::warn!(holder = ?Lease::from_bits(other), "the lock of a budget does not come free");
                        return None;
                    }
                    // The lock of a process that is gone is taken over.
                    let is_gone = waited >= Duration::from_millis(1)
                        && Lease::from_bits(other).is_none_or(|other| !other.is_alive());
                    holder = if is_gone { other } else { 0 };
                    if !is_gone {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                }
            }
        }
    }
}

/// What to do where the file is not ours.
const ANOTHER: &str = "remove it, or use another name";

/// As long as it lives, nobody else claims a slot, takes memory, or clears a slot.
pub(super) struct Locked<'a> {
    ledger: &'a Ledger,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.ledger.lock.store(0, ORDER);
    }
}

/// Makes the file. It is written under another name first, so that it is whole from its first moment on. Where another
/// process is faster, its file stays.
fn create(path: &Path) -> io::Result<()> {
    let mut content = [0; BYTES];
    let [pid, time] = namespaces();
    for (word, value) in content.chunks_exact_mut(8).zip([MAGIC, VERSION, pid, time]) {
        word.copy_from_slice(&value.to_ne_bytes());
    }
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", rustix::thread::gettid().as_raw_nonzero()));
    // Left by a thread with the same id that was killed here.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let made = file.write_all(&content).and_then(|()| match fs::hard_link(&new, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    fs::remove_file(&new)?;
    made
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn in_folder() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        (folder, path)
    }

    /// The lease of a process that is gone.
    fn gone() -> Lease {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let lease = Lease::of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        lease
    }

    #[test]
    fn processes_never_take_more_than_the_limit_together() {
        let (_folder, path) = in_folder();
        let (ledger, me) = (Ledger::open(&path).unwrap(), Lease::mine().unwrap());
        let again = Ledger::open(&path).unwrap();
        let (first, second) =
            (ledger.join(me, Some(10)).unwrap().unwrap(), again.join(me, Some(99)).unwrap().unwrap());
        assert_eq!((first, second, again.limit.load(ORDER)), (0, 1, 10));
        assert!(ledger.take(me, first, 6) && !again.take(me, second, 5) && again.take(me, second, 4));
        assert_eq!((ledger.held(Some(me)), ledger.room(first)), (10, 0));
        assert!(!again.take(me, second, u64::MAX));
        ledger.slots[first].held.fetch_sub(6, ORDER);
        assert!(again.take(me, second, 6));
        again.slots[second].held.store(0, ORDER);
        [first, second].into_iter().for_each(|slot| ledger.leave(me, slot));
        assert_eq!(ledger.owned().count(), 0);
        assert_eq!(ledger.join(me, None), Ok(None));
        // Nobody is there: who comes sets the limit.
        assert_eq!((ledger.join(me, Some(20)), again.limit.load(ORDER)), (Ok(Some(0)), 20));
    }

    #[test]
    fn floors_are_left_alone_and_claims_are_kept() {
        let (_folder, path) = in_folder();
        let (ledger, me) = (Ledger::open(&path).unwrap(), Lease::mine().unwrap());
        let (first, second) =
            (ledger.join(me, Some(10)).unwrap().unwrap(), ledger.join(me, Some(10)).unwrap().unwrap());
        ledger.set_floor(me, first, 4).unwrap();
        assert_eq!((ledger.room(first), ledger.room(second)), (10, 6));
        assert_eq!(ledger.set_floor(me, second, 7), Err(6));
        assert!(ledger.take(me, second, 6) && !ledger.take(me, second, 1));
        assert!(ledger.take(me, first, 4) && !ledger.take(me, first, 1));
        // A limit below what is held forbids all, floors or not; but not what nobody holds of a floor.
        ledger.limit.store(8, ORDER);
        assert_eq!((ledger.room(first), ledger.room(second)), (0, 0));
        ledger.slots[first].held.store(1, ORDER);
        assert_eq!((ledger.room(first), ledger.room(second)), (1, 0));
        ledger.limit.store(100, ORDER);
        ledger.slots[second].claim.store(8, ORDER);
        assert_eq!((ledger.room(second), ledger.may_have(second)), (2, 2));
        assert_eq!((ledger.room(first), ledger.may_have(first)), (93, 99));
    }

    #[test]
    fn what_a_process_that_is_gone_held_and_locked_comes_back() {
        let (_folder, path) = in_folder();
        let (ledger, me, gone) = (Ledger::open(&path).unwrap(), Lease::mine().unwrap(), gone());
        let theirs = ledger.join(gone, Some(10)).unwrap().unwrap();
        let mine = ledger.join(me, Some(10)).unwrap().unwrap();
        assert_eq!(theirs, mine, "it is gone already: its slot is the next one's");
        let theirs = 7;
        ledger.slots[theirs].owner.store(gone.bits(), ORDER);
        ledger.slots[theirs].held.store(9, ORDER);
        ledger.lock.store(gone.bits(), ORDER);
        assert!(!ledger.take(me, mine, 2), "it counts until somebody looks");
        assert!(ledger.clear_gone(me) && !ledger.clear_gone(me));
        assert!(ledger.take(me, mine, 10) && ledger.owned().count() == 1);
        assert_eq!(ledger.lock.load(ORDER), 0);
    }

    #[test]
    fn a_full_table_refuses_the_next_process() {
        let (_folder, path) = in_folder();
        let (ledger, me) = (Ledger::open(&path).unwrap(), Lease::mine().unwrap());
        (0..SLOTS).for_each(|at| assert_eq!(ledger.join(me, Some(10)), Ok(Some(at))));
        assert!(ledger.join(me, Some(10)).unwrap_err().starts_with("63 processes have it"));
        ledger.leave(me, 5);
        assert_eq!(ledger.join(me, Some(10)), Ok(Some(5)));
    }

    #[test]
    fn a_holder_that_does_not_go_on_ends_no_wait_but_is_an_error() {
        let (_folder, path) = in_folder();
        let (ledger, me) = (Ledger::open(&path).unwrap(), Lease::mine().unwrap());
        let mine = ledger.join(me, Some(10)).unwrap().unwrap();
        let _locked = ledger.lock(me).unwrap();
        assert!(!ledger.take(me, mine, 1));
        assert!(ledger.join(me, Some(10)).unwrap_err().contains("does not go on"));
        assert_eq!(ledger.slots[mine].held.load(ORDER), 0);
    }

    #[test]
    fn files_that_are_no_ledger_are_refused() {
        let refusal = |path: &Path| Ledger::open(path).unwrap_err();
        let (_folder, path) = in_folder();
        for length in [0, 10, BYTES, BYTES + 1] {
            fs::write(&path, vec![0xa5; length]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(refusal(&path).starts_with("it is no ledger of a budget: remove it"), "{length}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(refusal(&path).contains("cannot be opened"));
        fs::remove_dir(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(refusal(&path).contains("cannot be opened"));
        fs::remove_file(&path).unwrap();
        let ledger = Ledger::open(&path).unwrap();
        ledger.version.store(VERSION + 1, ORDER);
        assert!(refusal(&path).starts_with("it is of version 2"));
        ledger.version.store(VERSION, ORDER);
        ledger.namespaces[0].store(1, ORDER);
        assert!(refusal(&path).contains("namespace"));
        ledger.namespaces[0].store(namespaces()[0], ORDER);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refusal(&path).contains("with mode 644, not to user"));
    }

    #[test]
    fn where_no_file_can_be_made_the_error_says_so() {
        for folder in ["/nonexistent", "/proc"] {
            let refused = Ledger::open(&Path::new(folder).join("ledger")).unwrap_err();
            assert!(refused.starts_with("it cannot be made: "), "{refused}");
        }
    }

    #[test]
    fn any_content_of_a_ledger_is_survived() {
        let (_folder, path) = in_folder();
        let me = Lease::mine().unwrap();
        drop(Ledger::open(&path).unwrap());
        let mut content = fs::read(&path).unwrap();
        let mut random = 7_u64;
        for _ in 0..20 {
            for byte in &mut content[32..] {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (random >> 56) as u8;
            }
            fs::write(&path, &content).unwrap();
            let ledger = Ledger::open(&path).unwrap();
            // No process has such a lease.
            let mine = ledger.join(me, Some(100 * MIB)).unwrap().unwrap();
            assert_eq!((ledger.owned().count(), ledger.room(mine)), (1, 100 * MIB));
            assert!(ledger.take(me, mine, 100 * MIB));
        }
    }

    #[test]
    fn a_file_is_whole_from_its_first_moment_whoever_makes_it() {
        let (_folder, path) = in_folder();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..200).for_each(|_| drop(Ledger::open(&path).unwrap())));
            }
            for _ in 0..200 {
                assert!(Ledger::open_existing(&path).is_ok());
            }
        });
    }
}
