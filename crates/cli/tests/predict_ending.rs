//! How a prediction ends: by a signal, with its program, and with what that started.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::predict::{STAND_IN, predicted, prediction};
use crate::shared::stderr;

/// Begins a prediction, whose temporary folder is this one, and waits until its program says that it is ready.
fn ready(program: &str, args: &[&str], place: &Path) -> Option<(Child, BufReader<impl std::io::Read>)> {
    let told = prediction(args)?;
    // What runs the tests may ignore signals, and so would the command then.
    let mut predict = Command::new("env");
    predict.arg("--default-signal=INT,TERM,HUP").arg(told.get_program()).args(told.get_args());
    for (name, value) in told.get_envs() {
        match value {
            Some(value) => predict.env(name, value),
            None => predict.env_remove(name),
        };
    }
    predict.env("TMPDIR", place).args(["python3", "-c", program]);
    let mut child = predict.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "the program says so");
    }
    Some((child, said))
}

fn signal(process: u32, name: &str) {
    assert!(
        Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success()
    );
}

/// The processes that this one began and that have not ended.
fn children(parent: u32) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let of = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("status")).ok();
    let line = format!("PPid:\t{parent}");
    processes.filter_map(of).filter(|status| status.lines().any(|found| found == line)).count()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn a_signal_ends_a_prediction_whose_program_has_ended() {
    // So many blocks of so many sizes take longer to replay than this test waits for anything.
    let program = STAND_IN.replace(
        "snapshot = {",
        "for block in range(200_000):\n    alloc(1 + block * 7919 % (1 << 20), \"h\", \"activation\")\nsnapshot = {",
    ) + "print('ready', flush=True)\n";
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let place = tempfile::tempdir().unwrap();
        let Some((mut child, _said)) = ready(&program, &[], place.path()) else { return };
        while children(child.id()) > 0 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!is_empty(place.path()));
        signal(child.id(), name);
        assert_eq!(child.wait().unwrap().signal(), Some(number));
        assert!(is_empty(place.path()), "what is temporary goes with it");
    }
}

#[test]
fn a_signal_to_one_run_ends_all_of_them() {
    let waits = format!("{STAND_IN}import time\nprint('ready', flush=True)\ntime.sleep(100)\n");
    // PyTorch's programs tell of what came before a Ctrl-C.
    let tells = format!(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    pass\n{STAND_IN}"
    );
    for (program, name, status, kept) in [
        (&waits, "TERM", 143, "millpond: stopped by SIGTERM: what came before is predicted\n"),
        (&tells, "INT", 130, "millpond: stopped by Ctrl-C: what came before is predicted\n"),
        (
            &"import time; print('ready', flush=True); time.sleep(100)".to_owned(),
            "TERM",
            143,
            "stopped by SIGTERM: nothing is predicted\n",
        ),
    ] {
        let place = tempfile::tempdir().unwrap();
        let Some((mut child, mut said)) = ready(program, &["--ranks", "3"], place.path()) else { return };
        signal(child.id(), name);
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
        assert!(rest.ends_with(kept) && !rest.contains("ready"), "{rest}");
        assert_eq!(child.wait().unwrap().code(), Some(status), "{rest}");
        assert!(is_empty(place.path()));
    }
}

#[test]
fn what_a_predicted_program_started_ends_with_it() {
    let starts = "import subprocess, sys
child = subprocess.Popen(['sh', '-c', 'sleep 1000 & wait'], stdin=subprocess.DEVNULL)
print('started', child.pid, file=sys.stderr)
";
    let Some(output) = predicted(&format!("{starts}{STAND_IN}"), &[]) else { return };
    let said = stderr(&output);
    let child: u32 = said.trim().strip_prefix("started ").and_then(|pid| pid.parse().ok()).expect(&said);
    let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
    assert_eq!(children(child), 0);
}

#[test]
fn a_program_that_ignores_signals_ends_at_the_second_one_and_with_the_command() {
    let ignores = "import signal, time
for which in (signal.SIGINT, signal.SIGTERM):
    signal.signal(which, signal.SIG_IGN)
print('ready', flush=True)
time.sleep(1000)
";
    let place = tempfile::tempdir().unwrap();
    let Some((mut child, _said)) = ready(ignores, &["--ranks", "2"], place.path()) else { return };
    signal(child.id(), "TERM");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(
        (child.try_wait().unwrap(), children(child.id())),
        (None, 1),
        "it is not asked by force at once"
    );
    signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(is_empty(place.path()));

    // Nobody can clear up behind what is killed. But the program ends.
    let Some((mut child, mut rest)) = ready(ignores, &[], place.path()) else { return };
    let mut said = String::new();
    let of = |status: String| {
        status.lines().any(|line| line == format!("PPid:\t{}", child.id())).then_some(status)
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut found = processes
        .filter(|entry| std::fs::read_to_string(entry.path().join("status")).ok().and_then(of).is_some());
    let program = found.next().expect("the program runs").path();
    child.kill().unwrap();
    child.wait().unwrap();
    // Its standard error closes with it, a moment before it has ended.
    std::io::Read::read_to_string(&mut rest, &mut said).unwrap();
    let has_ended = || {
        let state = std::fs::read_to_string(program.join("stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !has_ended() {
        assert!(std::time::Instant::now() < until, "{}", program.display());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn the_next_prediction_clears_up_behind_one_that_was_killed() {
    let starts = "import subprocess, time
subprocess.Popen(['sleep', '1000'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print('ready', flush=True)
time.sleep(1000)
";
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("millpond")).unwrap();
    let Some((mut killed, mut said)) = ready(starts, &[], place.path()) else { return };
    let Some((mut runs, _said)) = ready(starts, &[], place.path()) else { return };
    let folders = || std::fs::read_dir(place.path()).unwrap().count();
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(folders(), 3);
    let mut next = prediction(&[]).unwrap();
    let output = next.env("TMPDIR", place.path()).args(["python3", "-c", STAND_IN]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((folders(), children(runs.id())), (2, 1), "only what was left goes");
    // What the program started had its standard error.
    std::io::Read::read_to_string(&mut said, &mut String::new()).unwrap();
    signal(runs.id(), "TERM");
    runs.wait().unwrap();
    assert!(place.path().join("millpond").exists() && folders() == 1);
}
