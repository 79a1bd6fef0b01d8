//! What is shown of a trace, and of each allocator.

use millpond::HumanBytes;
use millpond_baselines::MILLPOND;

use super::holders::{self, Holders};
use super::moments::Moments;
use super::text::{thousands, time};
use super::timeline::{Point, is_idle, timeline};
use crate::choice::ran;
use crate::deciding::Deciding;
use crate::export::flame;
use crate::fit::{Card, Need};
use crate::growth::Growth;
use crate::holes::Holes;
use crate::out_of_memory::OutOfMemory;
use crate::owners::Owners;
use crate::phases::{PhaseSum, sums};
use crate::possible::Possible;
use crate::replay::{Choose, FreeWhen, Outcome, Program, ReplayError};
use crate::sites::Live;
use crate::steps::Steps;
use crate::trace::Trace;

/// One trace in a report.
#[derive(Debug)]
pub struct Section {
    pub(super) name: String,
    /// What was recorded, in a few sentences.
    pub(super) facts: Vec<String>,
    pub(super) wall_us: u64,
    pub(super) is_idle: bool,
    /// The allocator that ran when the trace was recorded, as far as it is known.
    pub(super) ran: &'static str,
    pub(super) allocators: Vec<Shown>,
    pub(super) at_peak: Live,
    pub(super) at_end: Live,
    /// What is live at the peak by call stack, as a picture; nothing where no stacks were recorded.
    pub(super) flame: Option<String>,
    pub(super) growth: Growth,
    pub(super) owners: Owners,
    pub(super) by_tag: Option<Holders>,
    pub(super) by_site: Option<Holders>,
    pub(super) phases: Vec<PhaseSum>,
    pub(super) verdict: Vec<String>,
    pub(super) out_of_memory: Option<OutOfMemory>,
    /// Whether the recording has all of the job's history.
    pub(super) is_whole: bool,
    pub(super) possible: Option<Possible>,
    pub(super) cards: Vec<Card>,
    /// Bytes of each card that the driver's context takes.
    pub(super) context: u64,
}

/// One allocator in a section.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) outcome: Outcome,
    pub(super) need: Option<Need>,
    pub(super) deciding: Deciding,
    pub(super) holes: Holes,
    /// Of the pool and of the allocator that ran.
    pub(super) moments: Option<Moments>,
    pub(super) points: Vec<Point>,
}

impl Section {
    /// A section about a trace, with its verdict; cards have `context` bytes less than their name says.
    pub fn of(
        trace: &Trace,
        program: &Program,
        verdict: Vec<String>,
        (cards, context): (Vec<Card>, u64),
    ) -> Self {
        let owners = Owners::of(trace);
        let holds = Program::new(trace, FreeWhen::Requested);
        Self {
            by_tag: holders::by_tag((trace, program), &owners),
            by_site: holders::by_site((trace, program), &owners),
            owners,
            name: trace.name.clone(),
            facts: facts(trace, program),
            wall_us: trace.wall_us,
            is_idle: is_idle(trace),
            ran: ran(trace),
            allocators: Vec::new(),
            at_peak: Live::at_peak(trace, program),
            at_end: Live::at_end(trace, program),
            flame: if trace.stacks.is_empty() { None } else { flame::svg(trace, program) },
            growth: Growth::of(trace, &holds, Steps::found(trace, &holds)),
            phases: sums(trace, program),
            verdict,
            out_of_memory: None,
            is_whole: trace.lacks.is_none(),
            possible: None,
            cards,
            context,
        }
    }

    /// Begins with the request that found no memory.
    pub fn set_out_of_memory(&mut self, found: OutOfMemory) {
        self.out_of_memory = Some(found);
    }

    /// The first sentence of the answer.
    pub(super) fn first(&self) -> String {
        let died = self.out_of_memory.as_ref().and_then(|found| found.lines().into_iter().next());
        died.or_else(|| self.verdict.first().cloned()).unwrap_or_default()
    }

    /// Shows what is possible beside the allocators.
    pub fn set_possible(&mut self, possible: Possible) {
        self.possible = Some(possible);
    }

    /// Adds an allocator, from what its replay gave and what it needs, where that was looked for.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn add(
        &mut self,
        (trace, program): (&Trace, &Program),
        choose: &Choose<'_>,
        outcome: Outcome,
        need: Option<Need>,
    ) -> Result<(), ReplayError> {
        let most = need.map_or(u64::MAX, |need| need.unlimited);
        let deciding = Deciding::of(program, choose, need, most)?;
        let points = timeline(trace, program, choose)?;
        let is_main = outcome.allocator == MILLPOND || outcome.allocator == self.ran;
        let moments = (is_main && !deciding.map.backing.is_empty())
            .then(|| Moments::of((trace, program), &self.owners, choose, &deciding))
            .transpose()?;
        let holes = Holes::of(trace, &deciding.map);
        self.allocators.push(Shown { outcome, need, deciding, holes, moments, points });
        Ok(())
    }
}

/// What was recorded.
fn facts(trace: &Trace, program: &Program) -> Vec<String> {
    let many = |number: usize, what: &str| {
        format!("{} {what}{}", thousands(number as u64), if number == 1 { "" } else { "s" })
    };
    let mut recorded = format!(
        "Recorded: {}, {}, {}, {}. Requested at most {}",
        many(program.blocks, "block"),
        many(program.steps.len(), "event"),
        many(program.streams, "stream"),
        time(trace.wall_us as f64),
        HumanBytes(program.peak_requested().0),
    );
    if let Some(reserved) = trace.recorded_reserved {
        recorded += &format!(", reserved by the recorded run {}", HumanBytes(reserved));
    }
    let lacks = trace.lacks.iter().map(|lacks| {
        let first: String = lacks.chars().take(1).flat_map(char::to_uppercase).collect();
        let rest: String = lacks.chars().skip(1).collect();
        format!("{first}{rest}. So the job may need more than what follows says, and no card is promised.")
    });
    let mut facts: Vec<String> = lacks.chain([recorded + "."]).collect();
    if !trace.settings.is_empty() {
        facts.push(format!("Recorded with PYTORCH_CUDA_ALLOC_CONF={}.", trace.settings));
    }
    facts.extend(trace.remarks.iter().map(|remark| format!("{remark}.")));
    facts
}
