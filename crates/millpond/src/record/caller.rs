//! Who called the pool, as two numbers: what they stand for is looked up when it is shown.

use super::labels::{current_site, current_tag, lines_of, tag_path};
use super::tracking::StackFrame;

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    tag: u32,
    site: u32,
}

impl Caller {
    pub(crate) fn now() -> Self {
        Self { tag: current_tag(), site: current_site() }
    }

    /// The tags, such as `step/forward`; `None` without any.
    pub(crate) fn tag(self) -> Option<String> {
        tag_path(self.tag)
    }

    /// The call stack, the innermost line first. Empty where it is not known.
    pub(crate) fn stack(self) -> Vec<StackFrame> {
        lines_of(self.site).into_iter().map(|(name, file, line)| StackFrame { name, file, line }).collect()
    }
}
