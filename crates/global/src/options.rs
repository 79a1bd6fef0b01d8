//! What a program asks for in its code.

use std::time::Duration;

use millpond::record;

/// The options of all pools that serve the program. Made by [`options`]; sizes in bytes.
#[derive(Debug, Clone, Default)]
#[must_use = "options do nothing until `set` is called"]
pub struct Options {
    limit: Option<u64>,
    budget: Option<String>,
    decay: Option<Duration>,
    record: Option<record::Options>,
    track: Option<record::Tracking>,
}

/// Options for the pools, to be [set](Options::set) before the program's first CUDA call.
pub fn options() -> Options {
    Options::default()
}

impl Options {
    /// The most that the process may have of GPU memory: what the pools hold and what the driver gave beside them. Beyond it, the program
    /// gets an out-of-memory error. In the environment: `MILLPOND_RUN_LIMIT`.
    pub fn limit(self, bytes: u64) -> Self {
        Self { limit: Some(bytes), budget: None, ..self }
    }

    /// The same limit for all processes together that name this budget, as [`millpond::Budget::named`] has it. In the environment:
    /// `MILLPOND_RUN_BUDGET` with `MILLPOND_RUN_LIMIT`.
    pub fn budget(self, name: impl Into<String>, bytes: u64) -> Self {
        Self { limit: Some(bytes), budget: Some(name.into()), ..self }
    }

    /// How long memory that nobody uses stays with the pools before it goes back to the GPU. A second by default; the zero
    /// duration keeps it. In the environment: `MILLPOND_DECAY`.
    pub fn decay(self, delay: Duration) -> Self {
        Self { decay: Some(delay), ..self }
    }

    /// Records what the pools do to a file, for `millpond replay`. In the environment: `MILLPOND_RECORD`.
    pub fn record(self, to: impl Into<record::Options>) -> Self {
        Self { record: Some(to.into()), ..self }
    }

    /// Tracks who holds memory. In the environment: `MILLPOND_TRACK`.
    pub fn track(self, tracking: record::Tracking) -> Self {
        Self { track: Some(tracking), ..self }
    }

    /// Has the pools built with these options. Where the environment says something of an option, that comes first.
    ///
    /// # Errors
    /// [`Error::BadOption`](millpond::Error::BadOption) once the program has made a CUDA call that concerns memory, or set options before.
    pub fn set(self) -> millpond::Result<()> {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        {
            let Self { limit, budget, decay, record, track } = self;
            millpond_entry_points::linked::set_options(millpond_entry_points::linked::Options {
                limit,
                budget,
                decay,
                record,
                track,
            })?;
        }
        Ok(())
    }
}
