//! What went wrong, in words, with the calls that led to it.

use std::collections::VecDeque;
use std::fmt;

/// The rule that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Two blocks' uses of one physical byte are not ordered.
    Order,
    /// Two live blocks share an address or a physical byte.
    Overlap,
    /// Memory is used that is not mapped, or has no access.
    NotMapped,
    /// A device used memory of another one to which it has no access.
    PeerAccess,
    /// A live block's address was given other physical memory.
    Moved,
    /// Memory lost its mapping while work that uses it may still run.
    UnmapUnderWork,
    /// Memory lost its mapping, or was freed, while a live block was in it.
    UnmapUnderBlock,
    /// A call was given a stream, event, page or address that is not, or no longer, there.
    DeadHandle,
    /// The device below refused a call as wrong.
    Refused,
    /// A call was made in a process that was forked from the device's.
    Forked,
    /// A block began with advice of an earlier one.
    Advice,
    /// The program under test broke the allocator's contract, not the allocator.
    Program,
    /// Something was not given back.
    Leak,
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// Who, where, and why it is wrong.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

/// Everything that went wrong, with the device calls before the first of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Report {
    /// The broken rules, first things first.
    pub violations: Vec<Violation>,
    /// The calls before the first violation, as text, oldest first.
    pub calls: Vec<String>,
}

impl Report {
    /// Whether this rule is among the broken ones.
    #[must_use]
    pub fn breaks(&self, rule: Rule) -> bool {
        self.violations.iter().any(|violation| violation.rule == rule)
    }
}

/// Violations printed; what follows from the first ones tells little.
const PRINTED: usize = 12;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} violations:", self.violations.len())?;
        for violation in self.violations.iter().take(PRINTED) {
            writeln!(f, "  {violation}")?;
        }
        if self.violations.len() > PRINTED {
            writeln!(f, "  … and {} more", self.violations.len() - PRINTED)?;
        }
        writeln!(f, "the calls before the first:")?;
        self.calls.iter().try_for_each(|call| writeln!(f, "  {call}"))
    }
}

/// Calls kept.
const KEPT: usize = 40;

/// The last calls that were made. Text is made only when it is wanted.
#[derive(Debug, Default)]
pub(super) struct Trace {
    calls: VecDeque<(&'static str, [u64; 3])>,
    made: u64,
}

impl Trace {
    pub(super) fn note(&mut self, call: &'static str, arguments: [u64; 3]) {
        if self.calls.len() == KEPT {
            self.calls.pop_front();
        }
        self.calls.push_back((call, arguments));
        self.made += 1;
    }

    pub(super) fn text(&self) -> Vec<String> {
        let first = self.made - self.calls.len() as u64;
        let line = |(at, (call, [a, b, c])): (usize, &(&str, [u64; 3]))| {
            format!("{:>6}  {call}({a:#x}, {b:#x}, {c:#x})", first + at as u64)
        };
        self.calls.iter().enumerate().map(line).collect()
    }
}
