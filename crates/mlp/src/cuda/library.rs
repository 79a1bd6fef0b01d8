//! Finding and opening a library, and its functions as a table.
//!
//! cudarc binds these libraries too, but looks for the file names of the CUDA version that it was built for
//! (the wheels on PyPI carry another one), panics where a function is missing, and types status codes as Rust
//! enums, which a newer library's codes would make undefined behaviour.

use std::path::PathBuf;

use libloading::Library;
use millpond::device::cuda;

use crate::{Error, Result};

/// Declares a struct of function pointers, looked up all at once.
macro_rules! function_table {
    ($(#[$doc:meta])* $table:ident { $($name:ident($($arg:ident: $ty:ty),* $(,)?) -> $status:ty;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg: $ty),*) -> $status,)*
        }

        impl $table {
            /// Looks up every function; the error is the name of the first that is missing.
            ///
            /// # Safety
            /// The library is the one whose header declares these names with these types, and is never
            /// unloaded.
            pub(super) unsafe fn look_up(
                library: &libloading::Library,
            ) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the caller's promise.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| stringify!($name))?,)*
                })
            }
        }
    };
}
pub(super) use function_table;

/// A library of the CUDA toolkit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Its name for people.
    pub(super) name: &'static str,
    /// Its file name up to ".so".
    pub(super) stem: &'static str,
    /// The package on PyPI that has it.
    pub(super) wheel: &'static str,
}

/// Opens a toolkit library, the newest major version that the driver supports first. It is never closed.
///
/// # Errors
/// [`Error::Library`] that says where it was looked for.
pub(super) fn open(wanted: Wanted) -> Result<&'static Library> {
    let newest = cuda::driver()?.cuda.major;
    let names: Vec<String> = (12..=newest)
        .rev()
        .map(|major| format!("{}.so.{major}", wanted.stem))
        .chain([format!("{}.so", wanted.stem)])
        .collect();
    let mut found_but_refused = None;
    for name in &names {
        if let Ok(library) = load(name) {
            return Ok(library);
        }
        for path in folders().iter().map(|folder| folder.join(name)).filter(|path| path.exists()) {
            match load(&path) {
                Ok(library) => return Ok(library),
                Err(error) => found_but_refused = Some(format!("{}: {error}", path.display())),
            }
        }
    }
    Err(Error::Library {
        library: wanted.name,
        what: match found_but_refused {
            Some(refused) => format!("found, but it cannot be loaded: {refused}"),
            None => format!(
                "none of {} was found by the system's loader (LD_LIBRARY_PATH), in CUDA_HOME, /usr/local/cuda or \
                 the environment of python3. Install the CUDA toolkit, or `pip install {}`, or train with \
                 --device host",
                names.join(", "),
                wanted.wheel
            ),
        },
    })
}

/// Opens the library at this path or of this name.
pub(super) fn load(
    path: impl AsRef<std::ffi::OsStr>,
) -> std::result::Result<&'static Library, libloading::Error> {
    // SAFETY: loading runs the initialisers of NVIDIA's libraries, which any CUDA program does. The names are
    // NVIDIA's own.
    let library = unsafe { Library::new(path.as_ref()) }?;
    Ok(Box::leak(Box::new(library)))
}

/// The error for a library that lacks a function.
pub(super) fn lacks(library: &'static str, function: &'static str) -> Error {
    Error::Library { library, what: format!("it lacks the function {function}: install CUDA 12.0 or later") }
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
fn wheels(lib: &std::path::Path) -> Vec<PathBuf> {
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
    use super::*;

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
