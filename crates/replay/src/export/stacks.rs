//! What is live when most is requested, by whole call stack: for flame graphs, and for programs that read profiles.

use std::collections::BTreeMap;
use std::io::Write;

use millpond::HumanBytes;
use rustc_hash::FxHashSet;

use super::ExportError;
use crate::event::Frame;
use crate::replay::Program;
use crate::trace::Trace;

/// What one call stack holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The tags, then the functions, the outermost first. Never empty.
    pub(crate) frames: Vec<Frame>,
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// What each call stack holds when most is requested, the most first. Blocks without a call stack stand under their tags, or
/// under a frame that says so; where the recording has neither, under one for each power of two.
pub(crate) fn at_peak(trace: &Trace, program: &Program) -> Vec<Holder> {
    let steps = if program.steps.is_empty() { 0 } else { program.peak_requested().1 + 1 };
    let mut is_live = vec![false; program.blocks];
    program.steps[..steps].iter().for_each(|step| is_live[step.block as usize] = step.alloc);
    let before: FxHashSet<u32> = trace.live_before.iter().copied().collect();
    let mut sums: BTreeMap<(_, Option<u32>, bool), (u64, u64)> = BTreeMap::new();
    for (number, block) in (0u32..).zip(&trace.blocks).filter(|(number, _)| is_live[*number as usize]) {
        let power = trace.stacks.is_empty().then(|| block.size.checked_ilog2().unwrap_or(0));
        let (bytes, blocks) = sums.entry((block.stack, power, before.contains(&number))).or_default();
        (*bytes, *blocks) = (*bytes + block.size, *blocks + 1);
    }
    let holder = |((stack, power, before), (bytes, blocks)): ((_, Option<u32>, bool), (u64, u64))| {
        let mut frames: Vec<Frame> = trace.stacks.frames(stack).cloned().collect();
        frames.reverse();
        if frames.is_empty() {
            let name = match power {
                Some(power) => {
                    format!("blocks of {} to {}", HumanBytes(1 << power), HumanBytes(1 << (power + 1)))
                }
                None if before => "allocated before the recording".to_owned(),
                None => "no call stack recorded".to_owned(),
            };
            frames.push(Frame { name: name.into(), file: "".into(), line: 0 });
        }
        Holder { frames, bytes, blocks }
    };
    let mut holders: Vec<Holder> = sums.into_iter().map(holder).collect();
    holders.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.frames.cmp(&other.frames)));
    holders
}

/// Writes what is live when most is requested as folded stacks, which flamegraph.pl, inferno and speedscope read: a line for
/// each call stack, `outer;inner BYTES`.
///
/// # Errors
/// Where it cannot be written.
pub fn folded(trace: &Trace, program: &Program, out: &mut dyn Write) -> Result<(), ExportError> {
    // The same text twice is one stack to those who read it.
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for holder in at_peak(trace, program) {
        let names: Vec<String> =
            holder.frames.iter().map(|frame| named(frame).replace([';', '\n', '\r'], ",")).collect();
        *lines.entry(names.join(";")).or_default() += holder.bytes;
    }
    lines.iter().try_for_each(|(stack, bytes)| writeln!(out, "{stack} {bytes}"))?;
    Ok(())
}

/// A frame in a few words: `forward (train.py:12)`.
pub(crate) fn named(frame: &Frame) -> String {
    let file = frame.file.rsplit('/').next().unwrap_or(&frame.file);
    match frame.line {
        _ if frame.is_tag() || file.is_empty() => frame.name.to_string(),
        0 => format!("{} ({file})", frame.name),
        line => format!("{} ({file}:{line})", frame.name),
    }
}
