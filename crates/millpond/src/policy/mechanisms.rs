//! Which mechanisms a pool has: all of them in programs. A test or a measurement leaves some out, to see what each is worth.

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    /// A pool that lacks time grows a little rather than move memory: throughput mode.
    pub(crate) throughput: bool,
    /// Long pages are split while there is time.
    pub(crate) splitting: bool,
    /// Old mappings stay, for pages to come back to.
    pub(crate) dormant: bool,
    /// The lowest free block is taken where the best fit leaves much over. Else always the best fit.
    pub(crate) lowest: bool,
    /// New pages are short while there is time. Else they are always long.
    pub(crate) short_pages: bool,
}

impl Policy {
    pub(crate) const ALL: Self =
        Self { throughput: true, splitting: true, dormant: true, lowest: true, short_pages: true };
}

/// A name in `MILLPOND_WITHOUT`, and what it leaves out.
#[cfg(feature = "lab")]
type Named = (&'static str, fn(&mut Policy));

/// What `scripts/mechanisms` leaves out.
#[cfg(feature = "lab")]
const LEFT_OUT: [Named; 5] = [
    ("throughput", |policy| policy.throughput = false),
    ("splitting", |policy| policy.splitting = false),
    ("dormant", |policy| policy.dormant = false),
    ("lowest", |policy| policy.lowest = false),
    ("short-pages", |policy| policy.short_pages = false),
];

#[cfg(feature = "lab")]
impl Policy {
    /// Without what `MILLPOND_WITHOUT` names, with commas between. Panics for a name that is none: a measurement of nothing
    /// would mislead.
    pub(crate) fn from_environment() -> Self {
        let mut policy = Self::ALL;
        let text = std::env::var("MILLPOND_WITHOUT").unwrap_or_default();
        for name in text.split(',').filter(|name| !name.is_empty()) {
            let known = LEFT_OUT.iter().find(|(known, _)| *known == name);
            known.unwrap_or_else(|| panic!("MILLPOND_WITHOUT: no mechanism is called {name}")).1(&mut policy);
        }
        policy
    }
}
