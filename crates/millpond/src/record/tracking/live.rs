//! What is live, block by block, and who holds it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use super::super::frames::is_of_standard_library;
use super::super::labels::{lines_of, tag_path};
use crate::device::DevicePtr;
use crate::figures::stats::HumanBytes;

/// A live block: [`Pool::live_blocks`](crate::Pool::live_blocks) lists them, and has an example.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LiveBlock {
    /// Where it is.
    pub ptr: DevicePtr,
    /// Bytes asked for.
    pub bytes: u64,
    /// Who allocated it, and when; `None` where that was not tracked.
    pub tracked: Option<Tracked>,
}

/// Who allocated a [live block](LiveBlock), which has an example, and when.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Tracked {
    /// The time since its allocation.
    pub age: Duration,
    /// The identity of the stream that it was allocated on.
    pub stream: u64,
    /// How many blocks of its size it stands for, at least 1: 1 where every block is tracked.
    pub blocks: f64,
    tag: u32,
    site: u32,
}

impl Tracked {
    pub(super) fn new(age: Duration, stream: u64, blocks: f64, (tag, site): (u32, u32)) -> Self {
        Self { age, stream, blocks, tag, site }
    }

    /// The [tags](crate::record::tag) that it was allocated under, such as `step/forward`; `None` without any.
    #[must_use]
    pub fn tag(&self) -> Option<String> {
        tag_path(self.tag)
    }

    /// The call stack that allocated it, the innermost line first. Empty where it is not known. The first call in a process
    /// reads the program's debug information, and takes up to a second.
    #[must_use]
    pub fn stack(&self) -> Vec<StackFrame> {
        let frame = |(name, file, line)| StackFrame { name, file, line };
        lines_of(self.site).into_iter().map(frame).collect()
    }
}

/// A line of source code in a call stack.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackFrame {
    /// The function.
    pub name: String,
    /// The source file; empty where unknown.
    pub file: String,
    /// The line in it, from 1; 0 where unknown.
    pub line: u32,
}

impl StackFrame {
    /// Whether it tells nothing of the program.
    pub(crate) fn is_of_runtime(&self) -> bool {
        let starts = ["__rust", "__libc_start", "_start", "clone3", "start_thread"];
        is_of_standard_library(&self.name, &self.file)
            || starts.iter().any(|start| self.name.starts_with(start))
            || self.name == "main" && self.file.is_empty()
    }
}

impl fmt::Display for StackFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, file, line } = self;
        match (file.rsplit('/').next(), line) {
            (None | Some(""), _) => write!(f, "{name}"),
            (Some(file), 0) => write!(f, "{name} ({file})"),
            (Some(file), line) => write!(f, "{name} ({file}:{line})"),
        }
    }
}

/// What one call stack holds under one tag. Printed, it is a line of figures, and a line for each of the innermost frames,
/// but for those of Rust's standard library and of the start of the program.
/// [`Tracking`](crate::record::Tracking) has an example.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Holder {
    /// The tags, such as `step/forward`; `None` without any.
    pub tag: Option<String>,
    /// The call stack, the innermost line first.
    pub stack: Vec<StackFrame>,
    /// Live bytes: asked for where every block is tracked, else estimated.
    pub bytes: u64,
    /// Live blocks, likewise.
    pub blocks: u64,
    /// The time since the first of them was allocated.
    pub oldest: Duration,
}

impl Holder {
    /// The frames of the program itself, the innermost first.
    pub(crate) fn frames(&self) -> impl Iterator<Item = &StackFrame> {
        self.stack.iter().filter(|frame| !frame.is_of_runtime())
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, stack, bytes, blocks, oldest } = self;
        let tag = tag.as_deref().unwrap_or("(no tag)");
        let s = if *blocks == 1 { "" } else { "s" };
        write!(f, "{} in {blocks} block{s}, for {} s: {tag}", HumanBytes(*bytes), Seconds(*oldest))?;
        if stack.is_empty() {
            write!(f, "\n    (call stack not known)")?;
        }
        let mut frames = self.frames();
        frames.by_ref().take(MOST_PRINTED).try_for_each(|frame| write!(f, "\n    {frame}"))?;
        match frames.count() {
            0 => Ok(()),
            more => write!(f, "\n    and {more} more, further out"),
        }
    }
}

/// Frames of a holder that are printed.
const MOST_PRINTED: usize = 8;

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0.as_secs_f64())
    }
}

/// Who holds these blocks, by tag and call stack, the largest first. Blocks that were not tracked are left out: where blocks
/// are sampled, the others stand for them.
#[must_use]
pub fn holders(blocks: &[LiveBlock]) -> Vec<Holder> {
    #[derive(Default)]
    struct Sum {
        bytes: f64,
        blocks: f64,
        oldest: Duration,
    }
    let mut sums: HashMap<(u32, u32), (&Tracked, Sum)> = HashMap::new();
    for block in blocks {
        let Some(tracked) = &block.tracked else { continue };
        let (_, sum) = sums.entry((tracked.tag, tracked.site)).or_insert_with(|| (tracked, Sum::default()));
        sum.bytes += tracked.blocks * block.bytes as f64;
        sum.blocks += tracked.blocks;
        sum.oldest = sum.oldest.max(tracked.age);
    }
    let holder = |(tracked, sum): (&Tracked, Sum)| Holder {
        tag: tracked.tag(),
        stack: tracked.stack(),
        bytes: sum.bytes.round() as u64,
        blocks: sum.blocks.round() as u64,
        oldest: sum.oldest,
    };
    let mut holders: Vec<_> = sums.into_values().map(holder).collect();
    holders.sort_by_key(|holder| Reverse((holder.bytes, holder.oldest)));
    holders
}
