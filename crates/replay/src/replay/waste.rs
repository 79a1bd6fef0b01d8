//! What is reserved but not requested when most is reserved, and why.

use std::collections::BTreeMap;

use millpond::device::DevicePtr;
use millpond_baselines::{Allocator, Usage};
use serde::Serialize;

use super::watch::Backing;
use super::{Choose, Program, ReplayError, Stage, Step, UNLIMITED};

/// Where the bytes are that nobody asked for, once one request is served. All in bytes; reserved is the sum of the others, but for
/// `asked`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Waste {
    /// The step after which that is.
    pub event: usize,
    /// Asked for by that step.
    pub asked: u64,
    /// Held from the device.
    pub reserved: u64,
    /// Asked for, in live blocks.
    pub requested: u64,
    /// Between the ends of blocks and the next multiple of 512.
    pub rounding: u64,
    /// Free, beside live blocks on the same page or segment.
    pub holes: u64,
    /// Free, on pages or segments without a live block, or in the driver's own pool.
    pub caches: u64,
    /// Free, last used on another stream than the one that made the allocator grow: memory that it could have
    /// used, had it shared it between streams.
    pub other_streams: u64,
}

impl Waste {
    /// After a step, by what the allocator says, what is live, and the bytes of holes; and those of holes and of whole free pages
    /// that were last used elsewhere.
    fn of(
        (event, asked): (usize, u64),
        usage: Usage,
        live: &BTreeMap<u64, Span>,
        (holes, (holes_elsewhere, caches_elsewhere)): (u64, (u64, u64)),
    ) -> Self {
        let rounding: u64 = live.values().map(|span| span.bytes.next_multiple_of(UNIT) - span.bytes).sum();
        let (reserved, requested) = (usage.reserved.current, usage.requested.current);
        let free = reserved.saturating_sub(requested + rounding);
        let holes = holes.min(free);
        Self {
            event,
            asked,
            reserved,
            requested,
            rounding: rounding.min(reserved.saturating_sub(requested)),
            holes: holes.saturating_sub(holes_elsewhere),
            // Also what lies behind no address: parked pages, and the driver's own pool.
            caches: (free - holes).saturating_sub(caches_elsewhere),
            other_streams: holes_elsewhere.min(holes) + caches_elsewhere.min(free - holes),
        }
    }

    /// Bytes reserved and not requested.
    pub fn wasted(&self) -> u64 {
        self.reserved.saturating_sub(self.requested)
    }
}

/// What blocks are rounded up to by every allocator here, at least.
const UNIT: u64 = 512;

/// What lies where at one moment: address and bytes of each, by rising address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Map {
    /// Pages and segments.
    pub backing: Vec<(u64, u64)>,
    /// Live blocks.
    pub live: Vec<(u64, u64)>,
    /// The number of each of them in the program.
    pub blocks: Vec<u32>,
}

impl Map {
    fn of(backing: &[Backing], live: &BTreeMap<u64, Span>) -> Self {
        Self {
            backing: backing.iter().map(|backing| (backing.address, backing.bytes)).collect(),
            live: live.values().map(|span| (span.address, span.bytes)).collect(),
            blocks: live.values().map(|span| span.block).collect(),
        }
    }
}

/// Replays a program on a simulated device up to the moment at which most is reserved, and accounts for it. `most` is what
/// is reserved at most, in bytes, as an [`Outcome`](super::Outcome) without a limit says; `u64::MAX` where that is not known,
/// which takes two replays more. The driver's own pool does not show its memory.
///
/// # Errors
/// [`ReplayError`].
pub fn map_at_peak(program: &Program, choose: &Choose<'_>, most: u64) -> Result<(Waste, Map), ReplayError> {
    if let Some(found) = map_where(program, choose, most)? {
        return Ok(found);
    }
    // It is reached within a step only.
    let most = most_after_a_step(program, choose)?;
    Ok(map_where(program, choose, most)?.unwrap_or_default())
}

/// The same at the first step after which so much is reserved; `None` where there is no such step.
fn map_where(program: &Program, choose: &Choose<'_>, most: u64) -> Result<Option<(Waste, Map)>, ReplayError> {
    map_until(program, choose, UNLIMITED, |_, allocator| allocator.usage().reserved.current >= most)
}

/// Replays a program on a simulated device of `capacity` bytes up to the request of this step, and accounts for what is reserved once
/// it is served. `None` where it is not served there.
///
/// # Errors
/// [`ReplayError`].
pub fn map_at_step(
    program: &Program,
    choose: &Choose<'_>,
    (capacity, step): (u64, usize),
) -> Result<Option<(Waste, Map)>, ReplayError> {
    map_until(program, choose, capacity, |at, _| at == step)
}

/// The same at the first request that is the `last`.
fn map_until(
    program: &Program,
    choose: &Choose<'_>,
    capacity: u64,
    mut last: impl FnMut(usize, &dyn Allocator) -> bool,
) -> Result<Option<(Waste, Map)>, ReplayError> {
    let stage = Stage::watched_sim(program, capacity)?;
    let allocator = choose(stage.context())?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let (mut freed, mut is_reached) = (Vec::new(), false);
    let played = stage.play_until(&*allocator, &program.steps, &mut blocks, |at, step, ptr| {
        if !step.alloc {
            freed.push(Span::of(step, ptr));
            return false;
        }
        is_reached = last(at, &*allocator);
        is_reached
    })?;
    let steps = &program.steps[..played.events];
    let found = steps.last().filter(|_| is_reached).map(|grown| {
        let (live, backing) = (live(steps, &blocks), stage.backing());
        let mut gaps = Gaps::default();
        backing.iter().for_each(|backing| gaps.look(backing, &live));
        let elsewhere = gaps.last_used_elsewhere(&freed, grown.stream);
        let waste =
            Waste::of((steps.len() - 1, grown.size), allocator.usage(), &live, (gaps.holes(), elsewhere));
        (waste, Map::of(&backing, &live))
    });
    stage.clear(&*allocator, program, &mut blocks)?;
    Ok(found)
}

/// Replays a program on a simulated device of `capacity` bytes, and shows `each` what lies where after these steps, which rise: with
/// the number of the step, and bytes reserved.
///
/// # Errors
/// [`ReplayError`].
pub(crate) fn maps_at(
    program: &Program,
    choose: &Choose<'_>,
    (capacity, events): (u64, &[usize]),
    mut each: impl FnMut(usize, &Map, u64),
) -> Result<(), ReplayError> {
    let stage = Stage::watched_sim(program, capacity)?;
    let allocator = choose(stage.context())?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let mut played = 0;
    for &event in events {
        let to = program.steps.len().min(event + 1);
        stage.play(&*allocator, &program.steps[played..to], &mut blocks)?;
        played = to;
        let live = live(&program.steps[..to], &blocks);
        each(event, &Map::of(&stage.backing(), &live), allocator.usage().reserved.current);
    }
    stage.clear(&*allocator, program, &mut blocks)
}

/// The most that is reserved after a step, in bytes.
fn most_after_a_step(program: &Program, choose: &Choose<'_>) -> Result<u64, ReplayError> {
    let stage = Stage::sim(program, UNLIMITED)?;
    let allocator = choose(stage.context())?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let mut most = 0;
    stage.play_watched(&*allocator, &program.steps, &mut blocks, |_, step, _| {
        if step.alloc {
            most = allocator.usage().reserved.current.max(most);
        }
    })?;
    stage.clear(&*allocator, program, &mut blocks)?;
    Ok(most)
}

/// A stretch of addresses that a block has or had.
#[derive(Debug, Clone, Copy)]
struct Span {
    address: u64,
    bytes: u64,
    stream: u16,
    block: u32,
}

impl Span {
    fn of(step: &Step, ptr: DevicePtr) -> Self {
        Self { address: ptr.raw(), bytes: step.size, stream: step.stream, block: step.block }
    }
}

/// The live blocks, by address.
fn live(steps: &[Step], blocks: &[DevicePtr]) -> BTreeMap<u64, Span> {
    let allocated = steps.iter().filter(|step| step.alloc);
    let spans = allocated.filter_map(|step| {
        let span = Span::of(step, blocks[step.block as usize]);
        (span.address != 0).then_some((span.address, span))
    });
    spans.collect()
}

/// Free stretches: by address, their bytes, and whether their page or segment has a live block.
#[derive(Debug, Default)]
struct Gaps(BTreeMap<u64, (u64, bool)>);

impl Gaps {
    /// Finds the gaps between the blocks on one page or segment.
    fn look(&mut self, backing: &Backing, live: &BTreeMap<u64, Span>) {
        let (start, end) = (backing.address, backing.address + backing.bytes);
        let before = live.range(..start).next_back().into_iter();
        let mut at = start;
        let mut found = Vec::new();
        let mut used = false;
        for (_, span) in before.chain(live.range(start..end)) {
            let span_end = (span.address + span.bytes).next_multiple_of(UNIT);
            if span_end <= start {
                continue;
            }
            used = true;
            if span.address > at {
                found.push((at, span.address - at));
            }
            at = at.max(span_end);
        }
        if at < end {
            found.push((at, end - at));
        }
        self.0.extend(found.into_iter().map(|(at, bytes)| (at, (bytes, used))));
    }

    fn holes(&self) -> u64 {
        self.0.values().filter(|(_, used)| *used).map(|(bytes, _)| bytes).sum()
    }

    /// Bytes of holes and of whole free pages whose start was last used on another stream than this.
    fn last_used_elsewhere(&self, freed: &[Span], stream: u16) -> (u64, u64) {
        let mut open = self.0.clone();
        let (mut holes, mut caches) = (0, 0);
        for span in freed.iter().rev() {
            let met: Vec<_> =
                open.range(span.address..span.address + span.bytes.max(1)).map(|(at, _)| *at).collect();
            for at in met {
                let Some((bytes, used)) = open.remove(&at) else { continue };
                match (span.stream != stream, used) {
                    (true, true) => holes += bytes,
                    (true, false) => caches += bytes,
                    (false, _) => {}
                }
            }
        }
        (holes, caches)
    }
}
