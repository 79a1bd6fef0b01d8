//! Which mechanisms are left out, to measure what each is worth. `scripts/mechanisms` does that.
//!
//! With the feature `lab`, `MILLPOND_WITHOUT` names them, with commas between. Without the feature nothing is left out, and
//! the compiler removes the questions.

/// A mechanism, or a simpler one in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// Throughput mode.
    Throughput,
    /// Long pages are split while there is time.
    Splitting,
    /// Old mappings stay, for pages to come back to.
    Dormant,
    /// Where threads cache large blocks, the caches are emptied before a large free block is cut up. Left out: only
    /// where no free block is ready.
    CachesFirst,
    /// Small blocks lie in address ranges of their own.
    Zones,
    /// The lowest free block is taken where the best fit leaves much over. Left out: always the best fit.
    Lowest,
    /// Left out: the lowest always, of large blocks.
    LowestAlways,
    /// Short pages while there is time. Left out: pages are always long.
    ShortPages,
    /// Left out: pages are always short.
    ShortPagesAlways,
    /// In throughput mode, a class that has no block borrows one of a longer class.
    Borrowing,
    /// In throughput mode, what other streams freed is had from the depot.
    OtherStreams,
}

/// Whether this one is left out.
#[cfg(not(feature = "lab"))]
#[inline(always)]
pub(crate) const fn without(_: Mechanism) -> bool {
    false
}

#[cfg(feature = "lab")]
pub(crate) use lab::without;

#[cfg(feature = "lab")]
mod lab {
    use std::sync::OnceLock;

    use super::Mechanism;

    /// Their names in `MILLPOND_WITHOUT`.
    const NAMES: [(&str, Mechanism); 11] = [
        ("throughput", Mechanism::Throughput),
        ("splitting", Mechanism::Splitting),
        ("dormant", Mechanism::Dormant),
        ("caches-first", Mechanism::CachesFirst),
        ("zones", Mechanism::Zones),
        ("lowest", Mechanism::Lowest),
        ("lowest-always", Mechanism::LowestAlways),
        ("short-pages", Mechanism::ShortPages),
        ("short-pages-always", Mechanism::ShortPagesAlways),
        ("borrowing", Mechanism::Borrowing),
        ("other-streams", Mechanism::OtherStreams),
    ];

    static LEFT_OUT: OnceLock<Vec<Mechanism>> = OnceLock::new();

    /// Whether this one is left out.
    pub(crate) fn without(what: Mechanism) -> bool {
        LEFT_OUT.get_or_init(from_environment).contains(&what)
    }

    /// Panics for a name that is none: a measurement of nothing would mislead.
    fn from_environment() -> Vec<Mechanism> {
        let text = std::env::var("MILLPOND_WITHOUT").unwrap_or_default();
        let named = |name: &str| {
            let found = NAMES.iter().find(|(known, _)| *known == name);
            found.unwrap_or_else(|| panic!("MILLPOND_WITHOUT: no mechanism is called {name}")).1
        };
        text.split(',').filter(|name| !name.is_empty()).map(named).collect()
    }
}
