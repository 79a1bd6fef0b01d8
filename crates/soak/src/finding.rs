//! What a program must not find.

use millpond::testing::checker::{Report, Rule};
use serde::{Deserialize, Serialize};

/// How a rule was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Memory passed on, or went away, before the work on it was complete.
    Unordered,
    /// Two live blocks had a byte in common, or a block lost its memory or its contents.
    Overlapping,
    /// Memory that did not go back.
    LostBytes,
    /// A program that did not go on.
    Hang,
    /// An error that no fault explains, figures that are not the program's, or a panic.
    Wrong,
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which kind of rule.
    pub kind: Kind,
    /// Who, where, and why it is wrong.
    pub what: String,
    /// Bytes that were lost.
    pub bytes: u64,
}

/// What came of a part of a program.
pub(crate) type Verdict<T = ()> = Result<T, Box<Finding>>;

impl Finding {
    pub(crate) fn new(kind: Kind, what: impl Into<String>) -> Box<Self> {
        Box::new(Self { kind, what: what.into(), bytes: 0 })
    }

    pub(crate) fn wrong(what: impl Into<String>) -> Box<Self> {
        Self::new(Kind::Wrong, what)
    }

    /// The same, with the step in which it was found.
    pub(crate) fn in_step(mut self: Box<Self>, at: usize, step: impl std::fmt::Debug) -> Box<Self> {
        self.what = format!("step {at}, {step:?}: {}", self.what);
        self
    }

    pub(crate) fn lost(bytes: u64, what: impl Into<String>) -> Box<Self> {
        Box::new(Self { kind: Kind::LostBytes, what: what.into(), bytes })
    }
}

impl From<Report> for Box<Finding> {
    fn from(report: Report) -> Self {
        let kind = match report.violations.first().map(|first| first.rule) {
            Some(Rule::Order | Rule::UnmapUnderWork) => Kind::Unordered,
            Some(Rule::Leak) => Kind::LostBytes,
            Some(Rule::Program) | None => Kind::Wrong,
            Some(_) => Kind::Overlapping,
        };
        Finding::new(kind, report.to_string())
    }
}
