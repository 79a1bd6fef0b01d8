//! What people are told of one trace.

use millpond::HumanBytes;
use millpond::device::MemoryKind;
use millpond_replay::out_of_memory::OutOfMemory;
use millpond_replay::trace::Trace;
use millpond_replay::verdict::Verdict;

use super::args::{ReplayArgs, is_about_cards, is_real};
use super::compute::{AllocatorRow, Replayed, is_promised};
use super::tables::{calls, evicted, grew, kept, moved, room, summary, wasted, which_cards};
use crate::terminal::{remark, say};
use crate::traces::{held, say_summary, wrapped};

/// Tells people what came of a trace. Returns what is to be remarked about it.
pub(super) fn show(args: &ReplayArgs, trace: &Trace, replayed: &Replayed) -> Vec<String> {
    let Replayed { program, rows, .. } = replayed;
    if let Some(found) = &replayed.out_of_memory {
        say_out_of_memory(trace, found);
    }
    let mut remarks = say_summary(trace, program);
    if args.memory != MemoryKind::Device {
        say(&format!("replayed in {}, at its costs\n", args.memory));
    }
    let left_out = args.left_out();
    if !left_out.is_empty() {
        let said = format!("left out, since {} does not carry it: {}", args.memory, left_out.join(", "));
        remark(&said);
        remarks.push(said);
    }
    replayed.said.iter().for_each(|said| say(&wrapped(said)));
    replayed.remarked.iter().for_each(|said| remark(said));
    let fits = args.capacity.filter(|_| args.memory != MemoryKind::Managed && !is_real(args.device));
    if let Some(capacity) = fits {
        say(&format!("{}\n", wrapped(&room(rows, capacity, args.context_beside()))));
    }
    say(&format!("{}\n\n{}\n", held("Held at the peak", &replayed.live_at_peak), grew(&replayed.growth)));
    let lines = replayed.verdict.as_ref().map(Verdict::lines);
    say(&match &lines {
        Ok(lines) => {
            let lines = lines.iter().map(|line| wrapped(line)).collect::<Vec<_>>().join("\n");
            format!("{}{lines}\n", if args.capacity.is_some() { "Without a limit:\n" } else { "" })
        }
        Err(lacking) => {
            let why = "it compares millpond with caching on the simulated device";
            wrapped(&format!("(no verdict: {why}; {lacking})")) + "\n"
        }
    });
    if !replayed.moved_tags.is_empty() {
        say(&format!("Evicted and restored\n{}", evicted(&replayed.moved_tags)));
        say(&format!("{}\n", wrapped(ONLY_MILLPOND)));
    }
    if let Some(offloaded) = &replayed.offloaded {
        offloaded.lines().iter().for_each(|line| say(&wrapped(line)));
        say("");
    }
    say(&summary(rows, replayed.possible));
    say_details(args, trace, replayed);
    remarks
}

/// What a program that ran out of memory wants to know first.
fn say_out_of_memory(trace: &Trace, found: &OutOfMemory) {
    let lines = found.lines();
    let (first, rest) = lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    say(&wrapped(&format!("{}: {first}", trace.name)));
    rest.iter().for_each(|line| say(&wrapped(line)));
    say(&format!("{}\n", kept(found)));
}

/// Who does what the table of evictions says.
const ONLY_MILLPOND: &str = "(millpond evicts and restores them as the program did, and so do the figures of what is possible; other \
                             allocators hold them all the time)";

/// Why an allocator has no cards.
const NOT_PROMISED: &str = "(stream-ordered is left out: what the driver's own pool holds is not known well enough to promise a card)";

/// The tables behind the first.
fn say_details(args: &ReplayArgs, trace: &Trace, replayed: &Replayed) {
    let rows = &replayed.rows;
    if args.capacity.is_none() && is_about_cards(args) {
        let promised: Vec<&AllocatorRow> =
            rows.iter().filter(|row| is_promised(&row.outcome.allocator)).collect();
        let mut cards = which_cards(&promised, &args.cards(), args.context(), trace.lacks.is_none());
        if promised.len() < rows.len() {
            cards += &format!("\n{}", wrapped(NOT_PROMISED));
        }
        say(&format!("\nCards that would do\n{cards}"));
    }
    if is_about_cards(args) {
        say(&format!("\nAt the request that decides, reserved and not requested\n{}", wasted(rows)));
    }
    if rows.iter().any(|row| row.moves.is_some()) {
        let card = args
            .capacity
            .map_or("a card that has room".to_owned(), |card| format!("a card of {}", HumanBytes(card)));
        say(&format!("\nMoves between the host and {card}\n{}", moved(rows)));
    }
    say(&format!("\nDevice calls by kind\n{}", calls(rows)));
    say(&format!("\n{}", held("Live at the end", &replayed.live_at_end)));
    say("");
}
