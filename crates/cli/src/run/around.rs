//! The limit of another `millpond run` that this command runs under: it holds for what this one runs, too.

use std::ffi::OsString;

use millpond::HumanBytes;

use crate::error::{Error, Result};
use crate::terminal::remark;

const LIMIT: &str = "MILLPOND_RUN_LIMIT";
const BUDGET: &str = "MILLPOND_RUN_BUDGET";
const COUNT_OVERHEAD: &str = "MILLPOND_RUN_COUNT_OVERHEAD";

/// How much memory a program may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Bytes of a process, or of all that name the budget.
    pub(super) limit: Option<u64>,
    pub(super) budget: Option<String>,
    pub(super) counts_overhead: bool,
}

impl Bounds {
    /// Those that this command's environment has. A limit that is no number is none.
    pub(super) fn around() -> Self {
        let said = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Self {
            limit: said(LIMIT).and_then(|text| text.parse().ok()),
            budget: said(BUDGET),
            counts_overhead: said(COUNT_OVERHEAD).is_some_and(|is| is == "1"),
        }
    }

    /// What the program may have with these, within those around them: never more than either allows.
    ///
    /// # Errors
    /// Where both cannot hold at once.
    pub(super) fn within(mut self, around: &Self, is_watched: bool) -> Result<Self> {
        let Some(outer) = around.limit else { return Ok(self) };
        let refused = |why: String| {
            let outer = HumanBytes(outer);
            Err(Error::Usage(format!(
                "this runs under a limit of {outer}, of a millpond run around it: {why}"
            )))
        };
        if is_watched {
            return refused("leave --watch out, which has no limit".to_owned());
        }
        if self.budget.is_some() && self.budget != around.budget {
            return refused("leave --budget out, since a program has one".to_owned());
        }
        if self.limit.is_some_and(|limit| limit > outer) {
            remark(&format!(
                "millpond: the limit around this one is tighter, and holds: {}",
                HumanBytes(outer)
            ));
        }
        if self.limit.is_some_and(|limit| limit < outer) && around.budget.is_some() {
            return refused("leave --limit out, since it is shared by all that have its budget".to_owned());
        }
        self.limit = Some(self.limit.map_or(outer, |limit| limit.min(outer)));
        self.budget = around.budget.clone();
        self.counts_overhead |= around.counts_overhead;
        Ok(self)
    }

    /// The variables by which programs get them.
    pub(super) fn variables(&self) -> [(&'static str, OsString); 3] {
        [
            (LIMIT, self.limit.map(|bytes| bytes.to_string()).unwrap_or_default().into()),
            (BUDGET, self.budget.clone().unwrap_or_default().into()),
            (COUNT_OVERHEAD, if self.counts_overhead { "1" } else { "" }.into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(bytes: u64) -> Bounds {
        Bounds { limit: Some(bytes), ..Bounds::default() }
    }

    fn shared(bytes: u64) -> Bounds {
        Bounds { budget: Some("gpu0".to_owned()), ..limit(bytes) }
    }

    #[test]
    fn the_tighter_limit_holds() {
        assert_eq!(limit(2).within(&limit(1), false).unwrap(), limit(1));
        assert_eq!(limit(1).within(&limit(2), false).unwrap(), limit(1));
        assert_eq!(Bounds::default().within(&limit(2), false).unwrap(), limit(2));
        assert_eq!(limit(2).within(&Bounds::default(), true).unwrap(), limit(2));
        let counted = Bounds { counts_overhead: true, ..limit(2) };
        assert_eq!(limit(1).within(&counted, false).unwrap(), Bounds { limit: Some(1), ..counted });
    }

    #[test]
    fn a_budget_around_is_kept_and_no_other_one_is_taken() {
        assert_eq!(Bounds::default().within(&shared(2), false).unwrap(), shared(2));
        assert_eq!(shared(2).within(&shared(2), false).unwrap(), shared(2));
        let other = Bounds { budget: Some("gpu1".to_owned()), ..limit(1) };
        other.within(&shared(2), false).unwrap_err();
        limit(1).within(&shared(2), false).unwrap_err();
        shared(1).within(&limit(2), false).unwrap_err();
    }

    #[test]
    fn a_program_is_not_watched_under_a_limit() {
        let error = Bounds::default().within(&limit(1 << 30), true).unwrap_err();
        assert!(error.to_string().contains("under a limit of 1.00 GiB"), "{error}");
    }
}
