//! What a guard finds.

use std::fmt;
use std::time::Duration;

use crate::device::DevicePtr;
use crate::record::{Caller, StackFrame};

/// What a program did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mistake {
    /// Bytes before a block were written.
    Before,
    /// Bytes behind a block were written.
    Behind,
    /// A block was written after it was freed: by later work, or by work on a stream whose use was not recorded.
    AfterFree,
    /// A block was freed again.
    DoubleFree,
}

/// A call that allocated or freed a block. [`Guard`](super::Guard) has an example.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GuardedCall {
    /// The identity of its stream.
    pub stream: u64,
    /// The time since the pool was built.
    pub at: Duration,
    caller: Caller,
}

impl GuardedCall {
    pub(super) fn new(stream: u64, at: Duration) -> Self {
        Self { stream, at, caller: Caller::now() }
    }

    /// The [tags](crate::record::tag) that it was made under, such as `step/forward`; `None` without any.
    #[must_use]
    pub fn tag(&self) -> Option<String> {
        self.caller.tag()
    }

    /// The call stack, the innermost line first. Empty where it is not known.
    #[must_use]
    pub fn stack(&self) -> Vec<StackFrame> {
        self.caller.stack()
    }
}

impl fmt::Display for GuardedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "on stream {}, {:.6} s after the pool was built", self.stream, self.at.as_secs_f64())?;
        if let Some(tag) = self.tag() {
            write!(f, ", under {tag}")?;
        }
        for frame in self.stack().iter().filter(|frame| !frame.is_of_runtime()) {
            write!(f, "\n    {frame}")?;
        }
        Ok(())
    }
}

/// What a guard found. Printed, it is a sentence, and the calls that allocated and freed the block. [`Guard`](super::Guard)
/// has an example.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Finding {
    /// What the program did.
    pub mistake: Mistake,
    /// The pool's name.
    pub pool: String,
    /// Where the block is, or was.
    pub ptr: DevicePtr,
    /// Bytes of the block that were asked for.
    pub bytes: u64,
    /// The first changed byte, from the block's first on.
    pub offset: i64,
    /// How many bytes were changed, of those that were compared.
    pub changed: u64,
    /// The first changed bytes as they were found, at most 16.
    pub found: Vec<u8>,
    /// Who allocated the block.
    pub allocated: GuardedCall,
    /// Who freed it; of a double free, first.
    pub freed: GuardedCall,
    /// Who freed it again.
    pub again: Option<GuardedCall>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mistake, pool, bytes, offset, changed, .. } = self;
        let block = format!("block of {bytes} bytes of pool '{pool}'");
        let s = if *changed == 1 { " was" } else { "s were" };
        match mistake {
            Mistake::Before => write!(f, "{changed} byte{s} written before a {block}")?,
            Mistake::Behind => write!(f, "{changed} byte{s} written behind a {block}")?,
            Mistake::AfterFree => write!(f, "{changed} byte{s} written to a {block} after its free")?,
            Mistake::DoubleFree => write!(f, "a {block} was freed again")?,
        }
        if !self.found.is_empty() {
            write!(f, ": at offset {offset}, now")?;
            self.found.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
        }
        write!(f, "\n  allocated {}\n  freed {}", self.allocated, self.freed)?;
        self.again.iter().try_for_each(|again| write!(f, "\n  freed again {again}"))
    }
}
