//! The arguments of `millpond soak`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millpond::device::DeviceName;
use millpond_soak::Options;

#[derive(Debug, Args)]
#[command(after_help = "\
It ends with status 1 where it found anything. docs/soak.md says what is watched.

Examples:
  millpond soak                                10 million operations, some seconds
  millpond soak --operations 1e9 --seed 7 --json soak.json
  millpond soak --device host --minutes 10     with contents checked
  jq '.findings[0].program' soak.json > found.json
  millpond soak --program found.json           the same finding again")]
pub(crate) struct SoakArgs {
    /// sim, host, cuda or cuda:N
    #[arg(long, default_value_t = DeviceName::SIM)]
    pub(super) device: DeviceName,
    /// End after so many, such as 1e9 [default: 1e7, or none with --minutes]
    #[arg(long, value_name = "N", value_parser = operations, allow_negative_numbers = true)]
    pub(super) operations: Option<u64>,
    /// End after so many minutes
    #[arg(long, value_name = "M", value_parser = minutes, allow_negative_numbers = true)]
    pub(super) minutes: Option<Duration>,
    /// Chance of each device call to fail, below 1
    #[arg(long, value_name = "P", default_value = "1e-3", value_parser = chance, allow_negative_numbers = true)]
    pub(super) faults: f64,
    /// Programs at once, and threads in some [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), allow_negative_numbers = true)]
    pub(super) threads: Option<u16>,
    /// Streams of each thread, up to 8
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=Options::MOST_STREAMS as i64), allow_negative_numbers = true)]
    pub(super) streams: u8,
    /// Decides which programs there are [default: a new one]
    #[arg(long, value_name = "S")]
    pub(super) seed: Option<u64>,
    /// Write the results here; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Run one program again: that of a finding, or by its number
    #[arg(long, value_name = "FILE|N", conflicts_with_all = ["operations", "minutes", "json"])]
    pub(super) program: Option<PathBuf>,
    /// What the processes are started with that are killed.
    #[arg(long, num_args = 2, hide = true)]
    pub(super) tenant: Option<Vec<String>>,
}

fn number(text: &str, most: f64) -> std::result::Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && *number <= most);
    number.ok_or_else(|| format!("'{text}' is no number above 0, up to {most:e}"))
}

fn operations(text: &str) -> std::result::Result<u64, String> {
    Ok(number(text, 1e15)?.ceil() as u64)
}

fn minutes(text: &str) -> std::result::Result<Duration, String> {
    Ok(Duration::from_secs_f64(number(text, 1e5)? * 60.0))
}

fn chance(text: &str) -> std::result::Result<f64, String> {
    let chance = text.parse().ok().filter(|chance| (0.0..1.0).contains(chance));
    chance.ok_or_else(|| format!("'{text}' is no chance from 0 to below 1, such as 1e-3"))
}
