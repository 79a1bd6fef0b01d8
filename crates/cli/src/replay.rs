//! `millpond replay`: traces through allocators on a simulated device, and what they tell.

use millpond::HumanBytes;
use millpond_replay::fit::{self, CARDS_GIB};
use millpond_replay::read::{self, Limits};
use millpond_replay::replay::{Outcome, Program, UNLIMITED, on_sim};
use millpond_replay::trace::Trace;

use crate::error::{Error, Result};
use crate::outputs::Output;
use crate::replay_args::ReplayArgs;
use crate::screen::{remark, say, table, thousands};

/// One trace with one allocator.
struct Row {
    outcome: Outcome,
    /// The smallest capacity in bytes that fits, where it was looked for and there is one.
    smallest: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> Result<()> {
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let mut outcomes = Vec::new();
    for path in &args.traces {
        for trace in read::read(path, Limits::default())? {
            outcomes.extend(replay(args, &trace)?);
        }
    }
    match json {
        Some(file) => write_json(file, &outcomes),
        None => Ok(()),
    }
}

/// Replays one trace with every allocator asked for, and says what came of it.
fn replay(args: &ReplayArgs, trace: &Trace) -> Result<Vec<Outcome>> {
    let program = Program::new(trace, args.free());
    introduce(trace, &program);
    let mut rows = Vec::new();
    for name in args.allocators() {
        let choose = move |context: &millpond::Context| millpond_baselines::by_name(name, context);
        let outcome = on_sim(trace, &program, &choose, args.capacity.unwrap_or(UNLIMITED))?;
        let smallest = match args.capacity {
            Some(_) => None,
            None => fit::smallest_capacity(trace, &program, &choose, &outcome)?,
        };
        rows.push(Row { outcome, smallest });
    }
    say(&account(&rows));
    match args.capacity {
        Some(capacity) => say(&format!("\n{}", room(&rows, capacity))),
        None => say(&format!("\nCards that would do\n{}", cards(&rows))),
    }
    say("");
    Ok(rows.into_iter().map(|row| row.outcome).collect())
}

fn introduce(trace: &Trace, program: &Program) {
    let count =
        |n: usize, what: &str| format!("{} {what}{}", thousands(n as u64), if n == 1 { "" } else { "s" });
    let mut line = format!(
        "{}: {}, {}, {:.1} s; requested at most {}",
        trace.name,
        count(program.blocks, "block"),
        count(program.streams, "stream"),
        trace.wall_us as f64 / 1e6,
        HumanBytes(program.peak_requested().0),
    );
    if let Some(reserved) = trace.recorded_reserved {
        line += &format!(", reserved in the recorded run {}", HumanBytes(reserved));
    }
    say(&line);
    if !trace.live_before.is_empty() {
        say(&format!("{} were live before the recording began", count(trace.live_before.len(), "block")));
    }
    if let Some(oom) = trace.recorded_ooms.first() {
        say(&format!("the recorded run found no memory for {}", HumanBytes(oom.size)));
    }
    if trace.lost_frees > 0 {
        remark(&format!(
            "{}: {} addresses were allocated twice without a free between: the recording lost events",
            trace.name, trace.lost_frees
        ));
    }
}

fn account(rows: &[Row]) -> String {
    let titles = ["allocator", "reserved", "ratio", "device calls", "their time", "of wall", "events/s", ""];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for Row { outcome, .. } in rows {
        let share =
            outcome.device_share().map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", share * 100.0));
        let time = outcome.device_us.map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us / 1e3));
        let oom = outcome.oom.map(|oom| {
            format!(
                "out of memory at event {}, asking for {}",
                thousands(oom.event as u64),
                HumanBytes(oom.bytes)
            )
        });
        lines.push(vec![
            outcome.allocator.clone(),
            HumanBytes(outcome.peak_reserved).to_string(),
            format!("{:.3}", outcome.ratio),
            thousands(outcome.device_calls.total()),
            time,
            share,
            thousands((outcome.events as f64 / outcome.replay_s.max(1e-9)) as u64),
            oom.unwrap_or_default(),
        ]);
    }
    table(&lines)
}

/// Which cards would do, for each allocator.
fn cards(rows: &[Row]) -> String {
    let mut titles = vec!["allocator".to_owned(), "needs".to_owned()];
    titles.extend(CARDS_GIB.map(|gib| format!("{gib}")));
    let mut lines = vec![titles];
    for Row { outcome, smallest } in rows {
        let mut line = vec![outcome.allocator.clone()];
        line.push(smallest.map_or_else(|| "-".to_owned(), |bytes| HumanBytes(bytes).to_string()));
        let mark = |gib| if smallest.is_some_and(|bytes| fit::fits(bytes, gib)) { "yes" } else { "no" };
        line.extend(CARDS_GIB.map(|gib| mark(gib).to_owned()));
        lines.push(line);
    }
    let context = HumanBytes(fit::CONTEXT_BYTES);
    format!("{}\n(cards in GiB; {context} of each are left to the driver's context)", table(&lines))
}

/// Who fits in the capacity asked for.
fn room(rows: &[Row], capacity: u64) -> String {
    let named = |fits: bool| {
        let names = rows.iter().filter(|row| row.outcome.oom.is_none() == fits);
        names.map(|row| row.outcome.allocator.as_str()).collect::<Vec<_>>().join(", ")
    };
    let or_none = |names: String| if names.is_empty() { "none".to_owned() } else { names };
    format!(
        "in {}: fits with {}; not with {}",
        HumanBytes(capacity),
        or_none(named(true)),
        or_none(named(false))
    )
}

fn write_json(file: Output, outcomes: &[Outcome]) -> Result<()> {
    let path = file.path().to_owned();
    let text = serde_json::to_string_pretty(outcomes).map_err(|error| Error::Io {
        path,
        action: "write the results to it",
        source: error.into(),
    })?;
    file.write(&(text + "\n"))
}
