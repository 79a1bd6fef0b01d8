//! Programs in C and C++, built with the system's compilers against the library, on the host device.
//!
//! Each program under `tests/c` and `tests/cpp` is a test of its own: plain, under AddressSanitizer with the
//! undefined-behaviour sanitizer, and under valgrind. A machine without these tools runs what it can and says what it
//! did not; `.ci/run` sets `MILLPOND_REQUIRE_TOOLS`, with which a missing tool is a failure.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// How a program is built and run.
#[derive(Clone, Copy, PartialEq)]
enum Watch {
    Nothing,
    Sanitizers,
    Valgrind,
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with libmillpond.so as it is installed, made of what cargo built for this test.
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let test = std::env::current_exe().expect("a running test has a path");
        let built = test.parent().expect("and it lies in a folder").join("libmillpond_capi.so");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib");
        std::fs::create_dir_all(&folder).expect("cargo made the folder above");
        for name in ["libmillpond.so", "libmillpond.so.0"] {
            let link = folder.join(name);
            // Of several test processes at once each may be the one that makes the link.
            let _ = std::os::unix::fs::symlink(&built, &link);
            assert!(link.exists(), "{} leads nowhere; remove it", link.display());
        }
        folder
    })
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn build(source: &str, watch: Watch) -> PathBuf {
    let suffix = match watch {
        Watch::Nothing => "plain",
        Watch::Sanitizers => "sanitized",
        Watch::Valgrind => "valgrind",
    };
    let file = here().join("tests").join(source);
    let program = library().join(format!("{}-{suffix}", source.replace(['/', '.'], "-")));
    let (compiler, standard) =
        if source.ends_with(".c") { ("gcc", "-std=c11") } else { ("g++", "-std=c++17") };
    let mut command = Command::new(compiler);
    command.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]);
    if watch == Watch::Sanitizers {
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    command.arg("-I").arg(here().join("include")).arg(file).arg("-o").arg(&program);
    command.arg("-L").arg(library()).arg("-lmillpond").arg(format!("-Wl,-rpath,{}", library().display()));
    run(&mut command);
    program
}

/// Whether the machine has a tool; if not, the test says so.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    assert!(found || std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "{tool} is not installed");
    if !found {
        eprintln!("not run: {tool} is not installed");
    }
    found
}

fn check(source: &str, watch: Watch) {
    let compiler = if source.ends_with(".c") { "gcc" } else { "g++" };
    if !has(compiler) || (watch == Watch::Valgrind && !has("valgrind")) {
        return;
    }
    let program = build(source, watch);
    if watch == Watch::Valgrind {
        run(Command::new("valgrind")
            .args([
                "--quiet",
                "--fair-sched=try",
                "--error-exitcode=9",
                "--leak-check=full",
                "--errors-for-leak-kinds=definite",
            ])
            .arg(program)
            .env("MILLPOND_DEVICE", "host"));
    } else {
        run(Command::new(program).env("MILLPOND_DEVICE", "host"));
    }
}

/// Plain only: a forked child leaves alone what its parent had, which valgrind calls a leak; and the allocator of GCC 12's
/// AddressSanitizer has locks that a fork does not let go of.
#[test]
fn forked_children_are_answered_at_once() {
    check("c/forks.c", Watch::Nothing);
}

macro_rules! programs {
    ($($name:ident: $source:literal),* $(,)?) => {$(
        mod $name {
            use super::*;

            #[test]
            fn runs() {
                check($source, Watch::Nothing);
            }

            #[test]
            fn runs_under_the_sanitizers() {
                check($source, Watch::Sanitizers);
            }

            #[test]
            fn runs_under_valgrind() {
                check($source, Watch::Valgrind);
            }
        }
    )*};
}

programs! {
    memory_is_allocated_and_freed: "c/first.c",
    every_call_does_what_the_header_says: "c/every_call.c",
    every_mistake_is_answered: "c/mistakes.c",
    out_of_memory_is_a_conversation: "c/out_of_memory.c",
    captures_have_memory_of_their_own: "c/captures.c",
    pools_are_recorded: "c/recording.c",
    threads_share_pools_and_release_handles: "c/threads.c",
    cpp_objects_let_go_of_themselves: "cpp/raii.cpp",
    the_simple_pools_interface_is_kept: "cpp/mempool.cpp",
    a_pool_is_a_resource_of_cccl: "cpp/cccl.cpp",
}
