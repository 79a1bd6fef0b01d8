//! Whose a process is: its user, its program, and what a cluster calls it.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::figures::tamed;
use crate::system::process::PerProcess;

/// Letters of each text.
const LONGEST: usize = 64;

/// Bytes of a process's environment and of its arguments that are looked at.
const MOST_BYTES: usize = 1 << 20;

/// Letters of a container's id that engines show.
const SHORT_ID: usize = 12;

/// This process's name among all of a machine: its number, and when it first asked for this.
pub(super) fn own_id() -> &'static str {
    static ID: PerProcess<String> = PerProcess::new(|| {
        let since = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        format!("{}-{since:x}", std::process::id())
    });
    ID.get()
}

/// Whose a process is. A text is empty where it is not known. The module [`live`](crate::live) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Who {
    /// The number of its user.
    pub user: u32,
    /// Its program, and the script that it runs: `python train.py`.
    pub script: String,
    /// The first letters of its container's id.
    pub container: String,
    /// Its pod in Kubernetes: the name where `POD_NAME` in its environment says it, else the id.
    pub pod: String,
    /// Its job in Slurm.
    pub job: String,
    /// Its rank among the processes of a job.
    pub rank: String,
}

/// Variables that are looked at: a pod's name, Slurm's job, and a rank as torchrun, Slurm, Open MPI and MPICH set it.
const WANTED: [&str; 6] =
    ["POD_NAME", "SLURM_JOB_ID", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// The text of a file that the system keeps of a process; empty where that is not there. Such a file does not say how long it is.
/// In steps that begin small, a look at 1,000 processes took 23,000 reads.
pub(super) fn file_of(process: &str, name: &str) -> String {
    /// More than most have.
    const AT_FIRST: usize = 16 << 10;
    let Ok(mut file) = File::open(format!("/proc/{process}/{name}")) else { return String::new() };
    let (mut bytes, mut length) = (vec![0; AT_FIRST], 0);
    while let Ok(more @ 1..) = file.read(&mut bytes[length..]) {
        length += more;
        if length == bytes.len() {
            bytes.resize((4 * length).min(MOST_BYTES), 0);
        }
    }
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

impl Who {
    /// Of a process by its number, or of `self`. Reads what the system lets this process read.
    pub(super) fn of(process: &str) -> Self {
        let file = |name: &str| file_of(process, name);
        let user = fs::metadata(format!("/proc/{process}")).map_or(u32::MAX, |about| about.uid());
        Self { user, ..Self::read(&file("cmdline"), &file("cgroup"), &file("environ")) }
    }

    fn read(arguments: &str, cgroup: &str, environment: &str) -> Self {
        // The last of a name counts. There may be many others.
        let mut variables = [""; WANTED.len()];
        for (name, value) in environment.split('\0').filter_map(|variable| variable.split_once('=')) {
            if let Some(at) = WANTED.iter().position(|wanted| *wanted == name) {
                variables[at] = value;
            }
        }
        let [pod_name, slurm_job, ranks @ ..] =
            variables.map(|value| Some(value).filter(|value| !value.is_empty()));
        let parts: Vec<_> = cgroup.lines().flat_map(|line| line.split('/')).collect();
        let short = |text: Option<&str>| tamed(text.unwrap_or_default()).chars().take(LONGEST).collect();
        let pod = parts.iter().find_map(|part| pod_in(part)).map(|id| id.replace('_', "-"));
        let job = parts.iter().find_map(|part| part.strip_prefix("job_"));
        Self {
            user: 0,
            script: short(Some(&script(arguments))),
            container: short(parts.iter().rev().find_map(|part| container_in(part))),
            pod: short(pod_name.or(pod.as_deref())),
            job: short(slurm_job.or(job)),
            rank: short(ranks.into_iter().flatten().next()),
        }
    }
}

/// A program's name, and that of what it interprets.
fn script(arguments: &str) -> String {
    fn name(path: &str) -> &str {
        path.rsplit('/').next().unwrap_or(path)
    }
    let mut arguments = arguments.split('\0');
    let program = name(arguments.next().unwrap_or_default());
    if !program.starts_with("python") {
        return program.to_owned();
    }
    while let Some(argument) = arguments.next() {
        match argument {
            "-c" => break,
            "-m" => return format!("{program} -m {}", arguments.next().unwrap_or_default()),
            // Those that take a value.
            "-W" | "-X" | "--check-hash-based-pycs" => _ = arguments.next(),
            "" => break,
            option if option.starts_with('-') => {}
            script => return format!("{program} {}", name(script)),
        }
    }
    program.to_owned()
}

/// The id of a pod in a part of a control group's path: `pod0ab…`, `kubepods-burstable-pod0ab….slice`.
fn pod_in(part: &str) -> Option<&str> {
    const LENGTH: usize = 36;
    let id = part.trim_end_matches(".slice").rsplit_once("pod")?.1;
    let fits = id.len() == LENGTH && id.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, '-' | '_'));
    fits.then_some(id)
}

/// The first letters of a container's id in such a part: 64 letters, alone or in `docker-….scope`.
fn container_in(part: &str) -> Option<&str> {
    const LENGTH: usize = 64;
    let id = part.trim_end_matches(".scope").rsplit(['-', ':']).next()?;
    let fits = id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    fits.then(|| &id[..SHORT_ID])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_named_beside_its_interpreter() {
        for (arguments, expected) in [
            ("/usr/bin/python3\0-u\0/home/a/train.py\0--lr=1\0", "python3 train.py"),
            ("python\0-X\0dev\0-m\0torch.distributed.run\0", "python -m torch.distributed.run"),
            ("python3.12\0-c\0import x\0", "python3.12"),
            ("python\0", "python"),
            ("/opt/server\0train.py\0", "server"),
            ("", ""),
        ] {
            assert_eq!(script(arguments), expected);
        }
    }

    #[test]
    fn clusters_say_whose_a_process_is() {
        let id = "0123456789abcdef".repeat(4);
        let pod = "kubepods-burstable-pod0aaaaaaa_1111_2222_3333_444444444444.slice";
        let cgroup = format!("0::/kubepods.slice/{pod}/cri-containerd-{id}.scope\n");
        let who = Who::read("python\0", &cgroup, "RANK=3\0SLURM_PROCID=4\0X\0");
        assert_eq!(
            [&*who.container, &*who.pod, &*who.rank],
            ["0123456789ab", "0aaaaaaa-1111-2222-3333-444444444444", "3"]
        );
        let named = Who::read("", &format!("12:x:/kubepods/podx/{id}\n"), "POD_NAME=web-0\0");
        assert_eq!([&*named.container, &*named.pod, &*named.rank], ["0123456789ab", "web-0", ""]);
        let slurm = Who::read("", "0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0\n", "");
        assert_eq!([&*slurm.job, &*slurm.container], ["17", ""]);
        let docker =
            Who::read("", &format!("0::/docker/{id}\n"), &format!("SLURM_JOB_ID={}\0", "9\u{1b}".repeat(99)));
        assert_eq!((docker.container.as_str(), docker.job.chars().count()), ("0123456789ab", LONGEST));
        assert!(!docker.job.contains('\u{1b}'));
    }

    #[test]
    fn this_process_has_a_user_and_a_program() {
        let own = Who::of("self");
        assert_eq!(own.user, rustix::process::geteuid().as_raw());
        assert!(!own.script.is_empty());
    }
}
