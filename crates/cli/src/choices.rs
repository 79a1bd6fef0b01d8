//! What `--allocator` and `--suite` may say: names, or `all`.

use clap::builder::PossibleValuesParser;
use millpond_baselines::{ALLOCATORS, NAMES};

/// The name that stands for every one in turn.
pub(crate) const ALL: &str = "all";

/// Takes these names, and `all`.
pub(crate) fn names_or_all(names: impl IntoIterator<Item = &'static str>) -> PossibleValuesParser {
    PossibleValuesParser::new(names.into_iter().chain([ALL]))
}

/// Whether a name was asked for.
pub(crate) fn is_asked(given: &[String], name: &str) -> bool {
    given.iter().any(|asked| asked == ALL || asked == name)
}

/// Names for a help: `one, other or all`.
pub(crate) fn listed(names: impl IntoIterator<Item = &'static str>) -> String {
    format!("{} or {ALL}", names.into_iter().collect::<Vec<_>>().join(", "))
}

/// What each allocator is, for a help.
pub(crate) fn about_allocators() -> String {
    let width = NAMES.map(str::len).into_iter().max().unwrap_or_default();
    let lines = ALLOCATORS.map(|allocator| format!("\n  {:width$}  {}", allocator.name, allocator.about));
    format!("Allocators:{}", lines.concat())
}
