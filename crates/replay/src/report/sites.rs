//! Who holds memory when most is requested, and in blocks of which size.

use rustc_hash::FxHashMap;

use crate::event::StackId;
use crate::replay::Program;
use crate::trace::Trace;

/// Live bytes at the peak of what is requested.
#[derive(Debug, Default)]
pub(super) struct Sites {
    /// Bytes by call site, the most first; empty where no stacks were recorded.
    pub(super) by_site: Vec<(String, u64)>,
    /// Bytes by the power of two that the block's size lies above.
    pub(super) by_size: Vec<(u32, u64)>,
}

/// Call sites that are shown.
const MOST_SITES: usize = 20;

impl Sites {
    pub(super) fn at_peak(trace: &Trace, program: &Program) -> Self {
        let (_, peak) = program.peak_requested();
        let mut live = vec![false; program.blocks];
        for step in program.steps.iter().take(peak + 1) {
            live[step.block as usize] = step.alloc;
        }
        let mut by_stack: FxHashMap<StackId, u64> = FxHashMap::default();
        let mut by_size = std::collections::BTreeMap::new();
        for (block, _) in trace.blocks.iter().zip(&live).filter(|(block, live)| **live && block.size > 0) {
            *by_stack.entry(block.stack).or_default() += block.size;
            *by_size.entry(block.size.ilog2()).or_default() += block.size;
        }
        let by_site = if trace.stacks.is_empty() { Vec::new() } else { named(trace, by_stack) };
        Self { by_site, by_size: by_size.into_iter().collect() }
    }
}

fn named(trace: &Trace, by_stack: FxHashMap<StackId, u64>) -> Vec<(String, u64)> {
    let mut by_site: FxHashMap<String, u64> = FxHashMap::default();
    for (stack, bytes) in by_stack {
        *by_site.entry(site(trace, stack)).or_default() += bytes;
    }
    let mut sites: Vec<_> = by_site.into_iter().collect();
    sites.sort_by(|(a, one), (b, other)| other.cmp(one).then(a.cmp(b)));
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
