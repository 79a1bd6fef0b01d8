//! A job as its program ran it, whose tags were evicted and restored: what was away is freed, and allocated again as it comes back.
//!
//! Only Millpond can do that. Other allocators hold all the time what the program left live.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::trace::{MovedPool, Op, OpKind, RecordedMove, Trace};

/// A job, and what travelled in it.
#[derive(Debug, Clone)]
pub struct AsItRan {
    /// The job, without what was away. Blocks that came back have numbers of their own.
    pub trace: Trace,
    /// What left and came back, by tag.
    pub tags: Vec<MovedTag>,
}

/// What left of a tag, and came back. Sizes in bytes as requested.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MovedTag {
    /// The tag.
    pub tag: String,
    /// How often it left.
    pub left: u64,
    /// Bytes that did, in all.
    pub bytes_left: u64,
    /// How often it came back.
    pub came_back: u64,
    /// Bytes that did, in all.
    pub bytes_back: u64,
    /// Microseconds for which it was away, in all.
    pub away_us: u64,
    /// When it left, while it is away.
    #[serde(skip)]
    since: Option<u64>,
}

impl AsItRan {
    /// `None` where nothing of the job was evicted.
    pub fn of(trace: &Trace) -> Option<Self> {
        if trace.moves.all.is_empty() {
            return None;
        }
        let mut played = Played::new(trace);
        let (mut moves, mut at) =
            (trace.moves.all.iter().peekable(), Vec::with_capacity(trace.ops.len() + 1));
        for (number, op) in trace.ops.iter().enumerate() {
            while let Some(one) = moves.next_if(|one| one.before_op <= number) {
                played.go_through(one);
            }
            at.push(played.trace.ops.len());
            played.op(op);
        }
        moves.for_each(|one| played.go_through(one));
        at.push(played.trace.ops.len());
        let Played { mut trace, mut tags, .. } = played;
        trace.segments.ops.iter_mut().for_each(|op| op.before_op = at[op.before_op]);
        trace.recorded_ooms.iter_mut().for_each(|oom| oom.before_op = at[oom.before_op]);
        trace.moves.all.iter_mut().for_each(|one| one.before_op = at[one.before_op]);
        // What is away at the end.
        for tag in &mut tags {
            tag.away_us += tag.since.take().map_or(0, |since| trace.wall_us.saturating_sub(since));
        }
        Some(Self { trace, tags })
    }
}

/// The tag of a pool, whose name is that of the whole pool and the tag.
pub fn tag_of(pool: &MovedPool) -> &str {
    pool.name.rsplit_once('/').map_or(&pool.name, |(_, tag)| tag)
}

/// A trace that is played.
struct Played<'a> {
    of: &'a Trace,
    trace: Trace,
    tags: Vec<MovedTag>,
    /// By its number: the block that stands for it, until it is reusable. `None` while it is away.
    stands: FxHashMap<u32, Option<u32>>,
    /// The pools of blocks that ever left, and of each pool those that are not reusable yet.
    pool_of: FxHashMap<u32, usize>,
    members: Vec<BTreeSet<u32>>,
    let_go: FxHashSet<u32>,
}

impl<'a> Played<'a> {
    fn new(of: &'a Trace) -> Self {
        let tag = |pool| MovedTag { tag: tag_of(pool).to_owned(), ..MovedTag::default() };
        let pools = of.moves.pools.iter().enumerate();
        let pool_of = pools.flat_map(|(at, pool)| pool.blocks.iter().map(move |block| (*block, at)));
        let mut played = Self {
            of,
            trace: Trace { ops: Vec::with_capacity(of.ops.len()), ..of.clone() },
            tags: of.moves.pools.iter().map(tag).collect(),
            stands: FxHashMap::default(),
            pool_of: pool_of.collect(),
            members: vec![BTreeSet::new(); of.moves.pools.len()],
            let_go: FxHashSet::default(),
        };
        of.live_before.iter().for_each(|block| played.begin(*block));
        played
    }

    fn begin(&mut self, block: u32) {
        self.stands.insert(block, Some(block));
        if let Some(pool) = self.pool_of.get(&block) {
            self.members[*pool].insert(block);
        }
    }

    fn end(&mut self, block: u32) {
        self.stands.remove(&block);
        self.let_go.remove(&block);
        if let Some(pool) = self.pool_of.get(&block) {
            self.members[*pool].remove(&block);
        }
    }

    fn op(&mut self, op: &Op) {
        if op.kind == OpKind::Alloc {
            self.begin(op.block);
            self.trace.ops.push(*op);
            return;
        }
        let Some(stands) = self.stands.get(&op.block) else { return };
        self.trace.ops.extend(stands.map(|block| Op { block, ..*op }));
        if stands.is_none() || op.kind == OpKind::FreeCompleted {
            // Freed while it is away, it costs nothing.
            self.end(op.block);
        } else {
            self.let_go.insert(op.block);
        }
    }

    fn go_through(&mut self, one: &RecordedMove) {
        let mut bytes = 0;
        for number in self.members[one.pool].iter().filter(|block| !self.let_go.contains(block)) {
            let Some(stands) = self.stands.get_mut(number) else { continue };
            let block = self.of.blocks[*number as usize];
            let op = |block, stream, kind| Op { time_us: one.time_us, block, stream, kind };
            match (one.leaves, *stands) {
                (true, Some(there)) => {
                    *stands = None;
                    let kinds = [OpKind::FreeRequested, OpKind::FreeCompleted];
                    self.trace.ops.extend(kinds.map(|kind| op(there, block.stream, kind)));
                }
                (false, None) => {
                    let new = self.trace.blocks.len() as u32;
                    *stands = Some(new);
                    self.trace.blocks.push(block);
                    self.trace.ops.push(op(new, block.stream, OpKind::Alloc));
                }
                _ => continue,
            }
            bytes += block.size;
        }
        let tag = &mut self.tags[one.pool];
        if one.leaves {
            (tag.left, tag.bytes_left, tag.since) = (tag.left + 1, tag.bytes_left + bytes, Some(one.time_us));
        } else if let Some(since) = tag.since.take() {
            (tag.came_back, tag.bytes_back) = (tag.came_back + 1, tag.bytes_back + bytes);
            tag.away_us += one.time_us.saturating_sub(since);
        }
    }
}
