//! Programs in C that come to the driver on each way, with the library preloaded. What stands for the driver is
//! `tests/c/standin.c`, whose memory is the host's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

/// The library that cargo built for this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    test.parent().expect("and it lies in a folder").join("libmillpond_run.so")
}

fn compile(folder: &Path, arguments: &[&str]) {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    let output =
        compiler.args(arguments).arg("-I").arg(sources()).current_dir(folder).output().expect("cc runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The folder with the stand-in and the programs; `None` where there is no compiler.
fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        if Command::new("cc").arg("--version").output().is_err() {
            assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "cc is not installed");
            eprintln!("not run: cc is not installed");
            return None;
        }
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("entry_points-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("cargo made the folder above");
        let source = |name: &str| sources().join(name).to_str().expect("UTF-8").to_owned();
        compile(
            &folder,
            &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", &source("standin.c"), "-o", "libcuda.so.1"],
        );
        compile(
            &folder,
            &["-shared", "-fPIC", &source("nvml.c"), "./libcuda.so.1", "-o", "libnvidia-ml.so.1"],
        );
        compile(&folder, &[&source("linked.c"), "./libcuda.so.1", "-o", "linked"]);
        compile(&folder, &[&source("loaded.c"), "-ldl", "-o", "loaded"]);
        compile(&folder, &["-shared", "-fPIC", "-DLIBRARY", &source("loaded.c"), "-o", "libcudart-test.so"]);
        compile(&folder, &[&source("shares.c"), "./libcuda.so.1", "-o", "shares"]);
        compile(&folder, &[&source("random.c"), "./libcuda.so.1", "-o", "random"]);
        // Bound when it is opened, with its table protected, or at the first calls.
        for (binding, name) in
            [("-Wl,-z,now,-z,relro", "plugin-now.so"), ("-Wl,-z,lazy,-z,norelro", "plugin-lazy.so")]
        {
            let plugin = source("plugin.c");
            compile(
                &folder,
                &["-shared", "-fPIC", "-DLIBRARY", binding, &plugin, "./libcuda.so.1", "-o", name],
            );
        }
        compile(&folder, &[&source("plugin.c"), "./libcuda.so.1", "-ldl", "-o", "plugged"]);
        compile(&folder, &["-shared", "-fPIC", &source("mock.c"), "-o", "libmock.so"]);
        compile(&folder, &[&source("others.c"), "-ldl", "-o", "others"]);
        compile(&folder, &["-DLINKED", &source("others.c"), "./libmock.so", "-ldl", "-o", "linked-mock"]);
        Some(folder)
    };
    BUILT.get_or_init(build).as_deref()
}

/// What a program did.
struct Ran {
    output: Output,
    /// Those of its processes, in no order.
    reports: Vec<Value>,
}

/// Runs a program with these arguments, and what the environment says.
fn run(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Option<Ran> {
    let folder = built()?;
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut command = Command::new(folder.join(program));
    command.args(arguments).env("LD_PRELOAD", library()).env("LD_LIBRARY_PATH", folder);
    command.current_dir(folder).env("MILLPOND_RUN_ACCOUNTS", file.path()).envs(environment.iter().copied());
    let output = command.output().expect("it was built");
    let told = std::fs::read(file.path()).expect("it is there");
    let reports = told.chunks(SLOT).filter_map(report).collect();
    Some(Ran { output, reports })
}

/// As `crates/entry-points/src/report.rs` has it.
const SLOT: usize = 16 << 10;

/// What a process told in its part of the file.
fn report(slot: &[u8]) -> Option<Value> {
    let whole = usize::from(slot[0]).checked_sub(1)?;
    let text = slot[64 + whole * (SLOT - 64) / 2..].split(|byte| *byte == 0).next()?;
    Some(serde_json::from_slice(text).expect("JSON"))
}

impl Ran {
    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The one report of a program that went well.
    #[track_caller]
    fn report(&self) -> &Value {
        assert!(self.output.status.success(), "{}: {}", self.output.status, self.stderr());
        assert_eq!(self.reports.len(), 1, "{}", self.stderr());
        &self.reports[0]
    }
}

const MIB: u64 = 1 << 20;

/// A case of `linked.c` goes well.
#[track_caller]
fn linked(case: &str, environment: &[(&str, &str)]) -> Option<Value> {
    run("linked", &[case], environment).map(|ran| ran.report().clone())
}

#[test]
fn a_limit_of_file_sizes_ends_no_program() {
    let Some(ran) =
        run("/bin/sh", &["-c", "ulimit -f 1 && exec ./linked passes"], &[("MILLPOND_RUN", "watch")])
    else {
        return;
    };
    assert!(ran.output.status.success(), "{}: {}", ran.output.status, ran.stderr());
    assert!(ran.reports.is_empty(), "there is no room for one");
}

#[test]
fn a_linked_program_gets_its_memory_from_a_pool() {
    let Some(report) = linked("pairs", &[]) else { return };
    let pool = &report["pools"][0];
    assert_eq!((pool["allocations"].as_u64(), pool["frees"].as_u64()), (Some(300), Some(300)), "{report}");
    assert_eq!(report["outside"]["peak"], 0, "{report}");
}

#[test]
fn functions_that_a_program_looks_up_are_the_entry_points() {
    for how in ["handle", "all", "runtime", "entry point", "thread"] {
        let Some(ran) = run("loaded", &["program", how], &[]) else { return };
        assert_eq!(ran.report()["pools"][0]["allocations"], 3, "{how}: {}", ran.stderr());
    }
}

#[test]
fn a_library_that_is_opened_deep_comes_by_the_entry_points() {
    let Some(folder) = built() else { return };
    let library = folder.join("libcudart-test.so");
    for how in ["handle", "runtime"] {
        let ran = run("loaded", &[library.to_str().expect("UTF-8"), how], &[]).expect("it was built");
        assert_eq!(ran.report()["pools"][0]["allocations"], 3, "{how}: {}", ran.stderr());
    }
}

#[test]
fn what_is_not_the_drivers_is_left_alone() {
    for (program, arguments) in [("others", &["mock"][..]), ("others", &["namespace"]), ("linked-mock", &[])]
    {
        let Some(ran) = run(program, arguments, &[]) else { return };
        assert!(ran.output.status.success(), "{program} {arguments:?}: {}", ran.stderr());
        assert!(
            ran.reports.is_empty() && ran.stderr().is_empty(),
            "{program} {arguments:?}: {}",
            ran.stderr()
        );
    }
}

#[test]
fn a_plugin_with_a_scope_of_its_own_has_the_same_memory() {
    for plugin in ["./plugin-now.so", "./plugin-lazy.so"] {
        let Some(ran) = run("plugged", &[plugin], &[]) else { return };
        assert_eq!(ran.report()["pools"][0]["allocations"], 4, "{plugin}: {}", ran.stderr());
    }
}

#[test]
fn valgrind_finds_nothing() {
    if std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none() {
        return eprintln!("not run: valgrind takes MILLPOND_REQUIRE_TOOLS=1");
    }
    let Some(folder) = built() else { return };
    let reports = tempfile::NamedTempFile::new().expect("a file");
    let cases = ["pairs", "reset"];
    let started = cases.map(|case| {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--error-exitcode=9"]).arg(folder.join("linked")).arg(case);
        valgrind.env("LD_PRELOAD", library()).env("LD_LIBRARY_PATH", folder);
        let piped =
            valgrind.env("MILLPOND_RUN_ACCOUNTS", reports.path()).stderr(std::process::Stdio::piped());
        piped.spawn().expect("valgrind is installed")
    });
    for (case, child) in cases.iter().zip(started) {
        let output = child.wait_with_output().expect("it was started");
        assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn mistakes_are_errors_of_cuda() {
    linked("mistakes", &[]);
}

#[test]
fn a_free_waits_for_the_gpu_unless_it_need_not() {
    linked("waits", &[]);
    linked("waits", &[("MILLPOND_RUN_ASYNC_FREE", "1")]);
}

#[test]
fn no_stream_uses_what_a_plain_allocation_gets() {
    linked("ready", &[]);
}

#[test]
fn questions_about_memory_are_answered() {
    linked("answers", &[]);
}

#[test]
fn a_block_is_as_memory_of_the_drivers() {
    linked("attributes", &[]);
}

#[test]
fn memory_for_other_processes_is_the_drivers_after_the_first_request() {
    let Some(report) = linked("ipc", &[]) else { return };
    let said = report["said"][0].as_str().expect("it is said");
    assert!(said.contains("cuIpcGetMemHandle") && said.contains("Run it with --ipc"), "{said}");
    let report = linked("ipc", &[("MILLPOND_RUN_IPC", "1")]).expect("it was built");
    assert_eq!(
        (&report["said"], &report["pools"]),
        (&Value::Array(vec![]), &Value::Array(vec![])),
        "{report}"
    );
}

#[test]
fn two_processes_have_one_block() {
    let Some(ran) = run("shares", &[], &[("STANDIN_SHARES", "1")]) else { return };
    assert!(ran.output.status.success(), "{}", ran.stderr());
    assert!(ran.stderr().contains("the memory was freed there"), "{}", ran.stderr());
    // Without pages that can be shared, as before.
    linked("ipc", &[]);
}

#[test]
fn the_drivers_pools_are_the_gpus_unless_they_are_for_others() {
    linked("pools", &[]);
}

#[test]
fn a_captures_memory_is_the_graphs() {
    linked("captures", &[]);
}

#[test]
fn a_capture_ends_with_its_context() {
    linked("captured contexts", &[]);
}

#[test]
fn memory_of_a_programs_own_context_is_the_drivers() {
    let Some(report) = linked("contexts", &[]) else { return };
    assert_eq!(report["outside"]["plain"]["peak"], MIB, "{report}");
}

#[test]
fn a_gpu_with_access_to_another_ones_memory_has_its_pools() {
    linked("peers", &[]);
}

#[test]
fn copies_between_gpus_on_default_streams_are_in_order() {
    linked("crossing", &[]);
}

#[test]
fn after_a_reset_the_program_begins_anew() {
    let Some(report) = linked("reset", &[]) else { return };
    assert_eq!(report["pools"].as_array().map(Vec::len), Some(3), "{report}");
}

#[test]
fn a_green_context_keeps_the_memory_of_the_primary_one() {
    linked("green", &[]);
}

#[test]
fn a_thread_may_remember_a_context_that_ended() {
    linked("reset beside", &[]);
}

#[test]
fn a_gpu_goes_on_where_the_context_of_another_ended() {
    linked("ends beside another", &[]);
}

#[test]
fn memory_ends_with_the_last_release_of_its_context() {
    for limit in ["", "104857600"] {
        linked("releases", &[("MILLPOND_RUN_LIMIT", limit)]);
    }
    linked("releases", &[("MILLPOND_RUN", "limit")]);
}

#[test]
fn a_gpu_gets_back_what_nobody_uses() {
    linked("idle", &[("MILLPOND_DECAY", "0.02")]);
}

#[test]
fn threads_share_a_pool() {
    linked("threads", &[]);
}

#[test]
fn a_pair_on_a_threads_own_stream_asks_the_driver_nothing() {
    linked("own stream", &[("MILLPOND_DECAY", "0")]);
}

#[test]
fn a_limit_holds_for_the_sum() {
    let limit = ("MILLPOND_RUN_LIMIT", "104857600");
    let Some(report) = linked("limited", &[limit]) else { return };
    assert!(report["pools"][0]["held_peak"].as_u64() <= Some(100 * MIB), "{report}");
    let report = linked("limited", &[limit, ("MILLPOND_RUN", "limit")]).expect("it was built");
    assert_eq!((&report["pools"], &report["outside"]["peak"]), (&Value::Array(vec![]), &(100 * MIB).into()));
    assert_eq!(report["outside"]["refused"], 2, "{report}");
    let pinned = &report["outside"]["pinned"];
    assert_eq!(
        (&pinned["allocations"], &pinned["bytes"], &pinned["peak"]),
        (&2.into(), &0.into(), &(151 * MIB).into())
    );
}

/// A limit of 100 MiB with what CUDA itself takes, of which a context is 30.
const WHOLE_LIMIT: [(&str, &str); 3] = [
    ("MILLPOND_RUN_LIMIT", "104857600"),
    ("MILLPOND_RUN_COUNT_OVERHEAD", "1"),
    ("STANDIN_CONTEXT", "31457280"),
];

/// Whether processes have the numbers here that the driver knows.
fn is_first_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|of| of == Path::new("pid:[4026531836]"))
}

#[test]
fn a_limit_can_count_what_cuda_itself_takes() {
    if !is_first_pid_namespace() {
        return eprintln!("not run: processes have other numbers here than for the driver");
    }
    for mode in ["limit", "pool"] {
        let environment = [&WHOLE_LIMIT[..], &[("MILLPOND_RUN", mode)]].concat();
        let Some(report) = linked("whole limit", &environment) else { return };
        assert_eq!(report["outside"]["overhead"], 50 * MIB, "{report}");
        assert_eq!(report["said"], Value::Array(vec![]), "{report}");
    }
    // Without the option, it is the program's own affair.
    let report = linked("limited", &[WHOLE_LIMIT[0], WHOLE_LIMIT[2]]).expect("it was built");
    assert_eq!(report["outside"]["overhead"], 0, "{report}");
}

#[test]
fn in_a_container_a_limit_counts_what_the_context_took() {
    for mode in ["limit", "pool"] {
        let environment =
            [&WHOLE_LIMIT[..], &[("STANDIN_NVML", "container"), ("MILLPOND_RUN", mode)]].concat();
        let Some(ran) = run("linked", &["told"], &environment) else { return };
        assert_eq!(String::from_utf8_lossy(&ran.output.stdout), "70\n", "{}", ran.stderr());
        let said =
            "millpond: GPU 0: CUDA's context took 30.00 MiB, by the GPU's free memory before and after";
        assert_eq!(ran.stderr().matches(said).count(), 1, "{}", ran.stderr());
    }
    // It ends with its context, and the next one counts anew.
    linked(
        "ends",
        &[&WHOLE_LIMIT[1..], &[("MILLPOND_RUN_LIMIT", "136314880"), ("STANDIN_NVML", "container")]].concat(),
    );
}

#[test]
fn what_cannot_be_measured_is_said_once() {
    let environment = [&WHOLE_LIMIT[..], &[("STANDIN_NVML", "none")]].concat();
    let Some(ran) = run("linked", &["limited"], &environment) else { return };
    assert!(ran.output.status.success(), "{}", ran.stderr());
    assert_eq!(
        ran.stderr().matches("what CUDA itself takes cannot be measured").count(),
        1,
        "{}",
        ran.stderr()
    );
}

#[test]
fn pools_of_other_kinds_are_the_drivers() {
    linked("other pools", &[]);
}

#[test]
fn what_is_freed_during_a_capture_is_free_after_it() {
    linked("late", &[]);
}

#[test]
fn a_limit_counts_what_is_there_and_nothing_else() {
    for mode in ["limit", "pool"] {
        for case in ["pages", "ends"] {
            linked(case, &[("MILLPOND_RUN_LIMIT", "104857600"), ("MILLPOND_RUN", mode)]);
        }
    }
}

#[test]
fn what_others_hold_of_a_budget_is_not_free() {
    if built().is_none() {
        return;
    }
    let name = format!("entry_points-test-{}", std::process::id());
    let environment = [("MILLPOND_RUN_LIMIT", "104857600"), ("MILLPOND_RUN_BUDGET", name.as_str())];
    let left = || {
        let ran = run("linked", &["told"], &environment).expect("it was built");
        assert!(ran.output.status.success(), "{}", ran.stderr());
        String::from_utf8(ran.output.stdout).expect("UTF-8")
    };
    assert_eq!(left(), "100\n");
    let budget = millpond::Budget::named(&name, 100 * MIB).expect("a budget");
    let context = millpond::Context::host().expect("the host");
    let pool = millpond::Pool::builder(&context).budget(&budget).build().expect("a pool");
    let block = pool.alloc(60 * MIB, &context.create_stream().expect("a stream")).expect("60 of 100 MiB");
    assert_eq!(left(), format!("{}\n", 100 - budget.held() / MIB), "{block:?}");
    std::fs::remove_file(budget.path().expect("it has a name")).expect("it is there");
}

#[test]
fn a_budget_that_cannot_be_opened_gives_no_memory() {
    let environment = [("MILLPOND_RUN_LIMIT", "104857600"), ("MILLPOND_RUN_BUDGET", "no/such/budget")];
    let Some(ran) = run("linked", &["refused"], &environment) else { return };
    assert!(ran.output.status.success(), "{}", ran.stderr());
    assert!(ran.stderr().contains("the budget cannot be kept: no memory is given"), "{}", ran.stderr());
}

#[test]
fn a_watched_program_has_the_drivers_memory() {
    let Some(report) = linked("passes", &[("MILLPOND_RUN", "watch")]) else { return };
    assert_eq!((report["mode"].as_str(), &report["outside"]["peak"]), (Some("watch"), &(5 * MIB).into()));
    let pool = &report["pools"][0];
    assert_eq!(
        (&pool["gpu"], &pool["allocations"], &pool["requested_peak"]),
        (&Value::Null, &3.into(), &(5 * MIB).into())
    );
}

#[test]
fn children_tell_of_themselves_once() {
    let Some(ran) = run("linked", &["forks"], &[]) else { return };
    assert!(ran.output.status.success(), "{}", ran.stderr());
    let mut allocations: Vec<_> =
        ran.reports.iter().map(|report| &report["pools"][0]["allocations"]).collect();
    allocations.sort_by_key(|number| number.as_u64());
    // One of them tells of itself, and of the program that it became.
    assert_eq!(allocations, [&Value::from(1), &Value::from(1), &Value::from(300)], "{}", ran.stderr());
}

#[test]
fn a_program_that_frees_nothing_tells_what_it_leaves() {
    let ends = [
        ("leaves", Some(0)),
        ("leaves at once", Some(3)),
        ("_Exit", Some(4)),
        ("quick_exit", Some(5)),
        ("is killed", None),
    ];
    for (case, status) in ends {
        let Some(ran) = run("linked", &[case], &[]) else { return };
        assert_eq!(ran.output.status.code(), status, "{}", ran.stderr());
        assert_eq!(ran.reports.len(), 1, "{case}: {}", ran.stderr());
        assert_eq!(ran.reports[0]["pools"][0]["requested"], 5 * MIB, "{}", ran.stderr());
    }
}

#[test]
fn a_program_that_becomes_another_tells_of_both() {
    let Some(ran) = run("linked", &["executes"], &[]) else { return };
    let held: Vec<_> = ran.reports.iter().map(|report| &report["pools"][0]["requested"]).collect();
    assert_eq!(held, [&Value::from(500 * MIB), &Value::from(5 * MIB)], "{}", ran.stderr());
}

/// Where the library did anything there, one in two of these waited for ever.
#[test]
fn a_handler_may_end_the_program_anywhere() {
    let Some(folder) = built() else { return };
    let reports = tempfile::NamedTempFile::new().expect("a file");
    let started: Vec<_> = (0..16u32)
        .map(|turn| {
            let mut program = Command::new(folder.join("linked"));
            program.arg("ends in a handler").env("MICROSECONDS", (2000 + turn * 171).to_string());
            program.env("LD_PRELOAD", library()).env("LD_LIBRARY_PATH", folder);
            program.env("MILLPOND_RUN_ACCOUNTS", reports.path()).spawn().expect("it was built")
        })
        .collect();
    for mut program in started {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let ended = loop {
            match program.try_wait().expect("it was started") {
                None if std::time::Instant::now() < until => {
                    std::thread::sleep(std::time::Duration::from_millis(5))
                }
                ended => break ended,
            }
        };
        program.kill().ok();
        assert_eq!(ended.and_then(|status| status.code()), Some(7), "it waits for itself");
    }
}

/// Whoever serves them: the driver alone, or the pool, the watch and the limit before it, with memory that goes back at once or later.
#[test]
fn random_programs_print_the_same() {
    if built().is_none() {
        return;
    }
    for seed in 0..24 {
        let (seed, threads) = (seed.to_string(), if seed % 3 == 0 { "3" } else { "1" });
        let arguments = [seed.as_str(), "800", threads];
        let printed = |environment: &[(&str, &str)]| {
            let ran = run("random", &arguments, environment).expect("it was built");
            assert!(ran.output.status.success(), "{arguments:?} {environment:?}: {}", ran.stderr());
            String::from_utf8(ran.output.stdout).expect("UTF-8")
        };
        let alone = printed(&[("LD_PRELOAD", "")]);
        for environment in [
            &[("MILLPOND_DECAY", "0.002")][..],
            &[("MILLPOND_RUN_ASYNC_FREE", "1")],
            &[("MILLPOND_RUN_IPC", "1")],
            &[("MILLPOND_RUN", "watch")],
            &[("MILLPOND_RUN", "limit"), ("MILLPOND_RUN_LIMIT", "1073741824")],
        ] {
            let told = printed(environment);
            let differs = alone.lines().zip(told.lines()).enumerate().find(|(_, (one, other))| one != other);
            assert_eq!(alone, told, "{arguments:?} {environment:?}: first {differs:?}");
        }
    }
}

#[test]
fn wrong_settings_are_said_and_the_program_runs() {
    let Some(ran) = run("linked", &["leaves"], &[("MILLPOND_RUN", "fast"), ("MILLPOND_RUN_LIMIT", "much")])
    else {
        return;
    };
    assert!(ran.output.status.success());
    let said = ran.stderr();
    assert!(
        said.contains("MILLPOND_RUN is 'fast'") && said.contains("MILLPOND_RUN_LIMIT is 'much'"),
        "{said}"
    );
}

#[test]
fn programs_without_cuda_are_left_alone() {
    let Some(ran) = run("/bin/true", &[], &[]) else { return };
    assert!(
        ran.output.status.success() && ran.reports.is_empty() && ran.stderr().is_empty(),
        "{}",
        ran.stderr()
    );
}
