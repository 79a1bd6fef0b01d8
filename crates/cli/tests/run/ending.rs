//! The end of a program: exit statuses, signals, orphans.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::{built, ran, run};
use crate::shared::{stderr, stdout};

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
fn what_is_no_program_ends_as_in_a_shell() {
    for (program, status, said) in [
        (
            "/tmp",
            126,
            "/tmp: cannot run it: Permission denied (os error 13); it is a folder: name the program in it",
        ),
        ("/etc/passwd", 126, "may execute (chmod +x)"),
        ("/etc/passwd/x", 126, "a part of its path is a file, and no folder"),
        ("no-such-program", 127, "is not there"),
        ("", 127, "its name is empty: is a variable that should have it not set?"),
    ] {
        let output = ran(&["--", program]);
        assert_eq!(output.status.code(), Some(status), "{program}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{program}: {}", stderr(&output));
    }
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
