//! Tests of two processes: each is this program again.
// Each program of tests uses a part.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Which test a process has a part in.
const TEST: &str = "MILLPOND_TEST";
/// Where it finds the other process.
const SOCKET: &str = "MILLPOND_TEST_SOCKET";

/// What lines begin with that the test's own process prints, too.
pub(crate) const MEASURED: &str = "measured: ";

/// Another process, and a socket to it.
pub(crate) struct Other {
    pub(crate) process: Child,
    pub(crate) socket: UnixStream,
}

impl Other {
    /// Does one part of a test in one process, and the other in another. Both are this program, and run nothing else: so
    /// what they have open can be counted.
    pub(crate) fn with(name: &str, here: impl FnOnce(&mut Self), there: impl FnOnce(UnixStream)) {
        let part = |of: &str| std::env::var(TEST).is_ok_and(|asked| asked == format!("{name} {of}"));
        if part("there") {
            return there(UnixStream::connect(std::env::var_os(SOCKET).unwrap()).unwrap());
        }
        if !part("here") {
            return run(name);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let process = program(name, "there").env(SOCKET, &path).spawn().unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut other = Self { process, socket };
        here(&mut other);
        let status = other.process.wait().unwrap();
        assert!(status.success() || status.signal() == Some(9), "the other process: {status}");
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Does a test in a process that runs nothing else.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var(TEST).is_ok_and(|asked| asked == format!("{name} here")) { test() } else { run(name) }
}

fn run(name: &str) {
    let output = program(name, "here").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", output.status);
    out.lines().filter(|line| line.contains(MEASURED)).for_each(|line| println!("{line}"));
}

fn program(name: &str, part: &str) -> Command {
    let mut program = again(name);
    program.env(TEST, format!("{name} {part}"));
    program
}

/// This program again, to run just the test of this name. A name that two files have stands behind the file's: `file::name`.
pub(crate) fn again(name: &str) -> Command {
    static TESTS: OnceLock<String> = OnceLock::new();
    let program = std::env::current_exe().unwrap();
    let tests = TESTS.get_or_init(|| {
        let listed = Command::new(&program).args(["--list", "--format=terse"]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    });
    let paths = tests.lines().filter_map(|line| line.strip_suffix(": test"));
    let named: Vec<_> = paths.filter(|path| format!("::{path}").ends_with(&format!("::{name}"))).collect();
    let [path] = named[..] else { panic!("tests that are called {name}: {named:?}") };
    let mut command = Command::new(&program);
    command.args([path, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    command
}

pub(crate) fn say(mut socket: &UnixStream) {
    socket.write_all(&[1]).unwrap();
}

pub(crate) fn hear(mut socket: &UnixStream) {
    socket.read_exact(&mut [0]).unwrap();
}

/// Tries again until it is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(1));
    }
}

/// Open descriptors and mappings of this process.
pub(crate) fn open_here() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (descriptors, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}
