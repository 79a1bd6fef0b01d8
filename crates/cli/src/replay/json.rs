//! What `--json` writes of each trace.

use millpond_baselines::name_of;
use millpond_replay::choice::ran;
use millpond_replay::evictions::MovedTag;
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

use super::args::ReplayArgs;
use super::compute::{AllocatorRow, Replayed};
use crate::traces::Offloaded;

/// One trace.
#[derive(Serialize)]
pub(super) struct TraceJson {
    pub(crate) trace: String,
    /// What is missing of the job; one of the remarks says it.
    #[serde(skip)]
    pub(crate) lacks: Option<String>,
    blocks: usize,
    streams: usize,
    wall_us: u64,
    /// Bytes that the recorded run itself reserved, where that is known.
    recorded_reserved: Option<u64>,
    remarks: Vec<String>,
    /// The request that found no memory when the trace was recorded.
    out_of_memory: Option<OutOfMemoryJson>,
    /// `None` where there is no verdict.
    verdict: Option<VerdictJson>,
    /// The least memory that is possible, on the simulated device.
    possible: Option<Possible>,
    live_at_peak: Live,
    live_at_end: Live,
    /// What was held more and more of, from step to step.
    growth: Growth,
    phases: Vec<PhaseSum>,
    /// Where a tag was to be offloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    offloaded: Option<Offloaded>,
    /// What was evicted and restored in the recording: `millpond` did that, the other allocators did not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evicted: Vec<MovedTag>,
    pub(crate) allocators: Vec<AllocatorJson>,
}

#[derive(Serialize)]
struct OutOfMemoryJson {
    lines: Vec<String>,
    #[serde(flatten)]
    figures: OutOfMemory,
}

#[derive(Serialize)]
struct VerdictJson {
    lines: Vec<String>,
    #[serde(flatten)]
    figures: Verdict,
}

#[derive(Serialize)]
pub(crate) struct AllocatorJson {
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
    decided: Option<MomentJson>,
    /// When it first holds the most without a limit, where nobody knows what it needs.
    holds_most: Option<MomentJson>,
}

#[derive(Serialize)]
struct MomentJson {
    #[serde(flatten)]
    waste: Waste,
    #[serde(flatten)]
    holes: Holes,
}

/// What came of a trace, with its remarks; and the program that was replayed.
pub(super) fn of_trace(
    args: &ReplayArgs,
    trace: &Trace,
    replayed: Replayed,
    remarks: Vec<String>,
) -> (TraceJson, Program) {
    let Replayed { program, rows, verdict, out_of_memory, .. } = replayed;
    let json = TraceJson {
        trace: trace.name.clone(),
        lacks: trace.lacks.clone(),
        blocks: program.blocks,
        streams: program.streams,
        wall_us: trace.wall_us,
        recorded_reserved: trace.recorded_reserved,
        remarks,
        out_of_memory: out_of_memory.map(|figures| OutOfMemoryJson { lines: figures.lines(), figures }),
        verdict: verdict.ok().map(|figures| VerdictJson { lines: figures.lines(), figures }),
        possible: replayed.possible,
        live_at_peak: replayed.live_at_peak,
        live_at_end: replayed.live_at_end,
        growth: replayed.growth,
        phases: replayed.phases,
        offloaded: replayed.offloaded,
        evicted: replayed.moved_tags,
        allocators: rows.into_iter().map(|row| of_allocator(args, trace, row)).collect(),
    };
    (json, program)
}

/// What programs are told of an allocator.
fn of_allocator(args: &ReplayArgs, trace: &Trace, row: AllocatorRow) -> AllocatorJson {
    let AllocatorRow { outcome, need, deciding, holes, moves } = row;
    let judged = need.filter(|_| args.capacity.is_none()).map(|need: Need| {
        let cards = args.cards().into_iter();
        let (fits, too_small): (Vec<_>, Vec<_>) =
            cards.partition(|card| card.fits(need.most(), args.context()));
        let names = |cards: Vec<Card>| cards.into_iter().map(|card| card.name).collect::<Vec<_>>();
        (names(fits), names(too_small))
    });
    let (cards, too_small) = judged.unzip();
    let is_most = deciding.as_ref().is_some_and(|deciding| deciding.is_most);
    let moment = deciding.map(|deciding| MomentJson { waste: deciding.waste, holes });
    let (decided, holds_most) = if is_most { (None, moment) } else { (moment, None) };
    let is_judged = args.is_judged(&outcome.allocator, ran(trace));
    AllocatorJson {
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
