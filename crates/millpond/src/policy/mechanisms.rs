//! Which mechanisms a pool has: all of them in programs. A test or a measurement leaves some out, to see what each is worth.

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    /// A pool that lacks time grows a little rather than move memory: throughput mode.
    pub(crate) throughput: bool,
    /// Old mappings stay, for pages to come back to.
    pub(crate) dormant: bool,
    /// New pages are short while there is time. Else they are always long.
    pub(crate) short_pages: bool,
}

/// `lab` has it read from the environment.
#[cfg(any(test, not(feature = "lab")))]
impl Policy {
    pub(crate) const ALL: Self = Self { throughput: true, dormant: true, short_pages: true };
}

#[cfg(feature = "lab")]
impl Policy {
    /// Without what `MILLPOND_WITHOUT` names, with commas between. `scripts/mechanisms` checks the names.
    pub(crate) fn from_environment() -> Self {
        let left_out = std::env::var("MILLPOND_WITHOUT").unwrap_or_default();
        let has = |name| !left_out.split(',').any(|left_out| left_out == name);
        Self { throughput: has("throughput"), dormant: has("dormant"), short_pages: has("short-pages") }
    }
}
