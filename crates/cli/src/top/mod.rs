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
use crate::live::{Sight, Watch, interval};
use crate::terminal::{Interrupt, answer};

#[derive(Debug, Args)]
#[command(after_help = "\
Shows every pool of this user's programs, but hidden ones (MILLPOND_LIVE=off).
Root sees those of all users and containers. pages is the part of the time that
went to finding and mapping pages. In a pipe, and with --json, a look follows
the other until Ctrl-C.

Examples:
  millpond top
  millpond top --once --sort cached
  millpond top --once --blocks
  millpond top --filter train.py
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
    /// Show only pools whose process, user, job or name has this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> Result<()> {
    let watch = Watch::new();
    if !args.once && !args.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return terminal::run(&watch, args.interval, args.sort, args.filter.clone().unwrap_or_default());
    }
    let interrupt = Interrupt::watch();
    let mut before: Option<Sight> = None;
    loop {
        let mut sight = watch.look()?;
        sight.keep(args.filter.as_deref());
        // One look alone tells no rates.
        if !args.once || before.is_some() {
            print(args, &sight, before.as_ref())?;
        }
        if args.once && before.is_some() || !interrupt.sleep(args.interval) || nobody_reads() {
            return Ok(());
        }
        before = Some(sight);
    }
}

/// Columns of the terminal that the text is for; `None` in a pipe or a file, which has room for all.
fn width() -> Option<usize> {
    let size = std::io::stdout().is_terminal().then(ratatui::crossterm::terminal::size);
    size?.ok().map(|(columns, _)| columns.into())
}

fn print(args: &TopArgs, sight: &Sight, before: Option<&Sight>) -> Result<()> {
    if !args.json {
        let mut text = text::text(sight, before, args.sort, width());
        if args.blocks && sight.processes.iter().any(|process| !process.pools.is_empty()) {
            text = text + "\n\n" + &blocks::text(sight);
        }
        let more = if args.once { "" } else { "\n" };
        answer(&(text + more));
        return Ok(());
    }
    let told = json::told(sight, before, args.blocks);
    let text = serde_json::to_string(&told).map_err(|error| Error::Io {
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
