//! Which rank a process is, as its launcher says in the environment.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::{Error, Result};

/// The port of rank 0 is this, where nothing else says it: PyTorch's default, and one.
const DEFAULT_PORT: u16 = 29_501;
/// Jobs with a number of their own, but no port, meet in this range: below the ports that systems lend.
const JOB_PORTS: std::ops::Range<u16> = 20_000..29_000;
/// How long rank 0 and the others wait for each other.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The variable with the port at which rank 0 listens.
pub(super) const PORT: &str = "MILLPOND_RENDEZVOUS_PORT";
/// The variable with the address at which rank 0 listens.
pub(super) const ADDRESS: &str = "MILLPOND_RENDEZVOUS_ADDRESS";
/// The variable with the secret that all ranks share.
pub(super) const SECRET: &str = "MILLPOND_SECRET";
/// The variable with the seconds that ranks wait for each other.
pub(super) const TIMEOUT: &str = "MILLPOND_RENDEZVOUS_TIMEOUT";

/// Which rank this process is, of how many, and where rank 0 is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// From 0 on.
    pub rank: usize,
    /// Ranks in all.
    pub world: usize,
    /// Its number among the ranks of its machine: that of its GPU.
    pub local_rank: usize,
    /// Whether all ranks are known to be on this machine.
    pub is_one_machine: bool,
    /// The machine of rank 0, by name or address: where the others look for it.
    pub host: String,
    /// Where rank 0 listens, by name or address.
    pub listens_at: String,
    /// Where rank 0 listens.
    pub port: u16,
    /// How long the ranks wait for each other at the start.
    pub timeout: Duration,
    /// What tells ranks from strangers. Empty where only this machine can come.
    pub secret: Secret,
}

/// A secret that all ranks have: the variable `MILLPOND_SECRET`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "Secret(none)" } else { "Secret(…)" })
    }
}

/// The variables in which a launcher says a rank, the ranks in all, and the same of the machine. The innermost first:
/// `srun torchrun …` and `mpirun torchrun …` have the variables of both.
const LAUNCHERS: [[&str; 4]; 3] = [
    // torchrun, Kubernetes' PyTorchJob, and whoever does as they do.
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
    // Open MPI.
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    // srun, which does not say how many are on the machine. A batch script has a rank, too, but no size of a step.
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""],
];

/// Variables that tell a job from others, for its port.
const JOBS: [&str; 4] = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID"];

impl Place {
    /// A rank of a world on this machine, each with a GPU, that meets at this port without a secret.
    pub fn here(rank: usize, world: usize, port: u16) -> Self {
        let host = "127.0.0.1".to_owned();
        Self {
            rank,
            world,
            local_rank: rank,
            is_one_machine: true,
            listens_at: host.clone(),
            host,
            port,
            timeout: DEFAULT_TIMEOUT,
            secret: Secret::default(),
        }
    }

    /// What the environment of this process says; `None` where no launcher started it.
    ///
    /// # Errors
    /// [`Error::Launcher`] where variables are missing or contradict each other.
    pub fn of_this_process() -> Result<Option<Self>> {
        Self::of(|name| std::env::var(name).ok())
    }

    /// What these variables say.
    ///
    /// # Errors
    /// As [`of_this_process`](Self::of_this_process).
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        Variables { variable }.place().map_err(|what| Error::Launcher { what })
    }
}

/// What variables say, or what is wrong with them.
type Said<T> = std::result::Result<T, String>;

struct Variables<F> {
    variable: F,
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Said<Option<T>> {
        let number = |text: String| text.parse().map_err(|_| format!("{name} is '{text}', not a number"));
        self.text(name).map(number).transpose()
    }

    fn place(&self) -> Said<Option<Place>> {
        let has_started_us = |[rank, world, _, of_machine]: &&[&str; 4]| {
            self.text(rank).is_some() && (!of_machine.is_empty() || self.text(world).is_some())
        };
        let Some([rank_name, world_name, local_rank_name, local_world_name]) =
            LAUNCHERS.iter().find(has_started_us)
        else {
            return match self.number("WORLD_SIZE")? {
                None | Some(1) => Ok(None),
                Some(world) => Err(missing("WORLD_SIZE", world, "RANK")),
            };
        };
        let rank: usize = self.number(rank_name)?.unwrap_or(0);
        let world: usize = self.number(world_name)?.ok_or_else(|| missing(rank_name, rank, world_name))?;
        if let Some(other) = self.number::<usize>("WORLD_SIZE")?.filter(|other| *other != world) {
            return Err(format!("WORLD_SIZE is {other}, but {world_name} is {world}: unset one of them"));
        }
        let locals: Option<usize> = self.number(local_world_name)?;
        let (local_rank, of) = (self.number(local_rank_name)?.unwrap_or(0), locals.unwrap_or(world));
        if of > world {
            return Err(format!("{local_world_name} is {of}, but {world_name} is {world}"));
        }
        let of_name = if locals.is_some() { local_world_name } else { world_name };
        for (name, number, of_name, of) in
            [(rank_name, rank, world_name, world), (local_rank_name, local_rank, of_name, of)]
        {
            if number >= of {
                return Err(format!("{name} is {number}, but {of_name} is {of}: ranks count from 0"));
            }
        }
        let nodes: Option<usize> = self.number("SLURM_STEP_NUM_NODES")?;
        let is_one_machine = world == 1 || locals == Some(world) || nodes == Some(1);
        let host = self.host(is_one_machine)?;
        let listens_at = self.text(ADDRESS).unwrap_or_else(|| host.clone());
        let secret = Secret(self.text(SECRET).unwrap_or_default());
        if secret.0.is_empty() && world > 1 && !(is_loopback(&host) && is_loopback(&listens_at)) {
            return Err(format!(
                "{SECRET} is not set, and other machines can reach rank 0 at {listens_at}: set it to the same random text \
                 for every rank, such as that of `openssl rand -hex 16`. If all ranks are on this machine, set MASTER_ADDR \
                 to 127.0.0.1 instead"
            ));
        }
        let timeout = self.number(TIMEOUT)?.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let port = self.port()?;
        Ok(Some(Place { rank, world, local_rank, is_one_machine, host, listens_at, port, timeout, secret }))
    }

    fn host(&self, is_one_machine: bool) -> Said<String> {
        let asked = self.text("MASTER_ADDR");
        if is_one_machine && (asked.is_none() || self.text(ADDRESS).is_none()) {
            return Ok("127.0.0.1".to_owned());
        }
        // Slurm's first rank is on the first node.
        let first = || self.text("SLURM_STEP_NODELIST").map(|list| first_host(&list));
        asked.or_else(first).ok_or_else(|| {
            "MASTER_ADDR is not set: set it to the machine of rank 0, in the environment of every rank"
                .to_owned()
        })
    }

    fn port(&self) -> Said<u16> {
        if let Some(port) = self.number(PORT)? {
            return Ok(port);
        }
        // torchrun itself listens on MASTER_PORT.
        if let Some(port) = self.number::<u16>("MASTER_PORT")? {
            let none = || format!("MASTER_PORT is {port}, and has no port after it: set {PORT}");
            return port.checked_add(1).ok_or_else(none);
        }
        let job: String = JOBS.iter().filter_map(|name| self.text(name)).collect();
        let sum = u64::from(hash(job.as_bytes()));
        let of_job = JOB_PORTS.start + (sum % JOB_PORTS.len() as u64) as u16;
        Ok(if job.is_empty() { DEFAULT_PORT } else { of_job })
    }
}

/// The same number for the same bytes on all machines.
fn hash(bytes: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(bytes);
    sum.sum()
}

/// Whether only this machine can come there.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn missing(name: &str, value: usize, other: &str) -> String {
    format!("{name} is {value}, but {other} is not set: a launcher sets both; set it, or unset {name}")
}

/// The first machine of a list of Slurm's: `gpu[03-07,12],login`.
fn first_host(list: &str) -> String {
    let (before, rest) = list.split_at(list.find(['[', ',']).unwrap_or(list.len()));
    let Some((numbers, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return before.to_owned();
    };
    let number = numbers.split(['-', ',']).next().unwrap_or_default();
    let after = after.split(',').next().unwrap_or_default();
    format!("{before}{number}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> std::result::Result<Option<Place>, String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Place::of(variable).map_err(|error| error.to_string())
    }

    /// Rank, world, local rank and where rank 0 is.
    fn found(variables: &[(&str, &str)]) -> (usize, usize, usize, String) {
        let Place { rank, world, local_rank, host, port, .. } = place(variables).unwrap().unwrap();
        (rank, world, local_rank, format!("{host}:{port}"))
    }

    const SHARED: (&str, &str) = (SECRET, "0123456789abcdef");

    const TORCHRUN: [(&str, &str); 8] = [
        SHARED,
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "gpu03"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];

    #[test]
    fn without_a_launcher_there_is_one_process() {
        assert_eq!(place(&[]), Ok(None));
        // A shell in an allocation of Slurm, or its batch script.
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_LOCALID", "0")];
        assert_eq!(place(&batch), Ok(None));
        assert_eq!(place(&[("MASTER_ADDR", "a"), ("WORLD_SIZE", "1"), ("RANK", "")]), Ok(None));
    }

    #[test]
    fn each_launcher_is_understood() {
        assert_eq!(found(&TORCHRUN), (5, 8, 1, "gpu03:29501".to_owned()));
        let job = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "job-master-0"),
            ("MASTER_PORT", "23456"),
            ("PET_NNODES", "2"),
            SHARED,
        ];
        assert_eq!(found(&job), (1, 2, 0, "job-master-0:23457".to_owned()), "one GPU a pod");
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ];
        assert_eq!(found(&mpirun), (3, 4, 3, "127.0.0.1:29501".to_owned()));
        let srun = [
            ("SLURM_PROCID", "6"),
            ("SLURM_NTASKS", "64"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_LOCALID", "2"),
            ("SLURM_STEP_NODELIST", "gpu[03-04]"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("MASTER_PORT", "30000"),
            SHARED,
        ];
        assert_eq!(found(&srun), (6, 8, 2, "gpu03:30001".to_owned()));
        let one_node = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_NUM_NODES", "1")];
        assert_eq!(found(&one_node), (1, 2, 0, "127.0.0.1:29501".to_owned()));
    }

    #[test]
    fn one_machine_is_met_within_itself_without_a_secret() {
        let torchrun = [
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "gpu03.example.org"),
            ("MASTER_PORT", "29500"),
        ];
        let of = |more: &[(&str, &str)]| place(&[&torchrun[..], more].concat());
        let found = of(&[]).unwrap().unwrap();
        assert_eq!((&*found.host, &*found.listens_at), ("127.0.0.1", "127.0.0.1"));
        assert!(found.secret.0.is_empty());
        // Unless it is asked for otherwise.
        let error = of(&[(ADDRESS, "0.0.0.0")]).unwrap_err();
        assert!(
            error.contains("MILLPOND_SECRET is not set, and other machines can reach rank 0 at 0.0.0.0"),
            "{error}"
        );
        let found = of(&[(ADDRESS, "0.0.0.0"), SHARED]).unwrap().unwrap();
        assert_eq!((&*found.host, &*found.listens_at), ("gpu03.example.org", "0.0.0.0"));
        assert!(!format!("{found:?}").contains(SHARED.1), "{found:?}");
    }

    #[test]
    fn several_machines_need_a_secret() {
        let without: Vec<_> = TORCHRUN.into_iter().filter(|known| *known != SHARED).collect();
        let error = place(&without).unwrap_err();
        assert!(
            error.contains("MILLPOND_SECRET is not set") && error.contains("openssl rand -hex 16"),
            "{error}"
        );
        let found = place(&TORCHRUN).unwrap().unwrap();
        assert_eq!(found.listens_at, "gpu03", "at the address by which it is known, not at all");
        let by_hand =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")];
        assert_eq!(place(&by_hand).unwrap().unwrap().listens_at, "localhost");
    }

    #[test]
    fn the_innermost_launcher_counts() {
        let node = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("OMPI_COMM_WORLD_RANK", "0")];
        assert_eq!(found(&[&TORCHRUN[..], &node].concat()).0, 5);
    }

    #[test]
    fn jobs_without_a_port_meet_at_ports_of_their_own() {
        let of = |job| {
            let variables = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
            let local = [("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("PMIX_NAMESPACE", job)];
            place(&[variables, local].concat()).unwrap().unwrap().port
        };
        let (one, other) = (of("prterun-gpu03-1234@1"), of("prterun-gpu03-1235@1"));
        assert!(one != other && JOB_PORTS.contains(&one) && JOB_PORTS.contains(&other), "{one} {other}");
        let asked = place(&[&TORCHRUN[..], &[(PORT, "7777"), (TIMEOUT, "5")]].concat()).unwrap().unwrap();
        assert_eq!((asked.port, asked.timeout), (7777, Duration::from_secs(5)));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let mpi_of_two = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        for (variables, expected) in [
            (&[("RANK", "1")][..], "RANK is 1, but WORLD_SIZE is not set"),
            (&[("WORLD_SIZE", "4")], "WORLD_SIZE is 4, but RANK is not set"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK is 2, but WORLD_SIZE is 2: ranks count from 0"),
            (&[("RANK", "one"), ("WORLD_SIZE", "2")], "RANK is 'one', not a number"),
            (&[("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK is '-1', not a number"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "2")],
                "LOCAL_RANK is 2, but WORLD_SIZE is 2",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "4")],
                "LOCAL_WORLD_SIZE is 4, but WORLD_SIZE is 2",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2")],
                "MASTER_ADDR is not set: set it to the machine of rank 0",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "65535")],
                "MASTER_PORT is 65535, and has no port after it: set MILLPOND_RENDEZVOUS_PORT",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")],
                "MASTER_PORT is '70000', not a number",
            ),
            (&mpi_of_two, "MASTER_ADDR is not set"),
            (
                &[mpi_of_two[0], mpi_of_two[1], ("WORLD_SIZE", "4")],
                "WORLD_SIZE is 4, but OMPI_COMM_WORLD_SIZE is 2: unset one of them",
            ),
        ] {
            let error = place(&[variables, &[SHARED]].concat()).unwrap_err();
            assert!(error.contains(expected), "{variables:?}: {error}");
        }
    }

    #[test]
    fn the_first_machine_of_a_list_is_found() {
        let first =
            ["gpu03", "gpu03,gpu04", "gpu[03-07,12]", "gpu[3,5]-ib,x1", "a1,gpu[1-2]"].map(first_host);
        assert_eq!(first, ["gpu03", "gpu03", "gpu03", "gpu3-ib", "a1"]);
    }
}
