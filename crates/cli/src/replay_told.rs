//! What `millpond replay` tells of one trace: to people as text, to programs in the shape that `--json` writes.

use millpond::HumanBytes;
use millpond::device::MemoryKind;
use millpond_baselines::name_of;
use millpond_replay::choice::ran;
use millpond_replay::fit::{Card, Need};
use millpond_replay::growth::Growth;
use millpond_replay::holes::Holes;
use millpond_replay::out_of_memory::OutOfMemory;
use millpond_replay::phases::PhaseSum;
use millpond_replay::possible::Possible;
use millpond_replay::replay::{Moves, Outcome, Program, Waste};
use millpond_replay::sites::Live;
use millpond_replay::trace::Trace;
use millpond_replay::verdict::Verdict;
use serde::Serialize;

use crate::introduction::introduce;
use crate::replay_args::ReplayArgs;
use crate::replay_tables::{
    Row, account, calls, grew, held, kept, moved, room, wasted, which_cards, wrapped,
};
use crate::replay_work::{Replayed, is_about_cards, is_promised, is_real};
use crate::screen::{remark, say};

/// What is told of one trace.
#[derive(Serialize)]
pub(crate) struct Told {
    pub(crate) trace: String,
    blocks: usize,
    streams: usize,
    wall_us: u64,
    /// Bytes that the recorded run itself reserved, where that is known.
    recorded_reserved: Option<u64>,
    remarks: Vec<String>,
    /// The request that found no memory when the trace was recorded.
    out_of_memory: Option<ToldOutOfMemory>,
    /// `None` where there is no verdict.
    verdict: Option<ToldVerdict>,
    /// The least memory that is possible, on the simulated device.
    possible: Option<Possible>,
    live_at_peak: Live,
    live_at_end: Live,
    /// What was held more and more of, from step to step.
    growth: Growth,
    phases: Vec<PhaseSum>,
    pub(crate) allocators: Vec<ToldRow>,
}

#[derive(Serialize)]
struct ToldOutOfMemory {
    lines: Vec<String>,
    #[serde(flatten)]
    figures: OutOfMemory,
}

#[derive(Serialize)]
struct ToldVerdict {
    lines: Vec<String>,
    #[serde(flatten)]
    figures: Verdict,
}

#[derive(Serialize)]
pub(crate) struct ToldRow {
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    /// Which memory of the device.
    memory: &'static str,
    /// Of managed memory, on the simulated device.
    #[serde(skip_serializing_if = "Option::is_none")]
    moves: Option<Moves>,
    /// Bytes.
    needs: Option<u64>,
    /// Where the device puts segments in the other order.
    needs_elsewhere: Option<u64>,
    retries: Option<u64>,
    /// Names of the cards that would do; `None` where that was not asked, and where nobody can say.
    cards: Option<Vec<String>>,
    /// Names of those that would not.
    #[serde(skip)]
    pub(crate) too_small: Vec<String>,
    /// Whether `--fail-if-oom` is about it.
    #[serde(skip)]
    pub(crate) is_judged: bool,
    /// Where what it needs is decided.
    decided: Option<Moment>,
    /// When it first holds the most without a limit, where nobody knows what it needs.
    holds_most: Option<Moment>,
}

#[derive(Serialize)]
struct Moment {
    #[serde(flatten)]
    waste: Waste,
    #[serde(flatten)]
    holes: Holes,
}

/// Tells people what came of a trace, and returns what programs are told.
pub(crate) fn tell(args: &ReplayArgs, trace: &Trace, replayed: Replayed) -> (Told, Program) {
    let Replayed { program, rows, .. } = &replayed;
    if let Some(found) = &replayed.out_of_memory {
        say_out_of_memory(trace, found);
    }
    let mut remarks = introduce(trace, program);
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
    say(&account(rows, replayed.possible));
    say_details(args, trace, &replayed);
    let Replayed { program, rows, verdict, out_of_memory, .. } = replayed;
    let told = Told {
        trace: trace.name.clone(),
        blocks: program.blocks,
        streams: program.streams,
        wall_us: trace.wall_us,
        recorded_reserved: trace.recorded_reserved,
        remarks,
        out_of_memory: out_of_memory.map(|figures| ToldOutOfMemory { lines: figures.lines(), figures }),
        verdict: verdict.ok().map(|figures| ToldVerdict { lines: figures.lines(), figures }),
        possible: replayed.possible,
        live_at_peak: replayed.live_at_peak,
        live_at_end: replayed.live_at_end,
        growth: replayed.growth,
        phases: replayed.phases,
        allocators: rows.into_iter().map(|row| told_of(args, trace, row)).collect(),
    };
    (told, program)
}

/// What a program that ran out of memory wants to know first.
fn say_out_of_memory(trace: &Trace, found: &OutOfMemory) {
    let lines = found.lines();
    let (first, rest) = lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    say(&wrapped(&format!("{}: {first}", trace.name)));
    rest.iter().for_each(|line| say(&wrapped(line)));
    say(&format!("{}\n", kept(found)));
}

/// Why an allocator has no cards.
const NOT_PROMISED: &str = "(stream-ordered is left out: what the driver's own pool holds is not known well enough to promise a card)";

/// The tables behind the first.
fn say_details(args: &ReplayArgs, trace: &Trace, replayed: &Replayed) {
    let rows = &replayed.rows;
    if args.capacity.is_none() && is_about_cards(args) {
        let promised: Vec<&Row> = rows.iter().filter(|row| is_promised(&row.outcome.allocator)).collect();
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

/// What programs are told of an allocator.
fn told_of(args: &ReplayArgs, trace: &Trace, row: Row) -> ToldRow {
    let Row { outcome, need, deciding, holes, moves } = row;
    let judged = need.filter(|_| args.capacity.is_none()).map(|need: Need| {
        let cards = args.cards().into_iter();
        let (fits, too_small): (Vec<_>, Vec<_>) =
            cards.partition(|card| card.fits(need.most(), args.context()));
        let names = |cards: Vec<Card>| cards.into_iter().map(|card| card.name).collect::<Vec<_>>();
        (names(fits), names(too_small))
    });
    let (cards, too_small) = judged.unzip();
    let is_most = deciding.as_ref().is_some_and(|deciding| deciding.is_most);
    let moment = deciding.map(|deciding| Moment { waste: deciding.waste, holes });
    let (decided, holds_most) = if is_most { (None, moment) } else { (moment, None) };
    let is_judged = args.is_judged(&outcome.allocator, ran(trace));
    ToldRow {
        outcome,
        memory: name_of(args.memory),
        moves,
        needs: need.map(|need| need.bytes),
        needs_elsewhere: need.map(|need| need.elsewhere),
        retries: need.map(|need| need.retries),
        // None is promised where a part of the job is missing.
        cards: cards.filter(|_| trace.lacks.is_none()),
        too_small: too_small.unwrap_or_default(),
        is_judged,
        decided,
        holds_most,
    }
}
