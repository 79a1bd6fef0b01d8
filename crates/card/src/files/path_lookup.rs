//! A path, step by step: what lies there for the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{self, FileType};
use rustix::io::Errno;

use super::store::Store;

/// What lies at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Folder,
    Link,
    /// A device, a socket or a named pipe.
    Other,
}

/// What lies at a path, for the program.
#[derive(Debug)]
pub(crate) struct Found {
    /// Without links on the way.
    pub(crate) logical: PathBuf,
    /// What the program wrote.
    pub(crate) upper: Option<Kind>,
    /// The real one, where the program did not remove or replace it. A folder may be both.
    pub(crate) lower: Option<Kind>,
    /// Whether the folder that it lies in is a real one.
    pub(crate) is_in_real: bool,
    /// It is the system's, or ours: it is used as it is.
    pub(crate) passes: bool,
    /// The path ends with a slash, so only a folder will do.
    pub(crate) wants_folder: bool,
}

impl Found {
    pub(crate) fn kind(&self) -> Option<Kind> {
        self.upper.or(self.lower)
    }

    /// The path to use. Where nothing is, nothing is at that path.
    pub(crate) fn real(&self, store: &Store) -> PathBuf {
        match self {
            Self { passes: true, logical, .. } => logical.clone(),
            Self { upper: None, lower: Some(_), logical, .. } => logical.clone(),
            Self { logical, .. } => store.upper(logical),
        }
    }
}

/// Trees that are the system's: devices, shared memory and what it says of processes.
const SYSTEM: [&[u8]; 3] = [b"proc", b"sys", b"dev"];

/// As many links as the system follows.
const MOST_LINKS: u32 = 40;

/// One folder on the way.
#[derive(Debug)]
struct Step {
    name: OsString,
    upper: Option<Kind>,
    lower: Option<Kind>,
}

/// Looks at a path, from a folder on unless it is absolute. Of a link at its end, `follows` looks at what that leads to.
pub(crate) fn look(store: &Store, from: &Path, path: &Path, follows: bool) -> Result<Found, Errno> {
    let wants_folder = path.as_os_str().as_bytes().ends_with(b"/");
    let follows = follows || wants_folder;
    let whole = store.logical(if path.is_absolute() { path.to_owned() } else { from.join(path) });
    // What is still to be walked, the last step first.
    let mut rest = steps(&whole);
    let mut way: Vec<Step> = Vec::new();
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            way.pop();
            continue;
        }
        let logical = path_of(&way).join(&name);
        if (way.is_empty() && SYSTEM.contains(&name.as_bytes())) || store.is_own(&logical) {
            let logical = rest.iter().rev().fold(logical, |path, name| path.join(name));
            return Ok(Found {
                logical,
                upper: None,
                lower: None,
                is_in_real: true,
                passes: true,
                wants_folder,
            });
        }
        let step = step(store, way.last(), name, &logical);
        let kind = step.upper.or(step.lower);
        if kind == Some(Kind::Link) && (follows || !rest.is_empty()) {
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP);
            }
            let real = if step.upper.is_some() { store.upper(&logical) } else { logical };
            let to = PathBuf::from(OsString::from_vec(fs::readlink(real, Vec::new())?.into_bytes()));
            if to.is_absolute() {
                way.clear();
            }
            rest.extend(steps(&store.logical(to)));
            continue;
        }
        match kind {
            None if !rest.is_empty() => return Err(Errno::NOENT),
            Some(Kind::File | Kind::Other) if !rest.is_empty() => return Err(Errno::NOTDIR),
            _ => way.push(step),
        }
    }
    let is_in_real = way.len() < 2 || way[way.len() - 2].lower.is_some();
    let [upper, lower] = way.last().map_or([Some(Kind::Folder); 2], |step| [step.upper, step.lower]);
    Ok(Found { logical: path_of(&way), upper, lower, is_in_real, passes: false, wants_folder })
}

/// What lies in the folder at the end of the way under this name.
fn step(store: &Store, folder: Option<&Step>, name: OsString, logical: &Path) -> Step {
    let [is_above, is_below] =
        folder.map_or([true; 2], |folder| [folder.upper, folder.lower].map(|kind| kind.is_some()));
    let upper = if is_above { kind(&store.upper(logical)) } else { None };
    let lower = if is_below && !store.is_hidden(logical) { kind(logical) } else { None };
    // Only folders are both.
    let is_covered = upper.is_some() && (upper, lower) != (Some(Kind::Folder), Some(Kind::Folder));
    Step { name, upper, lower: if is_covered { None } else { lower } }
}

/// What cannot be looked at is left to the call itself, which says why.
fn kind(path: &Path) -> Option<Kind> {
    match fs::lstat(path) {
        Ok(about) => Some(match FileType::from_raw_mode(about.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Folder,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        }),
        Err(Errno::NOENT | Errno::NOTDIR) => None,
        Err(_) => Some(Kind::Folder),
    }
}

/// The names of a path, the last one first.
fn steps(path: &Path) -> Vec<OsString> {
    let bytes = path.as_os_str().as_bytes();
    let names = bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(|name| OsStr::from_bytes(name).to_owned()).collect()
}

fn path_of(way: &[Step]) -> PathBuf {
    let mut path = PathBuf::from("/");
    path.extend(way.iter().map(|step| &step.name));
    path
}
