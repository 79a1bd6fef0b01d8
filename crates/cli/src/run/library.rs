//! Where the library lies that is preloaded: beside the command, in `../lib`, or where `MILLPOND_RUN_LIBRARY` says.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

const NAME: &str = "libmillpond_run.so";

pub(super) fn find() -> Result<PathBuf> {
    let asked = std::env::var_os("MILLPOND_RUN_LIBRARY").filter(|path| !path.is_empty()).map(PathBuf::from);
    let found = match asked {
        Some(asked) => asked.exists().then_some(asked),
        None => beside_the_command(),
    };
    let Some(found) = found.and_then(|path| path.canonicalize().ok()) else {
        return Err(Error::NoRunLibrary);
    };
    // The dynamic linker takes both for the end of a path.
    if found.to_string_lossy().contains([' ', ':']) {
        let why = format!(
            "{}: it cannot be preloaded from a path with a space or a colon: copy it, and name the copy in MILLPOND_RUN_LIBRARY",
            found.display()
        );
        return Err(Error::Usage(why));
    }
    Ok(found)
}

fn beside_the_command() -> Option<PathBuf> {
    let command = std::env::current_exe().ok()?.canonicalize().ok()?;
    let folder = command.parent()?;
    let places = [folder.join(NAME), folder.join("../lib").join(NAME)];
    places.into_iter().find(|path| Path::exists(path))
}
