//! `millpond run`, over the stand-in for the driver that the preloaded library is tested with.
//!
//! | file | what it tests |
//! | --- | --- |
//! | `told` | what is said of the memory of a program and its children |
//! | `ending` | exit statuses, signals, orphans |
//! | `files` | figures, recordings, reports, and that nothing else stays |
//! | `limits` | limits and budgets |
//! | `reach` | which programs are reached, and what the others are told |
//! | `python` | programs in Python |
//! | `usage` | wrong flags |

mod ending;
mod files;
mod limits;
mod python;
mod reach;
mod told;
mod usage;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::shared::command;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../run/tests/c").canonicalize().unwrap()
}

fn compile(folder: &Path, arguments: &[&str]) {
    let mut compiler = Command::new("cc");
    let output =
        compiler.args(["-std=gnu11", "-pthread"]).args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The folder with the stand-in and the program; `None` where there is no compiler.
fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        if Command::new("cc").arg("--version").output().is_err() {
            assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "cc is not installed");
            eprintln!("not run: cc is not installed");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = |name: &str| sources().join(name).to_str().unwrap().to_owned();
        let stand_in =
            ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", &source("standin.c"), "-o", "libcuda.so.1"];
        compile(&folder, &stand_in);
        compile(&folder, &[&source("linked.c"), "./libcuda.so.1", "-o", "linked"]);
        let nvml = source("nvml.c");
        compile(&folder, &["-shared", "-fPIC", &nvml, "./libcuda.so.1", "-o", "libnvidia-ml.so.1"]);
        Some(folder)
    };
    BUILT.get_or_init(build).as_deref()
}

/// `millpond run` with the library that cargo built for this test.
fn run(arguments: &[&str]) -> Command {
    let test = std::env::current_exe().unwrap();
    let mut run = command();
    run.arg("run")
        .args(arguments)
        .env("MILLPOND_RUN_LIBRARY", test.parent().unwrap().join("libmillpond_run.so"));
    if let Some(folder) = built() {
        run.env("LD_LIBRARY_PATH", folder).current_dir(folder);
    }
    run
}

fn ran(arguments: &[&str]) -> Output {
    run(arguments).output().unwrap()
}

/// A Python with these modules first on its path; `None` where there is no Python.
fn python(modules: &[(&str, &str)], script: &str, environment: &[(&str, &str)]) -> Option<Output> {
    if Command::new("python3").arg("--version").output().is_err() {
        assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "python3 is not installed");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in modules {
        let file = dir.path().join(format!("{name}.py"));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let mut command = run(&["python3", "-c", script]);
    Some(command.env("PYTHONPATH", dir.path()).envs(environment.iter().copied()).output().unwrap())
}

/// Stands for the package: it says what is enabled.
const PACKAGE: [(&str, &str); 5] = [
    ("millpond/__init__", "from . import _millpond"),
    ("millpond/_millpond", "def devices_in_use(): return []"),
    ("millpond/torch", "def enable(): print('torch enabled')"),
    ("millpond/cupy", "def enable(): raise RuntimeError('no CUDA here')"),
    ("millpond/numba", "def enable(): print('numba enabled')"),
];
