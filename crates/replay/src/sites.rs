//! Who holds memory at one moment, and in blocks of which size.

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::event::StackId;
use crate::replay::Program;
use crate::trace::Trace;

/// Live bytes of one call site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Site {
    /// The function, with its file and line.
    pub name: String,
    /// The bytes that were requested there and are live.
    pub bytes: u64,
    /// In how many blocks.
    pub blocks: u64,
}

/// Live bytes at one moment.
#[derive(Debug, Default)]
pub struct Sites {
    /// By call site, the most first; empty where no stacks were recorded.
    pub by_site: Vec<Site>,
    /// Bytes by the power of two that the block's size lies above.
    pub by_size: Vec<(u32, u64)>,
}

/// Call sites that are listed.
const MOST_SITES: usize = 20;

impl Sites {
    /// When most is requested.
    pub fn at_peak(trace: &Trace, program: &Program) -> Self {
        Self::after(trace, program, program.peak_requested().1 + 1)
    }

    /// When the trace ends: what a program keeps, or leaks.
    pub fn at_end(trace: &Trace, program: &Program) -> Self {
        Self::after(trace, program, program.steps.len())
    }

    fn after(trace: &Trace, program: &Program, steps: usize) -> Self {
        let mut live = vec![false; program.blocks];
        for step in program.steps.iter().take(steps) {
            live[step.block as usize] = step.alloc;
        }
        let mut by_stack: FxHashMap<StackId, (u64, u64)> = FxHashMap::default();
        let mut by_size = std::collections::BTreeMap::new();
        for (block, _) in trace.blocks.iter().zip(&live).filter(|(block, live)| **live && block.size > 0) {
            add(by_stack.entry(block.stack).or_default(), (block.size, 1));
            *by_size.entry(block.size.ilog2()).or_default() += block.size;
        }
        let by_site = if trace.stacks.is_empty() { Vec::new() } else { named(trace, by_stack) };
        Self { by_site, by_size: by_size.into_iter().collect() }
    }
}

fn add(sum: &mut (u64, u64), (bytes, blocks): (u64, u64)) {
    sum.0 += bytes;
    sum.1 += blocks;
}

fn named(trace: &Trace, by_stack: FxHashMap<StackId, (u64, u64)>) -> Vec<Site> {
    let mut by_site: FxHashMap<String, (u64, u64)> = FxHashMap::default();
    for (stack, live) in by_stack {
        add(by_site.entry(site(trace, stack)).or_default(), live);
    }
    let mut sites: Vec<_> =
        by_site.into_iter().map(|(name, (bytes, blocks))| Site { name, bytes, blocks }).collect();
    sites.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&other.name)));
    sites.truncate(MOST_SITES);
    sites
}

/// The innermost frame that is the program's own rather than the library's, else the innermost.
fn site(trace: &Trace, stack: StackId) -> String {
    let own = trace.stacks.frames(stack).find(|frame| !frame.file.contains("site-packages"));
    match own.or_else(|| trace.stacks.frames(stack).next()) {
        Some(frame) => {
            let file = frame.file.rsplit('/').next().unwrap_or(&frame.file);
            format!("{} ({file}:{})", frame.name, frame.line)
        }
        None => "before the recording, or without a stack".to_owned(),
    }
}
