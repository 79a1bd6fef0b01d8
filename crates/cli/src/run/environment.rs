//! The variables by which the program's processes get the library, its settings, and what Python begins with.

use std::ffi::OsString;
use std::path::Path;

use super::args::RunArgs;
use super::around::Bounds;
use super::handed::Handed;
use super::recorded::Recorded;
use crate::error::{Error, Result};

/// What each process of a prediction has in its environment, with the folder of the prediction.
pub(crate) const PREDICTED: &str = "MILLPOND_PREDICT";

/// Whether this command is part of a program that is predicted.
pub(crate) fn is_predicted() -> bool {
    std::env::var_os(PREDICTED).is_some_and(|folder| !folder.is_empty())
}

/// The variables that the program and its children inherit.
pub(super) fn environment(
    (args, bounds): (&RunArgs, &Bounds),
    library: &Path,
    [accounts, python]: [&Handed; 2],
    recording: Option<&Recorded>,
) -> Result<Vec<(&'static str, OsString)>> {
    let mut all = vec![
        ("LD_PRELOAD", preloaded(library)),
        ("MILLPOND_RUN", args.mode().into()),
        ("MILLPOND_RUN_ACCOUNTS", accounts.path()),
        ("MILLPOND_RUN_ASYNC_FREE", if args.async_free { "1" } else { "" }.into()),
        ("MILLPOND_RUN_IPC", if args.ipc { "1" } else { "" }.into()),
        // Its runtime would not start where another library comes before it. That one has no function which it watches.
        ("ASAN_OPTIONS", before_others("verify_asan_link_order=0".into(), "ASAN_OPTIONS")),
    ];
    all.extend(bounds.variables());
    if args.mode() == "pool" {
        all.extend(for_python(python));
    }
    all.extend(args.decay.as_ref().map(|seconds| ("MILLPOND_DECAY", seconds.into())));
    all.extend(args.offload.as_ref().map(|what| ("MILLPOND_OFFLOAD", what.into())));
    if let Some(recording) = recording {
        // A program may go to another folder before it allocates.
        let path = std::path::absolute(recording.path()).map_err(|source| Error::Io {
            path: recording.path().to_owned(),
            action: "find its folder",
            source,
        })?;
        all.push(("MILLPOND_RECORD", path.into()));
        all.push(("MILLPOND_RECORD_SINCE", recording.since().into()));
    }
    Ok(all)
}

/// What Python processes begin with.
const START: (&str, &str) = ("sitecustomize.py", include_str!("python/sitecustomize.py"));
pub(super) const PYTHON: [(&str, &str); 2] =
    [START, ("millpond_imports.py", include_str!("python/millpond_imports.py"))];

/// What Python processes begin with is the first on their path. A library that the caller's environment speaks of already is
/// left to that.
fn for_python(python: &Handed) -> Vec<(&'static str, OsString)> {
    const LIBRARIES: [&str; 4] = ["MILLPOND_TORCH", "MILLPOND_CUPY", "MILLPOND_RMM", "MILLPOND_NUMBA"];
    let path = before_others(python.path(), "PYTHONPATH");
    let unsaid = LIBRARIES.into_iter().filter(|name| std::env::var_os(name).is_none());
    unsaid.map(|name| (name, "1".into())).chain([("PYTHONPATH", path)]).collect()
}

/// Writes files into a new folder, beside what each Python process begins with: that imports `millpond_imports`. Returns
/// PYTHONPATH with the folder before all others.
pub(crate) fn python_path(folder: &Path, files: &[(&str, &str)]) -> Result<OsString> {
    let write = || {
        for (name, text) in files.iter().chain(&[START]) {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            std::fs::write(path, text)?;
        }
        Ok(())
    };
    write().map_err(|source| Error::Io { path: folder.to_owned(), action: "write to it", source })?;
    Ok(before_others(folder.into(), "PYTHONPATH"))
}

/// A path before those that a variable has already.
fn before_others(mut path: OsString, variable: &str) -> OsString {
    if let Some(others) = std::env::var_os(variable).filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    path
}

/// The library that is to be preloaded, before those that are already.
///
/// It is named by a way that only glibc goes: from the program's folder up to the root, and down again. Musl knows no `$ORIGIN` there,
/// and does not find the library, which it could not load. It does not start a program with one that it finds.
pub(crate) fn preloaded(library: &Path) -> OsString {
    /// More folders than there are above any program.
    const UP: usize = 64;
    let mut path = OsString::from("$ORIGIN");
    path.push("/..".repeat(UP));
    path.push(library);
    before_others(path, "LD_PRELOAD")
}
