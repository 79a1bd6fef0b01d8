//! The program: whether a preloaded library reaches it, its start, the signals that it is passed, and its end.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use object::Endianness;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::error::{Error, Result};
use crate::terminal::{Hearing, SIGNALS, Signal as Asked, ignored};

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    path: &'a OsStr,
    arguments: &'a [OsString],
    is_ours: bool,
}

/// How it ended: its exit status or, after a signal, 128 and the signal's number, as shells have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) status: u8,
    /// The signal by which this command was asked to end meanwhile.
    pub(crate) asked: Option<Asked>,
}

/// Those of the signals that ask a program to end.
const ASK_TO_END: [i32; 4] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP];

impl<'a> Program<'a> {
    /// The first of the words is the program.
    pub(crate) fn new(words: &'a [OsString]) -> Self {
        let (path, arguments) = words.split_first().expect("clap requires one");
        Self { path, arguments, is_ours: false }
    }

    /// One that runs for this command's sake alone: it ends with the command, and by force at the second signal that asks for it.
    pub(crate) fn ours(words: &'a [OsString]) -> Self {
        Self { is_ours: true, ..Self::new(words) }
    }

    /// For people.
    pub(crate) fn name(&self) -> String {
        Path::new(self.path).file_name().unwrap_or(self.path).to_string_lossy().into_owned()
    }

    /// Why a preloaded library does not reach the program, where that is known before it runs.
    pub(crate) fn out_of_reach(&self) -> Option<&'static str> {
        let path = self.find()?;
        let about = path.metadata().ok()?;
        /// Set user id, set group id.
        const OTHERS_RIGHTS: u32 = 0o6000;
        if about.mode() & OTHERS_RIGHTS != 0 && about.uid() != rustix::process::geteuid().as_raw() {
            return Some(
                "it runs with another user's rights, and the system preloads nothing there: it ran as it is",
            );
        }
        if has_capabilities(&path) && !rustix::process::geteuid().is_root() {
            return Some("its file has capabilities, and the system preloads nothing there: it ran as it is");
        }
        match linker(&path)? {
            Linker::None => Some("it is linked statically, so nothing can be preloaded: it ran as it is"),
            Linker::Named(name) if name.starts_with(b"ld-musl-") => {
                Some("it is linked with musl, and what is preloaded needs glibc: it ran as it is")
            }
            Linker::Named(_) => None,
        }
    }

    /// The file, as the system finds it.
    fn find(&self) -> Option<PathBuf> {
        if self.path.as_bytes().contains(&b'/') {
            return Some(self.path.into());
        }
        let folders = std::env::var_os("PATH")?;
        let mut files = std::env::split_paths(&folders).map(|folder| folder.join(self.path));
        files.find(|file| file.metadata().is_ok_and(|about| about.is_file() && about.mode() & 0o111 != 0))
    }

    /// Runs it to its end, with these variables in its environment.
    pub(crate) fn run(&self, environment: &[(&'static str, OsString)], stdout: Stdio) -> Result<Ended> {
        let mut command = Command::new(self.path);
        command
            .stdout(stdout)
            .args(self.arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)));
        if self.is_ours {
            let end_too = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
            // SAFETY: one call of the system, which a child may make before its program.
            unsafe { command.pre_exec(end_too) };
        }
        let passing = Passing::begin(self.is_ours);
        let spawned = command.spawn();
        let mut child = spawned.map_err(|source| Error::CannotRun { program: self.path.into(), source })?;
        passing.to(&child);
        let ended = if std::process::id() == 1 { ended_among_orphans(&child) } else { child.wait() };
        let failed = |source| Error::Io { path: self.path.into(), action: "wait for it", source };
        ended.map(|status| Ended::of(status, passing.asked())).map_err(failed)
    }
}

impl Ended {
    fn of(status: ExitStatus, asked: Option<Asked>) -> Self {
        let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        Self { status: u8::try_from(number).unwrap_or(u8::MAX), asked }
    }
}

/// Waits for the program as the first process of a container does, which is the parent of all whose own has ended.
fn ended_among_orphans(child: &Child) -> std::io::Result<ExitStatus> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((process, status))) if process.as_raw_pid() as u32 == child.id() => {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the file gives a process more rights than its user has.
fn has_capabilities(path: &Path) -> bool {
    rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64][..]).is_ok()
}

/// A program's dynamic linker, by the name of its file.
enum Linker {
    None,
    Named(Vec<u8>),
}

/// A script has its interpreter's: `None`, as for what cannot be read, which is left to the system.
fn linker(path: &Path) -> Option<Linker> {
    /// What is asked for is at the beginning of a file.
    const BEGINNING: u64 = 64 << 10;
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut bytes)).ok()?;
    let header = FileHeader64::<Endianness>::parse(&*bytes).ok()?;
    let endian = header.endian().ok()?;
    let parts = header.program_headers(endian, &*bytes).ok()?;
    let Some(named) = parts.iter().find(|part| part.p_type(endian) == PT_INTERP) else {
        return Some(Linker::None);
    };
    let path = named.data(endian, &*bytes).ok()?.split(|byte| *byte == 0).next()?;
    Some(Linker::Named(path.rsplit(|byte| *byte == b'/').next()?.to_vec()))
}

/// While this lives, signals that this process gets are passed on. Those that it ignores, the program ignores, too.
struct Passing {
    /// The child's process id; 0 before there is one.
    child: Arc<AtomicI32>,
    /// A signal that came before.
    early: Arc<AtomicI32>,
    /// The last one that asks to end; 0 for none.
    asked: Arc<AtomicI32>,
    registered: Vec<signal_hook_registry::SigId>,
    _hearing: Hearing,
}

impl Passing {
    /// Before the child is there: it may ask for a signal at once.
    ///
    /// With `by_force`, the second signal that asks it to end is one that no program ignores.
    fn begin(by_force: bool) -> Self {
        let hearing = Hearing::begin(&SIGNALS);
        let [child, early, asked] = [(); 3].map(|()| Arc::<AtomicI32>::default());
        let ignored = ignored();
        let register = |signal: i32| {
            let (child, early, asked) = (child.clone(), early.clone(), asked.clone());
            let pass = move |about: &libc::siginfo_t| {
                let is_second =
                    ASK_TO_END.contains(&signal) && asked.swap(signal, Ordering::SeqCst) != 0 && by_force;
                // Sequentially consistent: `to` looks for an early signal after it has named the child.
                match child.load(Ordering::SeqCst) {
                    0 => early.store(signal, Ordering::SeqCst),
                    child if is_second => send(child, libc::SIGKILL),
                    child if is_from_terminal(about) && has_got_it(child) => {}
                    child => send(child, signal),
                }
            };
            // SAFETY: the handler uses three numbers and calls of the system, which a handler may.
            unsafe { signal_hook_registry::register_sigaction(signal, pass) }.ok()
        };
        let heard = SIGNALS.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0);
        let registered = heard.filter_map(register).collect();
        Self { child, early, asked, registered, _hearing: hearing }
    }

    /// The last signal that asked to end.
    fn asked(&self) -> Option<Asked> {
        u8::try_from(self.asked.load(Ordering::SeqCst))
            .ok()
            .filter(|signal| *signal > 0)
            .map(Asked::of_number)
    }

    /// Sends them to this child from here on.
    fn to(&self, child: &Child) {
        let child = child.id() as i32;
        self.child.store(child, Ordering::SeqCst);
        match self.early.load(Ordering::SeqCst) {
            0 => {}
            signal => send(child, signal),
        }
    }
}

/// The terminal's signals are the system's own. A process that sends one is named in it.
fn is_from_terminal(about: &libc::siginfo_t) -> bool {
    about.si_code == libc::SI_KERNEL
}

/// Whether what the terminal sends comes to the program, too: it goes to the whole group in front.
fn has_got_it(child: i32) -> bool {
    let group = Pid::from_raw(child).and_then(|child| rustix::process::getpgid(Some(child)).ok());
    group.is_some_and(|group| group == rustix::process::getpgrp())
}

fn send(child: i32, signal: i32) {
    if let (Some(child), Some(signal)) = (Pid::from_raw(child), Signal::from_named_raw(signal)) {
        // It may have ended.
        rustix::process::kill_process(child, signal).ok();
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.registered.drain(..).for_each(|id| {
            signal_hook_registry::unregister(id);
        });
    }
}
