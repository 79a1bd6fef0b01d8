//! What is said of a pool, as JSON. A reader skips figures that it does not know, and takes those that are missing for 0. So
//! programs and readers need not be of one version.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::core::{Core, recording};
use crate::device::{DeviceIdentity, DeviceName, DevicePtr, MemoryKind};
use crate::figures::stats::Stats;
use crate::policy::watching::{CELLS, MOST_FRAMES, MOST_HOLDERS};
use crate::record::LiveBlock;

/// Letters of a name.
pub(super) const LONGEST_NAME: usize = 128;

/// What a pool of another process holds and did. The module [`live`](crate::live) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SeenPool {
    /// Unlike any other pool's of its process.
    pub number: u64,
    /// The pool's name. For a [tag](crate::Pool::tagged) it has the tag behind a slash.
    pub name: String,
    /// The device, as `cuda:0` in its process.
    pub device: String,
    /// Which memory of the device it is.
    pub memory: MemoryKind,
    /// Which device of the machine it is; `None` where that cannot be told.
    pub identity: Option<DeviceIdentity>,
    /// What it holds and did.
    pub stats: Stats,
    /// The time that finding, mapping and giving back pages has taken.
    pub device_time: Duration,
}

/// What the live blocks of a pool are, and where they lie. [`SeenProcess::sizes`](crate::live::SeenProcess::sizes) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SeenSizes {
    /// Live blocks by size, the smallest first.
    pub rows: Vec<SizeRow>,
    /// The memory held, in the order of addresses, in at most 256 parts of equal length. Each says how much of it is in live
    /// blocks, from 0 (nothing) to 8 (all).
    pub map: Vec<u8>,
    /// Who holds them, those that hold most first, at most 20. Empty where the pool does not
    /// [track](crate::PoolBuilder::track) its blocks.
    pub holders: Vec<SeenHolder>,
}

/// What one call stack holds under one tag. [`SeenProcess::sizes`](crate::live::SeenProcess::sizes) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SeenHolder {
    /// The [tags](crate::record::tag), such as `step/forward`; empty without any.
    pub tag: String,
    /// Lines of the call stack, the innermost first, at most 8. Empty where it is not known.
    pub stack: Vec<String>,
    /// Live bytes. Estimated where blocks are sampled, as is their number.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// The time since the first of them was allocated.
    pub oldest: Duration,
}

/// Live blocks of like sizes. [`SeenProcess::sizes`](crate::live::SeenProcess::sizes) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SizeRow {
    /// Bytes that each has at least, a power of two. It has less than twice as many.
    pub from: u64,
    /// How many there are.
    pub blocks: u64,
    /// Bytes that were requested for them in all.
    pub bytes: u64,
}

// ---- writing ---------------------------------------------------------------------------------------

/// Whether a terminal shows something else than this character: what controls it, or the order and the joining of others.
/// (Unicode's categories Cc, Zl and Zp, and those of Cf that are no letters' parts.)
pub fn is_unshown(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// One line whatever the name is, and not too long.
pub(super) fn tamed(name: &str) -> String {
    let shown = |c: char| if is_unshown(c) { char::REPLACEMENT_CHARACTER } else { c };
    name.trim().chars().map(shown).take(LONGEST_NAME).collect()
}

impl SeenPool {
    pub(super) fn of(core: &Core) -> Self {
        let about = core.device.properties();
        let is_own = about.memory == MemoryKind::Device;
        Self {
            number: core.number,
            name: tamed(&core.name),
            device: DeviceName::of(about).to_string(),
            memory: about.memory,
            identity: if is_own { core.device.identity().ok() } else { None },
            stats: core.stats(),
            device_time: Duration::from_nanos(core.counters.device_nanoseconds.get()),
        }
    }
}

impl SeenSizes {
    /// What the live blocks of a pool are. Holds its lock for a time that grows with their number.
    pub(super) fn of(core: &Core) -> Self {
        let (live, backed) = (core.live(), core.backed());
        let tracked = recording::live_blocks(core).unwrap_or_default();
        let mut rows = [(); u64::BITS as usize].map(|()| SizeRow::default());
        for (_, bytes) in &live {
            let class = bytes.max(&1).ilog2();
            let row = &mut rows[class as usize];
            *row = SizeRow { from: 1 << class, blocks: row.blocks + 1, bytes: row.bytes + bytes };
        }
        let mut ranges: Vec<_> = backed.iter().map(|(start, bytes, _)| (start.raw(), *bytes)).collect();
        ranges.sort_unstable();
        Self {
            rows: rows.into_iter().filter(|row| row.blocks > 0).collect(),
            map: cells(&ranges, &live),
            holders: holders_of(&tracked),
        }
    }
}

fn holders_of(blocks: &[LiveBlock]) -> Vec<SeenHolder> {
    let seen = |holder: crate::record::Holder| SeenHolder {
        tag: tamed(holder.tag.as_deref().unwrap_or_default()),
        stack: holder.frames().take(MOST_FRAMES).map(|frame| tamed(&frame.to_string())).collect(),
        bytes: holder.bytes,
        blocks: holder.blocks,
        oldest: holder.oldest,
    };
    crate::record::holders(blocks).into_iter().take(MOST_HOLDERS).map(seen).collect()
}

/// How much of each part of the ranges, which are in order, is in live blocks: in eighths.
fn cells(ranges: &[(u64, u64)], live: &[(DevicePtr, u64)]) -> Vec<u8> {
    let total: u64 = ranges.iter().map(|(_, bytes)| bytes).sum();
    let cell = total.div_ceil(CELLS as u64).max(1);
    let mut used = vec![0_u64; total.div_ceil(cell) as usize];
    // Where each range begins, if all lay side by side.
    let begins: Vec<u64> =
        ranges.iter().scan(0, |at, (_, bytes)| Some(std::mem::replace(at, *at + bytes))).collect();
    for (ptr, bytes) in live {
        let after = ranges.partition_point(|(start, _)| *start <= ptr.raw());
        let Some((start, length)) = after.checked_sub(1).map(|at| ranges[at]) else { continue };
        // A block that came or went between the two looks may lie in no range.
        let inside = ptr.raw() - start;
        let mut left = (*bytes).min(length.saturating_sub(inside));
        let mut at = begins[after - 1] + inside;
        while left > 0 {
            let part = left.min(cell - at % cell);
            used[(at / cell) as usize] += part;
            (at, left) = (at + part, left - part);
        }
    }
    // Rounded up: what is not empty does not look so.
    used.into_iter().map(|bytes| (bytes.min(cell) * 8).div_ceil(cell) as u8).collect()
}

// ---- reading ---------------------------------------------------------------------------------------

/// What a text says; the default where it says nothing of the kind. Whatever it is, this ends, and what it gives is bounded by
/// its length.
pub(super) fn read<T: DeserializeOwned + Default>(text: &str) -> T {
    T::deserialize(parsed(text)).unwrap_or_default()
}

/// The text's value, bounded; null where it has none.
pub(super) fn parsed(text: &str) -> Value {
    let mut value = serde_json::from_str(text).unwrap_or_default();
    bound(&mut value);
    value
}

/// Leaves figures and names that nobody stumbles over.
fn bound(value: &mut Value) {
    match value {
        // Sums of many do not overflow, and a `f64` holds each exactly.
        Value::Number(number) => *number = number.as_u64().unwrap_or(0).min(1 << f64::MANTISSA_DIGITS).into(),
        Value::String(text) => *text = tamed(text),
        Value::Array(all) => all.iter_mut().for_each(bound),
        Value::Object(all) => all.values_mut().for_each(bound),
        Value::Null | Value::Bool(_) => {}
    }
}

/// The pools that a text tells of, but for those that it tells in another way.
pub(super) fn read_pools(text: &str) -> Vec<SeenPool> {
    let Value::Array(pools) = parsed(text) else { return Vec::new() };
    pools.into_iter().filter_map(|pool| SeenPool::deserialize(pool).ok()).collect()
}

pub(super) fn read_sizes(text: &str) -> SeenSizes {
    let mut sizes: SeenSizes = read(text);
    sizes.rows.truncate(u64::BITS as usize);
    sizes.map.truncate(CELLS);
    sizes.map.iter_mut().for_each(|eighths| *eighths = (*eighths).min(8));
    sizes.holders.truncate(MOST_HOLDERS);
    sizes.holders.iter_mut().for_each(|holder| holder.stack.truncate(MOST_FRAMES));
    sizes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::{Bench, Freeing, MIB};

    const MOST: u64 = 1 << f64::MANTISSA_DIGITS;

    #[test]
    fn what_is_written_of_a_pool_is_what_is_read() {
        let bench = Bench::new(|pool| pool.name("a\tname\nof two lines \u{1b}[2J\u{202e}\u{2066}\u{200b}"));
        let blocks = [5 * MIB, 1000].map(|bytes| bench.pool.alloc(bytes, &bench.stream).unwrap());
        bench.pool.free_block(blocks[1], &bench.stream).unwrap();
        let text = serde_json::to_string(&[SeenPool::of(bench.pool.inner())]).unwrap();
        let [seen] = &read_pools(&text)[..] else { panic!("{text}") };
        assert_eq!(seen.name, "a\u{fffd}name\u{fffd}of two lines \u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!((seen.device.as_str(), seen.memory), ("sim", MemoryKind::Device));
        assert_eq!((seen.stats, seen.number), (bench.pool.stats(), bench.pool.inner().number));
        assert_eq!(seen.identity, bench.pool.device().identity().ok());
        assert!(seen.device_time > Duration::ZERO, "{text}");
    }

    fn told_sizes(bench: &Bench) -> SeenSizes {
        read_sizes(&serde_json::to_string(&SeenSizes::of(bench.pool.inner())).unwrap())
    }

    #[test]
    fn live_blocks_are_told_by_size_and_place() {
        let bench = Bench::new(|pool| pool);
        let blocks =
            [8 * MIB, 8 * MIB, 700, 600].map(|bytes| bench.pool.alloc(bytes, &bench.stream).unwrap());
        bench.pool.free_block(blocks[0], &bench.stream).unwrap();
        let sizes = told_sizes(&bench);
        let row = |from, blocks, bytes| SizeRow { from, blocks, bytes };
        assert_eq!(sizes.rows, [row(512, 2, 1300), row(8 * MIB, 1, 8 * MIB)]);
        let (full, empty) = (|eighths: &&u8| **eighths == 8, |eighths: &&u8| **eighths == 0);
        let held = bench.pool.reserved().current;
        let part = |bytes: u64| (bytes * sizes.map.len() as u64 / held) as usize;
        let whole = sizes.map.iter().filter(full).count();
        assert!(whole.abs_diff(part(8 * MIB)) <= 2, "{sizes:?}");
        assert!(sizes.map.iter().filter(empty).count() >= part(8 * MIB) - 2, "{sizes:?}");
    }

    #[test]
    fn tracked_blocks_are_told_by_holder() {
        use crate::record::{Tracking, tag};
        let bench = Bench::new(|pool| pool.track(Tracking::all()));
        let _step = tag("step");
        let blocks: Vec<_> = [3 * MIB, MIB]
            .into_iter()
            .map(|bytes| {
                let _part = tag(if bytes == MIB { "short" } else { "a\u{1b}long" });
                bench.pool.alloc(bytes, &bench.stream).unwrap()
            })
            .collect();
        let holders = told_sizes(&bench).holders;
        let seen: Vec<_> = holders.iter().map(|h| (h.tag.as_str(), h.bytes, h.blocks)).collect();
        assert_eq!(seen, [("step/a\u{fffd}long", 3 * MIB, 1), ("step/short", MIB, 1)]);
        blocks.into_iter().for_each(|block| bench.pool.free_block(block, &bench.stream).unwrap());
        assert_eq!(told_sizes(&bench).holders, []);
    }

    #[test]
    fn a_process_that_lies_is_bounded() {
        let huge = u64::MAX;
        let text = format!(
            r#"[{{"name": "x", "number": {huge}, "stats": {{"reserved": {{"current": {huge}, "high": -1}},
                "calls": {{"map": {huge}, "free": {huge}}}, "news": [1]}}}}, {{"number": "one"}}]"#
        );
        let [pool] = &read_pools(&text)[..] else { panic!("{text}") };
        assert_eq!((pool.number, pool.stats.reserved.current, pool.stats.reserved.high), (MOST, MOST, 0));
        assert_eq!(pool.stats.calls.all(), 2 * MOST);
        let long = format!(r#"[{{"name": "{}"}}]"#, "\\u0007".repeat(10_000));
        assert_eq!(read_pools(&long)[0].name, "\u{fffd}".repeat(LONGEST_NAME));
        let row = SizeRow { from: huge, blocks: 1, bytes: 1 };
        let holder =
            SeenHolder { stack: vec!["\u{7}".to_owned(); 100], bytes: huge, ..SeenHolder::default() };
        let sizes = SeenSizes { rows: vec![row; 1000], map: vec![255; 1000], holders: vec![holder; 100] };
        let sizes = read_sizes(&serde_json::to_string(&sizes).unwrap());
        assert_eq!((sizes.map, sizes.rows.len(), sizes.rows[0].from), (vec![8; CELLS], 64, MOST));
        let holders = sizes.holders;
        assert_eq!((holders.len(), holders[19].bytes), (MOST_HOLDERS, MOST));
        assert_eq!(holders[19].stack, ["\u{fffd}"; MOST_FRAMES]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in r#"[\[{]{0,3}("(number|name|stats|map|rows|holders|memory|identity)": ?)?[ \PC\n]{0,200}"#) {
            for pool in read_pools(&text) {
                prop_assert!(!pool.name.chars().any(char::is_control));
                _ = pool.stats.calls.all();
            }
            read_sizes(&text);
        }
    }
}
