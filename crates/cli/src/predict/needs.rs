//! What a job needs with each of several allocators, and which cards have that.

use millpond::Context;
use millpond_replay::choice::Choice;
use millpond_replay::cores::on_all_cores;
use millpond_replay::fit::{Card, Need};
use millpond_replay::replay::{Program, UNLIMITED, on_sim};
use millpond_replay::trace::Trace;
use serde::Serialize;

use crate::error::Result;

/// With one allocator. Sizes in bytes.
#[derive(Debug, Serialize)]
pub(super) struct Needs {
    pub(super) allocator: &'static str,
    /// `None` where no size suffices.
    pub(super) needs: Option<u64>,
    pub(super) reserved: u64,
    pub(super) cards: Vec<String>,
}

impl Needs {
    /// By replays of the trace. A card has to have `beside` bytes more.
    pub(super) fn with(
        allocators: &[&'static str],
        trace: &Trace,
        program: &Program,
        cards: &[Card],
        beside: u64,
    ) -> Result<Vec<Self>> {
        let found = on_all_cores(allocators, |&allocator| {
            let choose = |context: &Context| Choice::default().build(allocator, context);
            let unlimited = on_sim(trace, program, &choose, UNLIMITED)?;
            let needs = Need::of(program, &choose, &unlimited)?.map(|need| need.most());
            let fits = |card: &&Card| needs.is_some_and(|needs| card.fits(needs, beside));
            let cards = cards.iter().filter(fits).map(|card| card.name.clone()).collect();
            Ok(Self { allocator, needs, reserved: unlimited.peak_reserved, cards })
        });
        found.into_iter().collect()
    }
}
