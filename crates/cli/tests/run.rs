//! `millpond run`, over the stand-in for the driver that the preloaded library is tested with.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use millpond_replay::trace::Block;

use crate::shared::{command, failure, read_json, stderr, stdout};

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

#[test]
fn what_the_pool_held_is_said_at_the_end() {
    if built().is_none() {
        return;
    }
    let output = ran(&["--", "./linked", "pairs"]);
    assert_eq!(stdout(&output), "");
    let said = stderr(&output);
    assert!(said.starts_with("millpond: linked (") && said.contains(", GPU 0: the pool held "), "{said}");
    assert!(said.contains("; 300 allocations, ") && said.lines().count() == 1, "{said}");
    assert_eq!(stderr(&ran(&["--quiet", "./linked", "pairs"])), "");
}

#[test]
fn children_are_said_one_by_one_and_in_all() {
    if built().is_none() {
        return;
    }
    let said = stderr(&ran(&["sh", "-c", "./linked pairs; ./linked leaves"]));
    assert!(said.contains("300 allocations") && said.contains("1 allocation, "), "{said}");
    assert!(said.contains("millpond: 2 processes in all: "), "{said}");
}

#[test]
fn the_exit_status_is_the_programs() {
    for (script, status) in [("exit 7", 7), ("kill -9 $$", 137)] {
        assert_eq!(ran(&["sh", "-c", script]).status.code(), Some(status), "{script}");
    }
    let missing = ran(&["./no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).starts_with("millpond: ./no-such-program: cannot run it: No such file"));
    assert_eq!(ran(&["/etc/passwd"]).status.code(), Some(126));
}

#[test]
fn signals_are_passed_on() {
    let mut run = run(&["sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done"]);
    let mut child = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let asked = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(asked.success());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// Runs the command on a terminal of its own, and sends one SIGINT once the program is ready: by `kill`, or as Ctrl-C.
const ONE_SIGINT: &str = r#"
import os, pty, signal, sys, time
how, command = sys.argv[1], sys.argv[2:]
signal.signal(signal.SIGINT, signal.SIG_DFL)
process, terminal = pty.fork()
if process == 0:
    os.execv(command[0], command)
told, is_sent = b"", False
while True:
    try:
        some = os.read(terminal, 4096)
    except OSError:
        break
    told += some
    if not some:
        break
    if b"ready" in told and not is_sent:
        is_sent = True
        os.kill(process, signal.SIGINT) if how == "kill" else os.write(terminal, b"\x03")
os.waitpid(process, 0)
print(told.decode().replace("\r", ""))
"#;

/// Counts signals until one was there and a while has passed.
const COUNTS: &str = "
import signal, time
count = 0
def got(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, got)
print('ready', flush=True)
until = time.time() + 20
while not count and time.time() < until:
    time.sleep(0.01)
time.sleep(0.3)
print('signals:', count)
";

#[test]
fn one_sigint_is_one_whoever_sends_it() {
    if Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    for own_group in ["", "import os; os.setpgid(0, 0)"] {
        for how in ["kill", "type"] {
            let counts = format!("{own_group}\n{COUNTS}");
            let run = run(&["--quiet", "python3", "-c", &counts]);
            let mut harness = Command::new("python3");
            harness.args(["-c", ONE_SIGINT, how]).arg(run.get_program()).args(run.get_args());
            harness.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let output = harness.output().unwrap();
            let told = stdout(&output);
            assert!(told.contains("signals: 1\n"), "{how} {own_group}: {told}{}", stderr(&output));
        }
    }
}

#[test]
fn a_program_that_ctrl_c_ends_has_told_what_it_held() {
    if built().is_none() || Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    let run = run(&["sh", "-c", "(sleep 0.5; echo ready) & exec ./linked stays"]);
    let mut harness = Command::new("python3");
    harness.args(["-c", ONE_SIGINT, "type"]).arg(run.get_program()).args(run.get_args());
    harness
        .envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(built().unwrap());
    let told = stdout(&harness.output().unwrap());
    assert!(told.replace('\n', " ").contains("for 5.00 MiB requested"), "{told}");
}

/// As the first process of a container, which is the parent of orphans.
#[test]
fn the_first_process_of_a_container_leaves_no_zombies() {
    let orphan = "(sleep 0.1 &) ; sleep 0.6; grep -l '^State:.Z' /proc/[0-9]*/status";
    let run = run(&["--quiet", "sh", "-c", orphan]);
    let mut contained = Command::new("unshare");
    contained.args(["-Urpf", "--mount-proc"]).arg(run.get_program()).args(run.get_args());
    contained.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let possible = Command::new("unshare").args(["-Urpf", "--mount-proc", "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return eprintln!("not run: this system makes no namespaces");
    }
    let output = contained.output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b""[..], Some(1)), "{}", stderr(&output));
}

#[test]
fn nothing_needs_a_temporary_folder_and_nothing_stays() {
    let modules = [&PACKAGE[..], &[("torch", "print('torch loaded')")]].concat();
    let missing = [("TMPDIR", "/no/such/folder")];
    let Some(output) = python(&modules, "import torch", &missing) else { return };
    assert_eq!(stdout(&output), "torch loaded\ntorch enabled\n", "{}", stderr(&output));
    if built().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = run(&["sh", "-c", "./linked leaves; echo ready; read line"]);
    command.env("TMPDIR", folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_exit_status_is_the_programs_where_figures_cannot_be_written() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    for status in [0, 7] {
        let output = ran(&["--json", "/dev/full", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains("/dev/full: cannot write"), "{}", stderr(&output));
    }
}

#[test]
fn figures_and_a_recording_are_written() {
    if built().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, record, report) = (at("run.json"), at("run.mprec"), at("run.html"));
    let files = ["--json", &json, "--record", &record, "--report", &report];
    for (mode, case) in [("--pool", "pairs"), ("--watch", "passes")] {
        let output = ran(&[&[mode], &files[..], &["--", "./linked", case]].concat());
        stdout(&output);
        let told = read_json(Path::new(&json));
        assert_eq!((told["program"].as_str(), told["status"].as_u64()), (Some("linked"), Some(0)));
        let pool = &told["processes"][0]["pools"][0];
        let replayed =
            stdout(&command().args(["replay", &record, "--allocator", "millpond"]).output().unwrap());
        let blocks = format!("{} blocks", pool["allocations"]);
        assert!(replayed.contains(&blocks), "{mode}: {blocks}: {replayed}");
        let page = std::fs::read_to_string(&report).unwrap();
        assert!(page.contains("</html>"), "{mode}");
        std::fs::remove_file(&report).unwrap();
    }
}

/// Whatever container or library asks the driver for it.
#[test]
fn call_sites_are_the_functions_of_a_program_in_cpp() {
    let Some(folder) = built() else { return };
    let source = sources().join("../cpp/sites.cpp");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-g1", "-O1"]).arg(source).args(["./libcuda.so.1", "-o", "sites"]);
    match compiler.current_dir(folder).output() {
        Ok(output) => assert!(output.status.success(), "{}", stderr(&output)),
        Err(_) => {
            assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "g++ is not installed");
            return eprintln!("not run: g++ is not installed");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.mprec");
    let mut run = run(&["--record", record.to_str().unwrap(), "--", "./sites"]);
    stdout(&run.env("MILLPOND_RECORD_CALL_SITES", "1").output().unwrap());
    let read = millpond_replay::read::read(&record, Default::default()).unwrap();
    let [trace] = &read[..] else { panic!("one pool, not {}", read.len()) };
    let innermost = |block: &Block| trace.stacks.frames(block.stack).next().map(|frame| &*frame.name);
    let sites: Vec<_> = trace.blocks.iter().map(innermost).collect();
    assert_eq!(sites, [Some("nn::Layer<float>::Layer"), Some("fill"), Some("plain")]);
}

#[test]
fn a_watched_program_is_told_what_a_pool_would_have_held() {
    if built().is_none() {
        return;
    }
    let said = stderr(&ran(&["--watch", "./linked", "passes"]));
    assert!(said.contains("3 allocations, at most 5.00 MiB at once; a pool would have held "), "{said}");
    assert!(said.contains("the driver gave 5.00 MiB at most (5.00 MiB plain)"), "{said}");
}

#[test]
fn a_limit_alone_leaves_memory_to_the_driver() {
    if built().is_none() {
        return;
    }
    let said = stderr(&ran(&["--limit", "100MiB", "./linked", "limited"]));
    assert!(said.contains("the driver gave 100.00 MiB at most") && !said.contains("the pool"), "{said}");
    assert!(said.contains("the limit refused 2 allocations"), "{said}");
    let said = stderr(&ran(&["--pool", "--limit", "100MiB", "./linked", "limited"]));
    assert!(said.contains("the pool held 100.00 MiB at most"), "{said}");
}

#[test]
fn a_limit_holds_for_a_run_within_the_run() {
    if built().is_none() {
        return;
    }
    let inner = |more: &[&'static str]| {
        let command = [env!("CARGO_BIN_EXE_millpond"), "run"];
        ran(&[&["--limit", "100MiB"], &command[..], more, &["./linked", "limited"]].concat())
    };
    for more in [&[][..], &["--limit", "10GiB"], &["--pool", "--limit", "10GiB"]] {
        let said = stderr(&inner(more));
        assert!(said.contains("100.00 MiB at most"), "{more:?}: {said}");
        assert_eq!(said.contains("is tighter, and holds: 100.00 MiB"), !more.is_empty(), "{said}");
    }
    let refused = inner(&["--watch"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("leave --watch out"), "{}", stderr(&refused));
}

#[test]
fn a_limit_counts_what_cuda_itself_takes_where_it_is_asked_to() {
    if built().is_none() {
        return;
    }
    let counted = |more: &[&str]| {
        let mut run = run(&[&["--limit", "100MiB"], more, &["./linked", "told"]].concat());
        // Of 30 MiB for a context, in a container.
        run.env("STANDIN_CONTEXT", "31457280").env("STANDIN_NVML", "container").output().unwrap()
    };
    assert_eq!(stdout(&counted(&[])), "100\n");
    let output = counted(&["--count-overhead"]);
    assert_eq!(stdout(&output), "70\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("CUDA's context took 30.00 MiB"), "{}", stderr(&output));
    let refused = counted(&["--pool", "--budget", "a", "--count-overhead"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn what_the_pools_hold_is_said_while_the_program_runs() {
    if built().is_none() {
        return;
    }
    let mut run = run(&["--top", "sh", "-c", "exec 3<&0; ./linked stays <&3 & ./linked stays; wait"]);
    let mut child = run.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    assert!(
        first.starts_with("millpond: 1") && first.ends_with(" held, 10.00 MiB of it live, in 2 processes"),
        "{first}"
    );
    drop(child.stdin.take());
    assert!(lines.any(|line| line.contains("2 processes in all")));
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_decay_and_what_is_offloaded_are_the_programs() {
    if built().is_none() {
        return;
    }
    let output = ran(&["--decay", "0.02", "./linked", "idle"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = ran(&["--offload", "optimizer", "sh", "-c", "echo $MILLPOND_OFFLOAD"]);
    assert_eq!(stdout(&output), "optimizer\n");
    let output = ran(&["--decay", "off", "sh", "-c", "echo $MILLPOND_DECAY"]);
    assert_eq!(stdout(&output), "off\n");
}

#[test]
fn processes_share_a_named_limit() {
    if built().is_none() {
        return;
    }
    let name = format!("run-test-{}", std::process::id());
    let both = "./linked leaves & ./linked leaves & wait";
    let output = ran(&["--pool", "--limit", "100MiB", "--budget", &name, "sh", "-c", both]);
    let said = stderr(&output);
    assert!(output.status.success() && said.contains("2 processes in all"), "{said}");
    let budget = millpond::Budget::named(&name, 100 << 20).unwrap();
    let path = budget.path().unwrap().to_owned();
    assert_eq!(budget.held(), 0, "what ended gives back what it held");
    let output = ran(&["--pool", "--limit", "100MiB", "--budget", &name, "./linked", "is killed"]);
    assert_eq!((output.status.code(), budget.held()), (Some(137), 0), "and so does what was killed");
    assert!(
        stderr(&output).contains("the pool held 6.00 MiB at most, for 5.00 MiB requested"),
        "{}",
        stderr(&output)
    );
    drop(budget);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_program_out_of_reach_runs_and_it_is_said() {
    let Some(folder) = built() else { return };
    std::fs::write(folder.join("static.c"), "int main(void) { return 5; }").unwrap();
    compile(folder, &["-static", "static.c", "-o", "static"]);
    let output = ran(&["./static"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(stderr(&output).contains("static: it is linked statically"), "{}", stderr(&output));
    let output = ran(&["env", "-i", "true"]);
    assert!(
        output.status.success()
            && stderr(&output).starts_with("millpond: env: it allocated no CUDA memory, unless in a process"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_program_of_musl_runs_as_it_is_and_so_does_a_child() {
    let Some(folder) = built() else { return };
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        return eprintln!("not run: musl-gcc is not installed");
    }
    std::fs::write(folder.join("five.c"), "int main(void) { return 5; }").unwrap();
    let compiled =
        Command::new("musl-gcc").args(["five.c", "-o", "of-musl"]).current_dir(folder).status().unwrap();
    assert!(compiled.success());
    let output = ran(&["./of-musl"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("of-musl: it is linked with musl"), "{}", stderr(&output));
    let output = ran(&["sh", "-c", "./of-musl; echo $?; ./linked leaves"]);
    assert_eq!(stdout(&output), "5\n", "{}", stderr(&output));
    assert!(
        stderr(&output).contains("linked (") && !stderr(&output).contains("Error"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_program_with_the_address_sanitizer_is_served() {
    let Some(folder) = built() else { return };
    let source = sources().join("linked.c");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-fsanitize=address",
        "-pthread",
        source.to_str().unwrap(),
        "./libcuda.so.1",
        "-o",
        "sanitized",
    ]);
    if !compiler.current_dir(folder).output().unwrap().status.success() {
        return eprintln!("not run: cc has no address sanitizer");
    }
    for case in ["pairs", "reset", "threads"] {
        let output = ran(&["./sanitized", case]);
        assert!(output.status.success(), "{case}: {}", stderr(&output));
        assert!(stderr(&output).contains("sanitized ("), "{case}: {}", stderr(&output));
    }
}

/// A file with capabilities is another user's to run.
#[test]
fn a_file_with_capabilities_is_said_to_be_out_of_reach() {
    let Some(folder) = built() else { return };
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = place.path().join("capable");
    std::fs::copy(folder.join("linked"), &file).unwrap();
    // `cap_chown` as the kernel reads it, version 2.
    let granted = [0x0200_0001_u32, 1, 0, 0, 0].map(u32::to_le_bytes).concat();
    let set = rustix::fs::setxattr(&file, "security.capability", &granted, rustix::fs::XattrFlags::empty());
    let run = run(&[file.to_str().unwrap(), "leaves"]);
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let is_reached =
        other.args(["test", "-x"]).arg(run.get_program()).status().is_ok_and(|status| status.success());
    if set.is_err() || !is_reached {
        return eprintln!(
            "not run: this user cannot give capabilities, or no other user reaches the command"
        );
    }
    let mut other = Command::new("setpriv");
    other
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(run.get_program())
        .args(run.get_args());
    other.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = stderr(&other.output().unwrap());
    assert!(
        said.contains("capable: its file has capabilities, and the system preloads nothing there"),
        "{said}"
    );
}

#[test]
fn a_missing_library_is_one_clear_sentence() {
    let alone = tempfile::tempdir().unwrap();
    let mut bare = run(&["true"]);
    let mut without =
        |path: &str| failure(&bare.env("MILLPOND_RUN_LIBRARY", alone.path().join(path)).output().unwrap());
    let said = without("none.so");
    assert!(
        said.starts_with("MILLPOND_RUN_LIBRARY names ") && said.ends_with("none.so, which is not there"),
        "{said}"
    );
    let said = without("site-packages/millpond/_run/libmillpond_run.so");
    assert!(said.starts_with("libmillpond_run.so is not in this Python package: `pip install"), "{said}");
    let spaced = alone.path().join("a b.so");
    std::fs::write(&spaced, "").unwrap();
    std::fs::set_permissions(&spaced, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = failure(&bare.env("MILLPOND_RUN_LIBRARY", &spaced).output().unwrap());
    assert!(said.contains("a path with a space or a colon"), "{said}");
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    let wrong = [
        (&[][..], "<PROGRAM> is missing"),
        (&["--wach", "true"], "--wach: there is no such flag. Did you mean --watch?"),
        (&["--watch", "--limit", "1GiB", "true"], "--watch and --limit exclude each other"),
        (&["--limit", "much", "true"], "--limit: "),
        (&["--limit", "1GiB", "--record", "x", "true"], "--record and --report are for --pool and --watch"),
        (&["--limit", "1GiB", "--async-free", "true"], "--async-free is for the pool"),
        (&["--limit", "1GiB", "--top", "true"], "--top is for the pool"),
        (&["--limit", "1GiB", "--decay", "1", "true"], "--decay is for the pool"),
        (&["--limit", "1GiB", "--offload", "optimizer", "true"], "--offload is for the pool"),
        (&["--offload", "model", "true"], "--offload: 'model' is not one of optimizer"),
        (&["--decay", "soon", "true"], "--decay: 'soon' is no time"),
        (&["--watch", "--top", "true"], "--watch and --top exclude each other"),
        (&["--budget", "gpu0", "true"], "--"),
        (&["--json", "-", "true"], "--json -: the program has standard output"),
        (&["--json", "x", "--report", "x", "true"], "x: is written to already"),
    ];
    for (arguments, said) in wrong {
        let output = ran(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(failure(&output).starts_with(said), "{arguments:?}: {}", stderr(&output));
    }
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

#[test]
fn pythons_libraries_get_the_pool_when_they_are_imported() {
    let libraries = [
        ("torch", "print('torch loaded')"),
        ("cupy", ""),
        ("numba/__init__", ""),
        ("numba/cuda", "print('numba.cuda loaded')"),
        ("sitecustomize", "print('own sitecustomize')"),
    ];
    let modules = [&PACKAGE[..], &libraries].concat();
    let script =
        "print('begun'); import torch, cupy, numba.cuda, inspect; inspect.getsource(torch); import torch";
    let Some(output) = python(&modules, script, &[]) else { return };
    let told = "own sitecustomize\nbegun\ntorch loaded\ntorch enabled\nnumba.cuda loaded\nnumba enabled\n";
    assert_eq!(stdout(&output), told, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("millpond: CuPy is served as any program: no CUDA here"),
        "{}",
        stderr(&output)
    );
    // One that only asked first whether they are there, and one that failed at its first try.
    let asks = "import importlib.util as i\nfor n in range(2): i.find_spec('torch'), i.find_spec('numba.cuda')\nimport torch, numba.cuda";
    let output = python(&modules, asks, &[]).unwrap();
    assert_eq!(stdout(&output).matches("enabled").count(), 2, "{}{}", stdout(&output), stderr(&output));
    let twice =
        "import os\nif not os.environ.pop('TRIED', ''): raise ImportError('not yet')\nprint('torch loaded')";
    let tries = "import os\ntry: import torch\nexcept ImportError: os.environ['TRIED'] = '1'\nimport torch";
    let failing = [&PACKAGE[..], &[("torch", twice)]].concat();
    let output = python(&failing, tries, &[]).unwrap();
    assert!(
        stdout(&output).ends_with("torch loaded\ntorch enabled\n"),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    // Under the command twice.
    let mut twice = run(&[command().get_program().to_str().unwrap(), "run", "python3", "-c", "import torch"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sitecustomize.py"), "print('own')").unwrap();
    let output = twice.env("PYTHONPATH", folder.path()).output().unwrap();
    assert!(!stderr(&output).contains("RecursionError"), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "own\n");
    // Children too, and not what the caller's environment leaves out.
    let script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch, numba.cuda'], check=True)";
    let output = python(&modules, script, &[("MILLPOND_TORCH", "0")]).unwrap();
    assert_eq!(stdout(&output).matches("enabled").collect::<Vec<_>>().len(), 1, "{}", stdout(&output));
}

#[test]
fn a_python_without_the_package_is_told_what_it_lacks() {
    let Some(output) = python(&[("torch", "")], "import torch", &[]) else { return };
    let said = stderr(&output);
    assert!(
        said.contains("millpond: PyTorch is served as any program: for its interface to the pool, install"),
        "{said}"
    );
    let output =
        python(&[], "import sys; print('millpond' in sys.modules, 'json' in sys.modules)", &[]).unwrap();
    assert_eq!(stdout(&output), "False False\n");
}

/// The driver's own allocators, as this command measures them: it opens the driver itself.
#[test]
fn a_program_in_rust_comes_by_the_entry_points() {
    if built().is_none() {
        return;
    }
    let command = command();
    let bench = [
        "bench",
        "--suite",
        "latency",
        "--allocator",
        "stream-ordered,driver",
        "--device",
        "cuda:0",
        "--time",
        "1",
    ];
    let words = [&["--", command.get_program().to_str().unwrap()], &bench[..]].concat();
    let output = ran(&words);
    let said = stderr(&output);
    assert!(stdout(&output).contains("stream-ordered"), "{said}");
    assert!(said.contains(", GPU 0: the pool held ") && !said.contains("beside the pool"), "{said}");
}

#[test]
fn a_program_in_python_comes_by_the_entry_points() {
    let script = "
import ctypes
driver = ctypes.CDLL('libcuda.so.1')
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(3 << 20)) == 0
ctypes.memset(at.value, 1, 3 << 20)
assert driver.cuMemFree_v2(at) == 0
";
    if built().is_none() {
        return;
    }
    let Some(output) = python(&[], script, &[]) else { return };
    stdout(&output);
    assert!(
        stderr(&output).contains("GPU 0: the pool held 4.00 MiB at most, for 3.00 MiB requested"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_kill_switch_leaves_a_program_as_it_is() {
    let print = "echo \"[$LD_PRELOAD$MILLPOND_RUN]\"; exit 7";
    let begin = |disable: &str| {
        let mut run = run(&["--limit", "1GiB", "--", "sh", "-c", print]);
        run.env("MILLPOND_DISABLE", disable).env_remove("LD_PRELOAD").output().unwrap()
    };
    let output = begin("1");
    assert_eq!((output.status.code(), &*output.stdout), (Some(7), &b"[]\n"[..]));
    assert_eq!(stderr(&output), "millpond: MILLPOND_DISABLE=1: sh runs as it is, without pool and limit\n");
    if built().is_some() {
        assert!(String::from_utf8_lossy(&begin("0").stdout).contains("libmillpond_run"));
    }
}

#[test]
fn the_environment_limits_the_pools_of_a_program() {
    if built().is_none() {
        return;
    }
    // It holds 6 MiB, and is killed then.
    let ended = |limit: &str| run(&["./linked", "is killed"]).env("MILLPOND_LIMIT", limit).output().unwrap();
    assert_eq!(ended("64MiB").status.code(), Some(137));
    let refused = ended("4MiB");
    assert!(!refused.status.success() && refused.status.code() != Some(137), "{}", stderr(&refused));
}
