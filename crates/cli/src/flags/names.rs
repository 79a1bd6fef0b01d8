//! What `--allocator` and `--suite` may say: names, or `all`; and what `--memory` may.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use millpond::device::MemoryKind;
use millpond_baselines::{ALLOCATORS, MEMORIES, NAMES};

/// The name that stands for every one in turn.
pub(crate) const ALL: &str = "all";

/// Takes these names, and `all`.
pub(crate) fn names_or_all(names: impl IntoIterator<Item = &'static str>) -> PossibleValuesParser {
    PossibleValuesParser::new(names.into_iter().chain([ALL]))
}

/// Takes the name of a kind of memory.
pub(crate) fn memories() -> impl TypedValueParser<Value = MemoryKind> {
    let kind = |given: String| MEMORIES.iter().find(|(name, _)| *name == given).map(|(_, kind)| *kind);
    PossibleValuesParser::new(MEMORIES.map(|(name, _)| name))
        .map(move |given| kind(given).unwrap_or_default())
}

/// The names of the kinds of memory, for a help: `device, pinned or managed`.
pub(crate) fn listed_memories() -> String {
    let names = MEMORIES.map(|(name, _)| name);
    names.split_last().map_or_else(String::new, |(last, others)| format!("{} or {last}", others.join(", ")))
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
