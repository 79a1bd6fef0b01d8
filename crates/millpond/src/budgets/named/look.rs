//! Looking at budgets without joining them: no slot is taken, and nothing is written.
//!
//! The table is read, not mapped, and a look takes a limited time, whatever is locked. So whoever owns the file can harm nobody who
//! looks, such as root.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use super::lease::Lease;
use super::mapped::KIND;
use super::table::{ORDER, Slot, Table};
use super::tenants::{is_a_name, largest_first, program};
use super::{folder, seat};
use crate::figures::tenant::{SeenBudget, Tenant};
use crate::policy::other_processes::STOPPED;

/// The number of the word that lies so many bytes behind the start.
const fn word(offset: usize) -> usize {
    offset / size_of::<u64>()
}

/// Budgets that are looked at in one folder. Files beyond them are left out.
const MOST: usize = 4096;

/// All budgets in the folders that this process may look into, by name.
pub(super) fn all() -> Vec<SeenBudget> {
    let in_folder = |folder: std::path::PathBuf| {
        // What is left then is left out: of this folder, which may be another user's.
        let until = latest();
        let files = fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
        let looked_at = files.take_while(move |_| Instant::now() < until);
        looked_at.filter_map(move |file| at(&file.path(), until).ok().flatten())
    };
    let mut all: Vec<_> = folder::all().into_iter().flat_map(in_folder).collect();
    all.sort_by(|one, other| (&one.name, &one.path).cmp(&(&other.name, &other.path)));
    all
}

/// Until when a look that begins now asks who is there.
pub(super) fn latest() -> Instant {
    Instant::now() + STOPPED
}

/// The budget in this file; `None` where there is no such file. After `until`, a process counts as what its slot says.
pub(super) fn at(path: &Path, until: Instant) -> Result<Option<SeenBudget>, String> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| is_a_name(name)) else {
        return Ok(None);
    };
    let mut options = OpenOptions::new();
    let file = match options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("it cannot be opened: {error}")),
    };
    let words = read(&file)?;
    let used_and_kept = words[word(offset_of!(Table, used))];
    let used = (used_and_kept as u32) as usize;
    let slots = words[word(offset_of!(Table, slots))..].chunks_exact(word(size_of::<Slot>())).take(used);
    let tenants = slots.enumerate().filter_map(|(slot, words)| tenant((&file, until), slot, words)).collect();
    Ok(Some(SeenBudget {
        name: name.to_owned(),
        path: path.to_owned(),
        limit: words[word(offset_of!(Table, limit))],
        stays: used_and_kept >> 32 != 0,
        tenants: largest_first(tenants),
    }))
}

/// The table's words, each of which is of some moment.
fn read(file: &File) -> Result<Vec<u64>, String> {
    let failed = |error: io::Error| format!("it cannot be read: {error}");
    let mut bytes = vec![0; size_of::<Table>()];
    let about = file.metadata().map_err(failed)?;
    let is_one = about.is_file() && about.len() == bytes.len() as u64;
    if is_one {
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    }
    let words: Vec<_> =
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes"))).collect();
    if !is_one || words[..2] != KIND || words.len() != word(size_of::<Table>()) {
        return Err("it is no budget of this version of millpond".to_owned());
    }
    Ok(words)
}

/// What a slot says; `None` where nobody has it, or nothing of who had it counts.
fn tenant((file, until): (&File, Instant), at: usize, words: &[u64]) -> Option<Tenant> {
    // The upper half says whether the process has joined.
    if words[word(offset_of!(Slot, joined))] >> 32 == 0 {
        return None;
    }
    let slot = Slot::default();
    for (to, word) in [&slot.owner, &slot.held, &slot.floor, &slot.claim].into_iter().zip(words) {
        to.store(*word, ORDER);
    }
    slot.spaces.store(words[word(offset_of!(Slot, spaces))], ORDER);
    let owner: Lease = slot.owner()?;
    if Instant::now() < until && !seat::is_taken(file, at) && !owner.is_ending() {
        // As if it were settled.
        slot.settle(owner, seat::lent_bytes(file, at, Some(until)));
        slot.owner()?;
    }
    let [held, floor, claim] = [&slot.held, &slot.floor, &slot.claim].map(|word| word.load(ORDER));
    Some(Tenant { pid: owner.pid(), program: program(owner), held, floor, claim })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::Duration;

    use nix::fcntl::{FcntlArg, fcntl};

    use super::super::mapped::Register;
    use super::super::modelled::SLOTS;
    use super::*;

    #[test]
    fn who_claims_all_seats_for_long_keeps_nobody_who_looks() {
        let folder = tempfile::tempdir().unwrap();
        let of_test = folder::Folder { path: folder.path().to_owned(), mode: 0o600, is_shared: false };
        let register = Register::open(&of_test, "register").unwrap();
        register.used.store(SLOTS as u32, ORDER);
        for slot in &register.slots {
            slot.owner.store(Lease::mine().unwrap().bits(), ORDER);
            slot.joined.store(1, ORDER);
        }
        let path = folder.path().join("register");
        let claims = File::options().write(true).open(&path).unwrap();
        let (l_type, l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
        let all = libc::flock { l_type, l_whence, l_start: 0, l_len: SLOTS as libc::off_t, l_pid: 0 };
        fcntl(&claims, FcntlArg::F_OFD_SETLK(&all)).unwrap();
        let began = Instant::now();
        let seen = at(&path, began + Duration::from_millis(100)).unwrap().unwrap();
        assert_eq!(seen.tenants.len(), SLOTS);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}
