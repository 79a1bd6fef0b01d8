//! `millpond top`: what the pools of running programs hold and do, and the GPUs beside them.

mod blocks;
mod json;
mod rows;
mod terminal;
mod text;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use self::rows::SortKey;
use crate::error::{Error, Result};
use crate::live::{Sight, Watch};
use crate::terminal::{Interrupt, answer};

#[derive(Debug, Args)]
#[command(after_help = "\
Shows every pool of this user's programs, but hidden ones (MILLPOND_LIVE=off).
pages is the part of the time that went to finding and mapping pages.
In a pipe, and with --json, a look follows the other until Ctrl-C.

Examples:
  millpond top
  millpond top --once --sort cached
  millpond top --once --blocks
  millpond top --json --interval 10s >> figures.jsonl")]
pub(crate) struct TopArgs {
    /// Print what two looks say, and end
    #[arg(long)]
    once: bool,
    /// Print JSON, in a line for each look
    #[arg(long)]
    json: bool,
    /// Say also what the live blocks are: by size, and by tag and call stack where a pool tracks them
    #[arg(long)]
    blocks: bool,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Sort by this figure
    #[arg(long, value_name = "KEY", value_enum, default_value_t = SortKey::Reserved)]
    sort: SortKey,
}

/// The shortest time between two looks: the figures of a shorter one say little.
const SHORTEST: Duration = Duration::from_millis(50);

fn interval(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || "a time from 50ms to 1day, as 500ms or 2s".to_owned();
    let time = humantime::parse_duration(text).map_err(|_| wrong())?;
    if (SHORTEST..=Duration::from_secs(86_400)).contains(&time) { Ok(time) } else { Err(wrong()) }
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> Result<()> {
    let watch = Watch::new();
    if !args.once && !args.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return terminal::run(&watch, args.interval, args.sort);
    }
    let interrupt = Interrupt::watch();
    let mut before: Option<Sight> = None;
    loop {
        let sight = watch.look()?;
        // One look alone tells no rates.
        if !args.once || before.is_some() {
            print(args, &sight, before.as_ref())?;
        }
        if args.once && before.is_some() || !sleep(args.interval, &interrupt) || nobody_reads() {
            return Ok(());
        }
        before = Some(sight);
    }
}

fn print(args: &TopArgs, sight: &Sight, before: Option<&Sight>) -> Result<()> {
    if !args.json {
        let mut text = text::text(sight, before, args.sort);
        if args.blocks && sight.processes.iter().any(|process| !process.pools.is_empty()) {
            text = text + "\n\n" + &blocks::text(sight);
        }
        let more = if args.once { "" } else { "\n" };
        answer(&(text + more));
        return Ok(());
    }
    let told = json::told(sight, before, args.blocks);
    let text = if args.once { serde_json::to_string_pretty(&told) } else { serde_json::to_string(&told) };
    let text = text.map_err(|error| Error::Io {
        path: "standard output".into(),
        action: "write JSON",
        source: error.into(),
    })?;
    answer(&text);
    Ok(())
}

/// Whether who read the output is gone.
fn nobody_reads() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let out = std::io::stdout();
    let mut ends = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut ends, Some(&now)).is_ok() && ends[0].revents().contains(PollFlags::ERR)
}

/// `false` where a signal ended it.
fn sleep(time: Duration, interrupt: &Interrupt) -> bool {
    /// How soon a signal is noticed.
    const PART: Duration = Duration::from_millis(50);
    let mut left = time;
    while !left.is_zero() && interrupt.signal().is_none() {
        let part = left.min(PART);
        std::thread::sleep(part);
        left -= part;
    }
    interrupt.signal().is_none()
}
