//! Where a library lies that is preloaded: beside the command, in `../lib`, or where a variable says.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A library that is preloaded into programs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    /// Names the file, wherever it lies.
    pub(crate) variable: &'static str,
    /// The crate that makes it.
    pub(crate) made_by: &'static str,
}

/// What `millpond run` preloads.
pub(super) const RUN: Library =
    Library { name: "libmillpond_run.so", variable: "MILLPOND_RUN_LIBRARY", made_by: "millpond-run" };

/// Where the Python package has them, and has the command look (`crates/python/python/millpond/__main__.py`).
const IN_THE_PACKAGE: &str = "millpond/_run";

impl Library {
    pub(crate) fn find(self) -> Result<PathBuf> {
        let Self { name, variable, made_by } = self;
        let asked = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        let found = match &asked {
            Some(asked) => asked.is_file().then(|| asked.clone()),
            None => self.beside_the_command(),
        };
        let Some(found) = found.and_then(|path| path.canonicalize().ok()) else {
            return Err(match asked {
                None => Error::NoLibrary { name, variable, made_by },
                Some(path) if path.parent().is_some_and(|folder| folder.ends_with(IN_THE_PACKAGE)) => {
                    Error::NoLibraryInPackage { name, variable }
                }
                Some(path) => Error::NoLibraryThere { variable, path },
            });
        };
        // The dynamic linker takes both for the end of a path.
        if found.to_string_lossy().contains([' ', ':']) {
            let why = format!(
                "{}: it cannot be preloaded from a path with a space or a colon: copy it, and name the copy in {variable}",
                found.display()
            );
            return Err(Error::Usage(why));
        }
        // The dynamic linker would go on without it, and so without its limit.
        if !is_elf(&found) {
            return Err(Error::NoElf { path: found, made_by });
        }
        Ok(found)
    }

    fn beside_the_command(self) -> Option<PathBuf> {
        let command = std::env::current_exe().ok()?.canonicalize().ok()?;
        let folder = command.parent()?;
        let places = [folder.join(self.name), folder.join("../lib").join(self.name)];
        places.into_iter().find(|path| Path::exists(path))
    }
}

/// Whether it begins as a library of a 64-bit machine does.
fn is_elf(library: &Path) -> bool {
    const BEGINNING: [u8; 5] = *b"\x7fELF\x02";
    let mut begins = [0; BEGINNING.len()];
    std::fs::File::open(library).and_then(|mut file| file.read_exact(&mut begins)).is_ok()
        && begins == BEGINNING
}
