//! One event of a trace, the same whichever program recorded it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The program asked for a block and got it.
    Alloc,
    /// The program let go of a block.
    FreeRequested,
    /// The block became reusable: at once, or later where other streams had recorded use of it.
    FreeCompleted,
    /// The recorded allocator took a segment from the driver.
    SegmentAlloc,
    /// The recorded allocator gave a segment back to the driver.
    SegmentFree,
    /// The recorded allocator mapped memory into an expandable segment.
    SegmentMap,
    /// The recorded allocator unmapped memory of an expandable segment.
    SegmentUnmap,
    /// The recorded allocator had no memory for a request. The address is the device's free memory then.
    OutOfMemory,
    /// The program looked at its memory.
    Snapshot,
}

/// One event. Readers push them, in the order in which they happened, into a
/// [`TraceBuilder`](crate::trace::TraceBuilder).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The device's number.
    pub device: u32,
    /// The stream, as the recorder named it.
    pub stream: u64,
    /// When, in microseconds from any fixed moment.
    pub time_us: u64,
    /// The address of the block or segment.
    pub address: u64,
    /// Bytes: of a block what was requested, of a segment what was taken.
    pub size: u64,
    /// Who did it, where the recorder kept that.
    pub stack: StackId,
}

/// A call stack of a [`Stacks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(u32);

/// A frame of a [`Stacks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameId(u32);

impl StackId {
    /// No stack was recorded.
    pub const NONE: Self = Self(0);
}

/// One line of a call stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// The function. Frames of one snapshot share equal texts, and so does `file`.
    pub name: Arc<str>,
    /// The source file.
    pub file: Arc<str>,
    /// The line in it, from 1; 0 where unknown.
    pub line: u32,
}

impl Frame {
    /// The file that tags have in place of a source file.
    const TAG: &str = "tag";

    /// A tag of a recording of Millpond's. Tags are the outermost frames of a stack.
    pub fn of_tag(text: &str) -> Self {
        Self { name: text.into(), file: Self::TAG.into(), line: 0 }
    }

    /// Whether it is a tag and no line of code.
    pub fn is_tag(&self) -> bool {
        &*self.file == Self::TAG && self.line == 0
    }
}

/// Call stacks, each kept once, innermost frame first.
#[derive(Debug, Clone)]
pub struct Stacks {
    frames: Vec<Frame>,
    /// The frames of all stacks, one after another.
    lines: Vec<FrameId>,
    /// Where in `lines` each stack ends. The first is the empty stack.
    ends: Vec<usize>,
    /// For each stack under which a request was refused, that with a tag which says so.
    refused: FxHashMap<StackId, StackId>,
}

/// The tag of requests that were refused.
pub const REFUSED: &str = "(the request that failed)";

impl Default for Stacks {
    fn default() -> Self {
        Self { frames: Vec::new(), lines: Vec::new(), ends: vec![0], refused: FxHashMap::default() }
    }
}

/// A name as it stands in tables: a line break in it is shown, and makes no line.
pub(crate) fn one_line(name: &str) -> Cow<'_, str> {
    if name.contains('\n') { name.replace('\n', "\\n").into() } else { name.into() }
}

impl Stacks {
    /// Adds a frame, whose names are made one line each. The reader sees to it that equal frames are added once.
    pub fn add_frame(&mut self, mut frame: Frame) -> FrameId {
        for name in [&mut frame.name, &mut frame.file] {
            if let Cow::Owned(shown) = one_line(name) {
                *name = shown.into();
            }
        }
        self.frames.push(frame);
        FrameId(self.frames.len() as u32 - 1)
    }

    /// Adds a stack, innermost frame first. The reader sees to it that equal stacks are added once.
    pub fn add_stack(&mut self, frames: &[FrameId]) -> StackId {
        if frames.is_empty() {
            return StackId::NONE;
        }
        self.lines.extend_from_slice(frames);
        self.ends.push(self.lines.len());
        StackId(self.ends.len() as u32 - 1)
    }

    /// A stack with [`REFUSED`] as its outermost tag. Where no stacks were recorded, there is none.
    pub(crate) fn refused(&mut self, stack: StackId) -> StackId {
        if self.is_empty() {
            return stack;
        }
        if let Some(&known) = self.refused.get(&stack) {
            return known;
        }
        let tag = self.add_frame(Frame::of_tag(REFUSED));
        let frames: Vec<FrameId> = self.lines[self.lines_of(stack)].iter().copied().chain([tag]).collect();
        let refused = self.add_stack(&frames);
        self.refused.insert(stack, refused);
        refused
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = &Frame> {
        self.lines[self.lines_of(stack)].iter().map(|frame| &self.frames[frame.0 as usize])
    }

    fn lines_of(&self, stack: StackId) -> Range<usize> {
        let index = stack.0 as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        start..self.ends[index]
    }

    /// Whether any stack was recorded.
    pub fn is_empty(&self) -> bool {
        self.ends.len() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line() {
        let mut stacks = Stacks::default();
        let frame =
            stacks.add_frame(Frame { name: "f\nmillpond: well".into(), file: "a\n.py".into(), line: 1 });
        let stack = stacks.add_stack(&[frame]);
        let names: Vec<_> = stacks.frames(stack).map(|frame| [&*frame.name, &*frame.file]).collect();
        assert_eq!(names, [["f\\nmillpond: well", "a\\n.py"]]);
    }

    #[test]
    fn a_stack_gives_back_its_own_frames() {
        let mut stacks = Stacks::default();
        let frame = |name: &str| Frame { name: name.into(), file: "a.py".into(), line: 1 };
        let (inner, outer) = (stacks.add_frame(frame("inner")), stacks.add_frame(frame("outer")));
        let one = stacks.add_stack(&[outer]);
        let two = stacks.add_stack(&[inner, outer]);
        let names = |stack| stacks.frames(stack).map(|frame| &*frame.name).collect::<Vec<_>>();
        assert_eq!(names(one), ["outer"]);
        assert_eq!(names(two), ["inner", "outer"]);
        assert!(names(StackId::NONE).is_empty());
    }
}
