//! What the environment asks for: `millpond run` sets it, and children inherit it. And what a program asks for in its code.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond::bindings::DECAY;
use millpond::record;

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

    /// What asks for it, in the environment.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            _ if is_disabled() => "MILLPOND_DISABLE=1",
            Self::Pool => "MILLPOND_RUN=pool",
            Self::Watch => "MILLPOND_RUN=watch",
            Self::Limit => "MILLPOND_RUN=limit",
        }
    }
}

/// What a program asks for in its code. What the environment says comes first.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The most that the process may have, in bytes.
    pub limit: Option<u64>,
    /// The name by which processes share the limit.
    pub budget: Option<String>,
    /// How long pools keep what nobody uses.
    pub decay: Option<Duration>,
    /// Where all pools are recorded to.
    pub record: Option<record::Options>,
    /// What is tracked of them.
    pub track: Option<record::Tracking>,
}

static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Whether this code does nothing.
static IS_LEFT_TO_OTHERS: AtomicBool = AtomicBool::new(false);

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
    /// How long pools keep what nobody uses, unless the environment says it, which pools ask themselves.
    pub(crate) decay: Option<Duration>,
    /// Where pools are recorded to, and what is tracked of them, unless the environment says it.
    pub(crate) record: Option<record::Options>,
    pub(crate) track: Option<record::Tracking>,
    /// The file for reports.
    pub(crate) reports: Option<PathBuf>,
    /// Whether what the program asks for in its code is in this.
    follows_code: bool,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// What was asked for, of this process.
pub(crate) fn settings() -> &'static Settings {
    SETTINGS.get_or_init(Settings::of_process)
}

/// Asks for this in the program's code; `false` where the settings are in use, or were asked for.
pub(crate) fn set(options: Options) -> bool {
    // Another thread may begin meanwhile.
    OPTIONS.set(options).is_ok() && SETTINGS.get().is_none_or(|settings| settings.follows_code)
}

/// All memory is the driver's, without a limit, whatever is asked for.
pub(crate) fn leave_to_others() {
    // Relaxed: before there are threads.
    IS_LEFT_TO_OTHERS.store(true, Ordering::Relaxed);
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
            decay: None,
            record: None,
            track: None,
            reports: None,
            follows_code: true,
        }
    }

    fn of_process() -> Self {
        if is_disabled() || IS_LEFT_TO_OTHERS.load(Ordering::Relaxed) {
            return Self::nothing();
        }
        let code = OPTIONS.get();
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
        // One from the environment has the budget of the environment.
        let (limit, budget) = match (limit, code) {
            (None, Some(code)) if variable("MILLPOND_RUN_LIMIT").is_none() => {
                (code.limit, code.budget.clone())
            }
            _ => (limit, variable("MILLPOND_RUN_BUDGET")),
        };
        let is_unsaid = |names: &[&str]| names.iter().all(|name| variable(name).is_none());
        Self {
            mode,
            counts_overhead: limit.is_some() && budget.is_none() && is_on("MILLPOND_RUN_COUNT_OVERHEAD"),
            limit,
            budget,
            async_free: is_on("MILLPOND_RUN_ASYNC_FREE"),
            ipc: is_on("MILLPOND_RUN_IPC"),
            decay: is_unsaid(&["MILLPOND_DECAY"]).then(|| code.and_then(|code| code.decay).unwrap_or(DECAY)),
            record: code.and_then(|code| code.record.clone()).filter(|_| is_unsaid(&["MILLPOND_RECORD"])),
            track: code
                .and_then(|code| code.track.clone())
                .filter(|_| is_unsaid(&["MILLPOND_TRACK", "MILLPOND_LEAKS", "MILLPOND_OOM_DUMP"])),
            follows_code: code.is_some(),
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
