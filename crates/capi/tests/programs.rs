//! Programs in C and C++, built with the system's compilers against the library, on the host device.
//!
//! Each program under `tests/c` and `tests/cpp` is a test of its own. With `MILLPOND_REQUIRE_TOOLS`, which `.ci/run` sets, it
//! runs also under AddressSanitizer with the undefined-behaviour sanitizer, under ThreadSanitizer, and under valgrind: that takes
//! most of the time. The last two get the files that are installed for them. A missing tool is a failure then. Without it, the
//! tests run what they can and say what they did not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

/// How a program is built and run.
#[derive(Clone, Copy, PartialEq)]
enum Watch {
    Nothing,
    Sanitizers,
    Threads,
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
        let beside = || test.parent().expect("and it lies in a folder").join("libmillpond_capi.so");
        // Where it was not built here, the script that runs the tests says where it is.
        let built = std::env::var_os("MILLPOND_LIBRARY").map_or_else(beside, PathBuf::from);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib");
        std::fs::create_dir_all(&folder).expect("cargo made the folder above");
        for name in ["libmillpond.so", "libmillpond.so.0.1"] {
            // Made anew: one that a copy of the folder has leads to another library. By `rename`, since several test processes may
            // do so at once.
            let own = folder.join(format!("{name}.{}", std::process::id()));
            std::os::unix::fs::symlink(&built, &own).expect("nobody else has this name");
            std::fs::rename(&own, folder.join(name)).expect("a link takes the place of another");
            assert!(folder.join(name).exists(), "{} is not there", built.display());
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

/// Builds one of the programs beside this file, once for the tests that run it alike.
fn build(source: &str, watch: Watch, standard: &str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>> = Mutex::new(BTreeMap::new());
    let suffix = match watch {
        Watch::Sanitizers => "sanitized",
        Watch::Threads => "threads",
        Watch::Nothing | Watch::Valgrind => "plain",
    };
    let name = format!("{}-{standard}-{suffix}", source.replace(['/', '.'], "-"));
    let program = BUILT.lock().unwrap().entry(name.clone()).or_default().clone();
    program.get_or_init(|| compile(&here().join("tests").join(source), &name, watch, standard)).clone()
}

fn compile(file: &Path, name: &str, watch: Watch, standard: &str) -> PathBuf {
    compile_with(file, name, watch, standard, &[])
}

fn compile_with(file: &Path, name: &str, watch: Watch, standard: &str, flags: &[&str]) -> PathBuf {
    let program = library().join(name);
    let mut command = Command::new(compiler(standard));
    command.arg(format!("-std={standard}"));
    // Lines are enough for a report. Sanitizers see all that is written where nothing is optimised, in half of the time.
    command.args(["-g1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]);
    command.args(match watch {
        Watch::Nothing | Watch::Valgrind => &["-O1"][..],
        Watch::Sanitizers => &["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
        Watch::Threads => &["-O0", "-fsanitize=thread"],
    });
    command.args(flags);
    for folder in cccl() {
        command.arg("-DEXPECT_CCCL").arg("-isystem").arg(folder);
    }
    command.arg("-I").arg(here().join("include")).arg(file).arg("-o").arg(&program);
    command.arg("-L").arg(library()).arg("-lmillpond").arg(format!("-Wl,-rpath,{}", library().display()));
    run(&mut command);
    program
}

/// The folders with the headers of CCCL and of the CUDA runtime that `MILLPOND_CCCL` names, with colons between. Without it the
/// resources for CCCL are compiled where the compiler finds these headers by itself.
fn cccl() -> Vec<PathBuf> {
    std::env::var_os("MILLPOND_CCCL")
        .map_or_else(Vec::new, |folders| std::env::split_paths(&folders).collect())
}

fn compiler(standard: &str) -> &'static str {
    if standard == C { "gcc" } else { "g++" }
}

/// What the headers ask for at least.
const C: &str = "c11";
const CPP: &str = "c++17";

fn standard_of(source: &str) -> &'static str {
    if source.ends_with(".c") { C } else { CPP }
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
    check_as(source, watch, standard_of(source));
}

fn check_as(source: &str, watch: Watch, standard: &str) {
    if watch != Watch::Nothing && std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none() {
        return eprintln!("not run: sanitizers and valgrind take MILLPOND_REQUIRE_TOOLS=1");
    }
    if !has(compiler(standard)) || (watch == Watch::Valgrind && !has("valgrind")) {
        return;
    }
    let program = build(source, watch, standard);
    let mut command = match watch {
        Watch::Valgrind => {
            let mut command = Command::new("valgrind");
            command.args(["--quiet", "--fair-sched=try", "--error-exitcode=9", "--leak-check=full"]);
            command.arg(format!("--suppressions={}", suppressions("valgrind.supp")));
            command.arg(program).arg("briefly");
            command
        }
        _ => Command::new(program),
    };
    if watch == Watch::Threads {
        command.arg("briefly").env("TSAN_OPTIONS", tsan_options());
    }
    run(command.env("MILLPOND_DEVICE", "host"));
}

/// A file that is installed for a tool.
fn suppressions(name: &str) -> String {
    here().join("install").join(name).display().to_string()
}

fn tsan_options() -> String {
    format!("exitcode=66:suppressions={}", suppressions("tsan.supp"))
}

#[test]
fn thread_sanitizer_finds_a_race_of_the_program() {
    if std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none() || !has(compiler(CPP)) {
        return eprintln!("not run: ThreadSanitizer takes MILLPOND_REQUIRE_TOOLS=1");
    }
    let mut command = Command::new(build("cpp/race.cpp", Watch::Threads, CPP));
    let output = command.env("TSAN_OPTIONS", tsan_options()).output().expect("it was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(66), "{said}");
    assert!(said.contains("race.cpp:14"), "{said}");
}

/// Plain only: a forked child leaves alone what its parent had, which valgrind calls a leak; and the allocator of GCC 12's
/// AddressSanitizer has locks that a fork does not let go of.
#[test]
fn forked_children_are_answered_at_once() {
    check("c/forks.c", Watch::Nothing);
}

/// Plain only, as forks are.
#[test]
fn two_processes_share_a_block() {
    check("../../../examples/c/sharing.c", Watch::Nothing);
}

/// Plain only, as forks are.
#[test]
fn destructors_in_a_forked_child_do_not_throw() {
    if has(compiler(CPP)) {
        run(Command::new(build("cpp/frees.cpp", Watch::Nothing, CPP))
            .arg("forks")
            .env("MILLPOND_DEVICE", "host"));
    }
}

#[test]
fn cpp_works_without_run_time_types() {
    if has(compiler(CPP)) {
        let file = here().join("tests/cpp/equality.cpp");
        let program = compile_with(&file, "equality-no-rtti", Watch::Nothing, CPP, &["-fno-rtti"]);
        run(Command::new(program).env("MILLPOND_DEVICE", "host"));
    }
}

/// What these take to compile is for who uses CCCL.
#[test]
fn the_header_of_cpp_reads_none_of_cuda() {
    if !has(compiler(CPP)) {
        return;
    }
    let folder = library().join("cuda-is-there");
    for name in ["cuda/memory_resource", "cuda/stream_ref", "cuda_runtime_api.h", "cuda_runtime.h"] {
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("the folder is ours");
        std::fs::write(&file, "#error it is read\n").expect("the folder is ours");
    }
    let program = folder.join("program.cpp");
    std::fs::write(&program, "#include <millpond.hpp>\n").expect("the folder is ours");
    let mut command = Command::new(compiler(CPP));
    command.args(["-std=c++17", "-fsyntax-only", "-I"]).arg(here().join("include"));
    run(command.arg("-I").arg(&folder).arg(&program));
    // A quarter of what a compiler would read for it.
    let header = std::fs::read_to_string(here().join("include/millpond.hpp")).expect("it is there");
    assert!(!header.contains("<functional>") && !header.contains("std::function<"));
}

#[test]
fn what_is_dropped_at_once_is_warned_of() {
    if !has(compiler(CPP)) {
        return;
    }
    let file = here().join("tests/cpp/discarded.cpp");
    let mut command = Command::new(compiler(CPP));
    command.args(["-std=c++17", "-fsyntax-only", "-I"]).arg(here().join("include")).arg(&file);
    let said = String::from_utf8(command.env("LC_ALL", "C").output().unwrap().stderr).unwrap();
    let statements = std::fs::read_to_string(&file).unwrap();
    let statements = statements.lines().filter(|line| line.starts_with("    "));
    assert_eq!(said.matches("warning: ignoring return").count(), statements.count(), "{said}");
}

/// What callgrind counts for one pair: many pairs less few, by how many more they are.
fn instructions(program: &Path, what: &str) -> u64 {
    let profile = program.with_extension(what);
    let count = |pairs: &str| {
        let mut command = Command::new("valgrind");
        command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", profile.display()));
        run(command.arg(program).args([what, pairs]).env("MILLPOND_DEVICE", "sim"));
        let found = std::fs::read_to_string(&profile).expect("callgrind wrote it");
        let line =
            found.lines().find_map(|line| line.strip_prefix("summary: ").or(line.strip_prefix("totals: ")));
        let all = line.and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
        all.expect("a profile ends with its sum")
    };
    (count("13000") - count("3000")) / 10_000
}

/// A `Buffer` takes 52 more, which is less than 2 ns (docs/lab/cpp.md). `allocate_async` also notes the stream.
#[test]
fn a_pair_from_cpp_takes_few_instructions_more_than_from_c() {
    if std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none() {
        return eprintln!("not run: callgrind takes MILLPOND_REQUIRE_TOOLS=1");
    }
    if !has(compiler(CPP)) || !has("valgrind") {
        return;
    }
    let file = here().join("tests/cpp/pairs.cpp");
    let program = compile_with(&file, "pairs", Watch::Nothing, CPP, &["-O2"]);
    let of_c = instructions(&program, "c");
    for (what, most) in [("pool", 15), ("resource", 60), ("buffer", 60), ("simple", 60), ("async", 90)] {
        let more = instructions(&program, what).saturating_sub(of_c);
        assert!(more <= most, "{what}: {more} more than the {of_c} from C");
    }
}

/// Under which copies take spans.
#[test]
fn cpp_objects_work_in_cpp_20() {
    check_as("cpp/raii.cpp", Watch::Sanitizers, "c++20");
}

/// The same program as on the host device.
#[test]
#[ignore = "needs a CUDA GPU"]
fn resources_do_what_rmm_asks_on_a_gpu() {
    if has(compiler(CPP)) {
        run(Command::new(build("cpp/resources.cpp", Watch::Nothing, CPP)).env("MILLPOND_DEVICE", "cuda"));
    }
}

/// But for its include, it names nothing of this library.
#[test]
fn a_program_of_the_simple_pool_runs_unchanged() {
    let source = "../../../examples/cpp/mempool.cpp";
    let text = std::fs::read_to_string(here().join("tests").join(source)).unwrap();
    let mut code = text.lines().filter(|line| !line.starts_with("//"));
    assert_eq!(code.next(), Some("#include <cuda_mempool.hpp>"));
    assert!(!code.any(|line| line.contains("millpond") || line.contains("MILLPOND")));
    check(source, Watch::Nothing);
}

/// The fenced blocks of a page that are in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let path = here().join("../../docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let begin = format!("```{language}\n");
    let fenced = text.split(&begin).skip(1);
    fenced.map(|rest| rest.split_once("```").expect("a block ends").0.to_owned()).collect()
}

/// What a page shows is a whole program, which runs.
fn check_page(page: &str, language: &str, standard: &str, programs: usize) {
    if !has(compiler(standard)) {
        return;
    }
    let found = blocks(page, language);
    assert_eq!(found.len(), programs, "programs in docs/{page}");
    for (number, block) in found.iter().enumerate() {
        let name = format!("{}-{number}", page.replace('.', "-"));
        let file = library().join(format!("{name}.{language}"));
        std::fs::write(&file, block).expect("the folder is ours");
        let program = compile(&file, &name, Watch::Sanitizers, standard);
        run(Command::new(program).current_dir(library()));
    }
}

#[test]
fn the_programs_of_the_page_on_c_run() {
    check_page("c.md", "c", C, 3);
}

#[test]
fn the_programs_of_the_page_on_cpp_run() {
    check_page("cpp.md", "cpp", CPP, 2);
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
            fn runs_under_thread_sanitizer() {
                check($source, Watch::Threads);
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
    every_kind_of_memory_has_pools: "c/memory_kinds.c",
    processes_share_a_budget: "c/budgets.c",
    pools_sleep_and_wake: "c/sleep.c",
    tags_are_evicted_and_restored: "c/evict.c",
    devices_work_together: "c/peers.c",
    pools_are_recorded: "c/recording.c",
    a_guard_finds_what_was_planted: "cpp/guard.cpp",
    threads_share_pools_and_release_handles: "c/threads.c",
    registered_streams_have_two_names: "c/registered_streams.c",
    cpp_objects_let_go_of_themselves: "cpp/raii.cpp",
    elements_are_aligned_as_their_type_asks: "cpp/alignment.cpp",
    buffers_hold_their_pool_and_stream: "cpp/holds.cpp",
    frees_of_destructors_do_not_throw: "cpp/frees.cpp",
    handles_of_one_thing_are_equal: "cpp/equality.cpp",
    cpp_has_what_c_has: "cpp/surface.cpp",
    reports_name_the_programs_own_function: "cpp/sites.cpp",
    the_simple_pools_interface_is_kept: "cpp/mempool.cpp",
    a_pool_is_a_resource_of_cccl: "cpp/cccl.cpp",
    resources_do_what_rmm_asks: "cpp/resources.cpp",
    shared_memory_is_a_buffer: "cpp/sharing.cpp",
    buffers_are_used_while_their_memory_is_there: "cpp/away.cpp",
}
