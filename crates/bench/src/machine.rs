//! Where and when figures were taken.

use std::fmt;
use std::time::SystemTime;

use millpond::device::{Kind, MemoryKind, cuda};
use serde::Serialize;

use crate::Target;

/// The machine, the driver, the date and the command: without them a figure says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The version of what measured.
    pub version: &'static str,
    /// The processor.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The device, and which memory of it where that is not its own.
    pub device: String,
    /// The GPU's driver, where the device is a GPU.
    pub driver: Option<String>,
    /// The date and the time, UTC.
    pub date: String,
    /// The command that was given.
    pub command: String,
}

impl Machine {
    /// This machine, now.
    pub fn here(target: &Target) -> Self {
        Self {
            // As the command prints it.
            version: option_env!("MILLPOND_VERSION").unwrap_or(env!("CARGO_PKG_VERSION")),
            processor: processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            device: match target.memory() {
                MemoryKind::Device => format!("{} ({})", target.name(), target.model()),
                memory => format!("{} ({}), {memory}", target.name(), target.model()),
            },
            driver: (target.name().kind() == Kind::Cuda).then(driver).flatten(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: command(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, processor, cores, device, driver, date, command } = self;
        let count = if *cores == 1 { "core" } else { "cores" };
        writeln!(f, "millpond: {version}")?;
        writeln!(f, "machine: {processor}, {cores} {count}")?;
        writeln!(f, "device: {device}")?;
        if let Some(driver) = driver {
            writeln!(f, "driver: {driver}")?;
        }
        writeln!(f, "date: {date}")?;
        write!(f, "command: {command}")
    }
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The CUDA version, and the kernel module's own where the system tells it.
fn driver() -> Option<String> {
    let cuda = format!("CUDA {}", cuda::driver().ok()?.cuda);
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue …"
    let version = module.as_deref().and_then(|text| {
        let is_version =
            |word: &&str| word.contains('.') && word.chars().all(|c| c == '.' || c.is_ascii_digit());
        text.split_whitespace().find(is_version)
    });
    Some(version.map_or_else(|| cuda.clone(), |version| format!("{version}, {cuda}")))
}

/// The command as given, its program without the folders above it.
fn command() -> String {
    let mut words: Vec<String> = std::env::args().collect();
    if let Some(program) = words.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default().to_owned();
    }
    words.join(" ")
}
