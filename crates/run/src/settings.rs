//! What the environment asks for: `millpond run` sets it, and children inherit it.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::messages;

/// What is done with the program's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It comes from a pool.
    Pool,
    /// It is the driver's, and is recorded.
    Watch,
    /// It is the driver's, up to a limit.
    Limit,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Watch => "watch",
            Self::Limit => "limit",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    /// The most that the process may have, in bytes.
    pub(crate) limit: Option<u64>,
    /// The name by which processes share the limit.
    pub(crate) budget: Option<String>,
    /// What CUDA itself takes is under the limit, too.
    pub(crate) counts_overhead: bool,
    /// `cuMemFree` does not wait for the GPU.
    pub(crate) async_free: bool,
    /// `cuMemAlloc` is the driver's: the program gives such memory to other processes.
    pub(crate) ipc: bool,
    /// Whether the environment says how long pools keep what nobody uses.
    pub(crate) says_decay: bool,
    /// The file for reports.
    pub(crate) reports: Option<PathBuf>,
}

/// What was asked for, of this process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(Settings::from_environment)
}

impl Settings {
    /// All memory is the driver's, without a limit.
    fn nothing() -> Self {
        Self {
            mode: Mode::Limit,
            limit: None,
            budget: None,
            counts_overhead: false,
            async_free: false,
            ipc: false,
            says_decay: false,
            reports: None,
        }
    }

    fn from_environment() -> Self {
        if is_disabled() {
            return Self::nothing();
        }
        let mode = match variable("MILLPOND_RUN").as_deref() {
            None | Some("pool") => Mode::Pool,
            Some("watch") => Mode::Watch,
            Some("limit") => Mode::Limit,
            Some(other) => {
                messages::say(&format!(
                    "MILLPOND_RUN is '{other}': use pool, watch or limit. The program gets a pool"
                ));
                Mode::Pool
            }
        };
        let limit = variable("MILLPOND_RUN_LIMIT").and_then(|text| {
            let bytes = text.parse().ok();
            if bytes.is_none() {
                messages::say(&format!(
                    "MILLPOND_RUN_LIMIT is '{text}': use a number of bytes. There is no limit"
                ));
            }
            bytes
        });
        let budget = variable("MILLPOND_RUN_BUDGET");
        Self {
            mode,
            counts_overhead: limit.is_some() && budget.is_none() && is_on("MILLPOND_RUN_COUNT_OVERHEAD"),
            limit,
            budget,
            async_free: is_on("MILLPOND_RUN_ASYNC_FREE"),
            ipc: is_on("MILLPOND_RUN_IPC"),
            says_decay: variable("MILLPOND_DECAY").is_some(),
            reports: std::env::var_os("MILLPOND_RUN_ACCOUNTS")
                .filter(|folder| !folder.is_empty())
                .map(PathBuf::from),
        }
    }
}

/// Whether the program is to run as if nothing were preloaded.
fn is_disabled() -> bool {
    variable("MILLPOND_DISABLE").as_deref() == Some("1")
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn is_on(name: &str) -> bool {
    variable(name).is_some_and(|value| value != "0")
}
