//! What is said of a pool, as lines of text: a word, then figures or a name. A reader skips words that it does not know, and
//! takes figures that are missing for 0. So programs and readers need not be of one version.

use std::fmt::Write;
use std::time::Duration;

use crate::core::Core;
use crate::device::{DeviceIdentity, DeviceName, DevicePtr, MemoryKind};
use crate::policy::watching::{CELLS, MOST_FRAMES, MOST_HOLDERS};
use crate::stats::{DeviceCalls, Level, Stats};

/// What a figure may be at most: whatever a process says, sums of many do not overflow, and a `f64` holds each exactly.
const MOST: u64 = 1 << f64::MANTISSA_DIGITS;

/// Letters of a name.
pub(super) const LONGEST_NAME: usize = 128;

/// What a pool of another process holds and did. The module [`live`](crate::live) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SizeRow {
    /// Bytes that each has at least, a power of two. It has less than twice as many.
    pub from: u64,
    /// How many there are.
    pub blocks: u64,
    /// Bytes that were requested for them in all.
    pub bytes: u64,
}

// ---- figures of each kind -------------------------------------------------------------------------

/// A figure, or several that go together, as numbers.
trait Figures {
    fn numbers(&mut self) -> impl Iterator<Item = &mut u64>;
}

impl Figures for u64 {
    fn numbers(&mut self) -> impl Iterator<Item = &mut u64> {
        std::iter::once(self)
    }
}

impl Figures for Level {
    fn numbers(&mut self) -> impl Iterator<Item = &mut u64> {
        [&mut self.current, &mut self.high].into_iter()
    }
}

macro_rules! define_calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        impl Figures for DeviceCalls {
            fn numbers(&mut self) -> impl Iterator<Item = &mut u64> {
                [$(&mut self.$name),*].into_iter()
            }
        }
    };
}

crate::list_of_device_calls!(define_calls);

macro_rules! define_lines {
    (
        fields { $($(#[$doc:meta])* $name:ident: $type:ident,)* }
        methods { $($methods:tt)* }
        later { $($(#[$later_doc:meta])* $later:ident: $later_type:ident,)* }
    ) => {
        /// Shows `each` the name of each figure, and its numbers.
        fn for_each_figure(stats: &mut Stats, mut each: impl FnMut(&str, &mut dyn Iterator<Item = &mut u64>)) {
            $(each(stringify!($name), &mut stats.$name.numbers());)*
            $(each(stringify!($later), &mut stats.$later.numbers());)*
        }
    };
}

crate::list_of_stats!(define_lines);

// ---- writing ---------------------------------------------------------------------------------------

fn write_line<'a>(out: &mut String, word: &str, numbers: impl IntoIterator<Item = &'a mut u64>) {
    out.push_str(word);
    // Writing to a string does not fail.
    numbers.into_iter().for_each(|number| write!(out, " {number}").unwrap_or_default());
    out.push('\n');
}

/// One line whatever the name is, and not too long.
pub(super) fn tamed(name: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    name.trim().chars().map(shown).take(LONGEST_NAME).collect()
}

fn write_name(out: &mut String, word: &str, name: &str) {
    writeln!(out, "{word} {}", tamed(name)).unwrap_or_default();
}

/// Adds the lines of a pool.
pub(super) fn write_pool(core: &Core, out: &mut String) {
    let about = core.device().properties();
    write_line(out, "pool", [&mut core.number.clone()]);
    write_name(out, "name", &core.name);
    write_name(out, "device", &DeviceName::of(about).to_string());
    write_name(out, "memory", &about.memory.to_string());
    if about.memory == MemoryKind::Device
        && let Ok(identity) = core.device().identity()
    {
        write_name(out, "identity", &format!("{:032x}", u128::from_be_bytes(identity.0)));
    }
    for_each_figure(&mut core.stats(), |word, numbers| write_line(out, word, numbers));
    write_line(out, "device_nanoseconds", [&mut core.counters.device_nanoseconds.get()]);
}

/// The lines for the live blocks of a pool. Holds its lock for a time that grows with their number.
pub(super) fn write_sizes(core: &Core, out: &mut String) {
    let (live, backed) = (core.live(), core.backed());
    let mut rows = [(0, 0); u64::BITS as usize];
    for (_, bytes) in &live {
        let (blocks, sum) = &mut rows[bytes.max(&1).ilog2() as usize];
        *blocks += 1;
        *sum += bytes;
    }
    for (class, (blocks, bytes)) in rows.iter_mut().enumerate().filter(|(_, (blocks, _))| *blocks > 0) {
        write_line(out, "size", [&mut (1 << class), blocks, bytes]);
    }
    let mut ranges: Vec<_> = backed.iter().map(|(start, bytes, _)| (start.raw(), *bytes)).collect();
    ranges.sort_unstable();
    let map: String = cells(&ranges, &live).into_iter().map(|eighths| char::from(b'0' + eighths)).collect();
    writeln!(out, "map {map}").unwrap_or_default();
    #[cfg(feature = "record")]
    write_holders(core, out);
}

/// A line for each holder of the blocks, with those of its tag and its call stack.
#[cfg(feature = "record")]
fn write_holders(core: &Core, out: &mut String) {
    let blocks = crate::core::recorded::live_blocks(core).unwrap_or_default();
    for mut holder in crate::record::holders(&blocks).into_iter().take(MOST_HOLDERS) {
        let mut oldest = holder.oldest.as_millis() as u64;
        write_line(out, "holder", [&mut holder.bytes, &mut holder.blocks, &mut oldest]);
        write_name(out, "tag", holder.tag.as_deref().unwrap_or_default());
        holder.frames().take(MOST_FRAMES).for_each(|frame| write_name(out, "frame", &frame.to_string()));
    }
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

/// The first numbers of a text; 0 for those that are missing.
fn numbers_of<const N: usize>(text: &str) -> [u64; N] {
    let mut numbers = text.split(' ').map(|word| word.parse().unwrap_or(0_u64).min(MOST));
    [(); N].map(|()| numbers.next().unwrap_or(0))
}

fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().map(|line| line.split_once(' ').unwrap_or((line, "")))
}

/// The pools that the lines tell of. Whatever they are, this ends, and what it gives is bounded by their length.
pub(super) fn read_pools(text: &str) -> Vec<SeenPool> {
    let mut pools: Vec<SeenPool> = Vec::new();
    for (word, rest) in words(text) {
        if word == "pool" {
            let [number] = numbers_of(rest);
            pools.push(SeenPool { number, ..SeenPool::default() });
            continue;
        }
        let Some(pool) = pools.last_mut() else { continue };
        match word {
            "name" => pool.name = tamed(rest),
            "device" => pool.device = tamed(rest),
            "memory" => {
                let kinds = [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Managed];
                pool.memory = kinds.into_iter().find(|kind| kind.to_string() == rest).unwrap_or_default();
            }
            "identity" => {
                let number = u128::from_str_radix(rest, 16).ok();
                pool.identity = number.map(|number| DeviceIdentity(number.to_be_bytes()));
            }
            "device_nanoseconds" => pool.device_time = Duration::from_nanos(numbers_of::<1>(rest)[0]),
            _ => for_each_figure(&mut pool.stats, |name, numbers| {
                if name == word {
                    numbers.zip(numbers_of::<16>(rest)).for_each(|(figure, number)| *figure = number);
                }
            }),
        }
    }
    pools
}

pub(super) fn read_sizes(text: &str) -> SeenSizes {
    let mut sizes = SeenSizes::default();
    for (word, rest) in words(text) {
        match word {
            "size" => {
                let [from, blocks, bytes] = numbers_of(rest);
                sizes.rows.push(SizeRow { from, blocks, bytes });
            }
            "map" => {
                let eighths = rest.bytes().map(|digit| digit.saturating_sub(b'0').min(8));
                sizes.map = eighths.take(CELLS).collect();
            }
            "holder" => {
                let [bytes, blocks, oldest] = numbers_of(rest);
                let oldest = Duration::from_millis(oldest);
                sizes.holders.push(SeenHolder { bytes, blocks, oldest, ..SeenHolder::default() });
            }
            // Of the last holder.
            "tag" => sizes.holders.last_mut().into_iter().for_each(|last| last.tag = tamed(rest)),
            "frame" => {
                let last = sizes.holders.last_mut().filter(|last| last.stack.len() < MOST_FRAMES);
                last.into_iter().for_each(|last| last.stack.push(tamed(rest)));
            }
            _ => {}
        }
    }
    sizes.rows.truncate(u64::BITS as usize);
    sizes.holders.truncate(MOST_HOLDERS);
    sizes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::{Bench, Freeing, MIB};

    #[test]
    fn what_is_written_of_a_pool_is_what_is_read() {
        let bench = Bench::new(|pool| pool.name("a\tname\nof two lines \u{1b}[2J"));
        let blocks = [5 * MIB, 1000].map(|bytes| bench.pool.alloc(bytes, &bench.stream).unwrap());
        bench.pool.free_block(blocks[1], &bench.stream).unwrap();
        let mut text = String::new();
        write_pool(bench.pool.inner(), &mut text);
        let [seen] = &read_pools(&text)[..] else { panic!("{text}") };
        assert_eq!(seen.name, "a\u{fffd}name\u{fffd}of two lines \u{fffd}[2J");
        assert_eq!((seen.device.as_str(), seen.memory), ("sim", MemoryKind::Device));
        assert_eq!((seen.stats, seen.number), (bench.pool.stats(), bench.pool.inner().number));
        assert_eq!(seen.identity, bench.pool.device().identity().ok());
        assert!(seen.device_time > Duration::ZERO, "{text}");
    }

    #[test]
    fn live_blocks_are_told_by_size_and_place() {
        let bench = Bench::new(|pool| pool);
        let blocks =
            [8 * MIB, 8 * MIB, 700, 600].map(|bytes| bench.pool.alloc(bytes, &bench.stream).unwrap());
        bench.pool.free_block(blocks[0], &bench.stream).unwrap();
        let mut text = String::new();
        write_sizes(bench.pool.inner(), &mut text);
        let sizes = read_sizes(&text);
        let row = |from, blocks, bytes| SizeRow { from, blocks, bytes };
        assert_eq!(sizes.rows, [row(512, 2, 1300), row(8 * MIB, 1, 8 * MIB)]);
        let (full, empty) = (|eighths: &&u8| **eighths == 8, |eighths: &&u8| **eighths == 0);
        let held = bench.pool.reserved().current;
        let part = |bytes: u64| (bytes * sizes.map.len() as u64 / held) as usize;
        let whole = sizes.map.iter().filter(full).count();
        assert!(whole.abs_diff(part(8 * MIB)) <= 2, "{sizes:?}");
        assert!(sizes.map.iter().filter(empty).count() >= part(8 * MIB) - 2, "{sizes:?}");
    }

    #[cfg(feature = "record")]
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
        let mut text = String::new();
        write_sizes(bench.pool.inner(), &mut text);
        let holders = read_sizes(&text).holders;
        let seen: Vec<_> = holders.iter().map(|h| (h.tag.as_str(), h.bytes, h.blocks)).collect();
        assert_eq!(seen, [("step/a\u{fffd}long", 3 * MIB, 1), ("step/short", MIB, 1)], "{text}");
        blocks.into_iter().for_each(|block| bench.pool.free_block(block, &bench.stream).unwrap());
        let mut text = String::new();
        write_sizes(bench.pool.inner(), &mut text);
        assert_eq!(read_sizes(&text).holders, []);
    }

    #[test]
    fn a_process_that_lies_is_bounded() {
        let huge = u64::MAX.to_string();
        let text =
            format!("name x\npool {huge}\nreserved {huge} -1\ncalls{}\n", format!(" {huge}").repeat(100));
        let [pool] = &read_pools(&text)[..] else { panic!("{text}") };
        assert_eq!((pool.number, pool.stats.reserved.current, pool.stats.reserved.high), (MOST, MOST, 0));
        assert_eq!(pool.stats.calls.all(), 9 * MOST);
        let long = format!("pool 1\nname {}\n", "\u{7}".repeat(1 << 20));
        assert_eq!(read_pools(&long)[0].name, "\u{fffd}".repeat(LONGEST_NAME));
        let sizes = read_sizes(&format!("map {}\n{}", "~".repeat(1000), "size 1 1 1\n".repeat(1000)));
        assert_eq!((sizes.map, sizes.rows.len()), (vec![8; CELLS], 64));
        let holder = format!("holder {huge}\ntag {huge}\n{}", "frame \u{7}\n".repeat(100));
        let holders = read_sizes(&("frame x\ntag x\n".to_owned() + &holder.repeat(100))).holders;
        assert_eq!(
            (holders.len(), holders[19].bytes, holders[19].stack.len()),
            (MOST_HOLDERS, MOST, MOST_FRAMES)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(pool|name|reserved|calls|map|size|holder|tag|frame|memory|identity)?[ \\PC\n]{0,200}") {
            for pool in read_pools(&text) {
                prop_assert!(!pool.name.chars().any(char::is_control));
                pool.stats.calls.all();
            }
            read_sizes(&text);
        }
    }
}
