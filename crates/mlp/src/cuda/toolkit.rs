//! Finding the toolkit's libraries, so that cudarc does.
//!
//! cudarc leaves the search to the system's loader, and panics where it finds nothing. So it is asked first
//! ([`find`]); and what lies where the loader does not look, in the folders of toolkits and of wheels from PyPI,
//! is loaded by its path: a library that is loaded already is found under its name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::{Error, Result};

/// A library of the CUDA toolkit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Its name for people.
    pub(super) name: &'static str,
    /// Its file name between "lib" and ".so".
    pub(super) stem: &'static str,
    /// The package on PyPI that has it.
    pub(super) wheel: &'static str,
    /// Whether cudarc can load it.
    pub(super) is_present: unsafe fn() -> bool,
}

/// Sees to it that cudarc's functions for this library can be called.
///
/// # Errors
/// [`Error::Library`] that says where it was looked for.
pub(super) fn find(wanted: Wanted) -> Result<()> {
    // SAFETY: loading runs the initialisers of NVIDIA's libraries, which any CUDA program does.
    let is_present = || unsafe { (wanted.is_present)() };
    if is_present() {
        return Ok(());
    }
    let folders = folders();
    let mut refused = None;
    for name in cudarc::get_lib_name_candidates(wanted.stem) {
        for path in folders.iter().map(|folder| folder.join(&name)).filter(|path| path.exists()) {
            match load(&path) {
                Ok(()) if is_present() => return Ok(()),
                Ok(()) => refused = Some(format!("{}: of a CUDA version that is not known", path.display())),
                Err(error) => refused = Some(format!("{}: {error}", path.display())),
            }
        }
    }
    Err(missing(wanted, refused))
}

fn missing(wanted: Wanted, refused: Option<String>) -> Error {
    Error::Library {
        library: wanted.name,
        what: match refused {
            Some(refused) => format!("found, but it cannot be used: {refused}"),
            None => format!(
                "lib{}.so of CUDA 12 or 13 was not found by the system's loader (LD_LIBRARY_PATH), nor in \
                 CUDA_HOME, /usr/local/cuda or the environment of python3. Install the CUDA toolkit, or \
                 `pip install {}`, or train with --device host",
                wanted.stem, wanted.wheel
            ),
        },
    }
}

/// The first library of one of these names, where [`find`] looks for others.
pub(super) fn open(names: &[&str]) -> Option<Library> {
    let by_loader = names.iter().map(PathBuf::from);
    let in_folders = folders().into_iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    // SAFETY: as in `find`.
    let open = |path: PathBuf| unsafe { Library::new(path) }.ok();
    by_loader.chain(in_folders.filter(|path| path.exists())).find_map(open)
}

/// Loads the library at this path, for good.
pub(super) fn load(path: impl AsRef<OsStr>) -> std::result::Result<(), libloading::Error> {
    // SAFETY: as in `find`. The names are NVIDIA's own.
    let library = unsafe { Library::new(path.as_ref()) }?;
    // Closing it would unload it.
    std::mem::forget(library);
    Ok(())
}

/// Where toolkits and wheels put libraries, beside the places that the loader knows.
fn folders() -> Vec<PathBuf> {
    let toolkits = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from)
        .chain([PathBuf::from("/usr/local/cuda"), PathBuf::from("/opt/cuda")]);
    let mut folders: Vec<_> = toolkits
        .flat_map(|root| [root.join("lib64"), root.join("targets/x86_64-linux/lib"), root.join("lib")])
        .collect();
    for root in python_environments() {
        folders.push(root.join("lib"));
        folders.extend(wheels(&root.join("lib")));
    }
    folders
}

/// The environment that is activated, and that of the `python3` that the shell would run.
fn python_environments() -> Vec<PathBuf> {
    let activated =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .find(|folder| folder.join("python3").exists())
        .and_then(|folder| folder.parent().map(PathBuf::from));
    activated.chain(on_path).collect()
}

/// The library folders of NVIDIA's wheels: `python3.N/site-packages/nvidia/*/lib`.
fn wheels(lib: &Path) -> Vec<PathBuf> {
    let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries(lib.to_owned())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .flat_map(|python| entries(python.path().join("site-packages/nvidia")))
        .map(|package| package.path().join("lib"))
        .filter(|folder| folder.is_dir())
        .collect();
    // The file system's order is nobody's.
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::super::{cublaslt::CUBLASLT, nvrtc::NVRTC};
    use super::*;

    #[test]
    fn the_libraries_of_cuda_12_and_13_are_looked_for() {
        for Wanted { stem, .. } in [CUBLASLT, NVRTC] {
            let names = cudarc::get_lib_name_candidates(stem);
            for version in ["", ".12", ".13"] {
                let name = format!("lib{stem}.so{version}");
                assert!(names.contains(&name), "{name} in {names:?}");
            }
        }
    }

    #[test]
    fn a_missing_library_is_named_with_what_to_do() {
        let text = missing(CUBLASLT, None).to_string();
        assert!(text.contains("libcublasLt.so") && text.contains("pip install nvidia-cublas"), "{text}");
        let text = missing(NVRTC, Some(String::from("/a/libnvrtc.so.12: no permission"))).to_string();
        assert!(text.starts_with("NVRTC") && text.contains("no permission"), "{text}");
    }

    #[test]
    fn the_folders_of_wheels_are_found_in_a_python_environment() {
        let root = std::env::temp_dir().join(format!("millpond-wheels-{}", std::process::id()));
        let lib = root.join("lib");
        let expected = lib.join("python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&expected).unwrap();
        std::fs::create_dir_all(lib.join("python3.12/site-packages/numpy")).unwrap();
        assert_eq!(wheels(&lib), [expected]);
        std::fs::remove_dir_all(root).unwrap();
    }
}
