//! Sizes in units, and the magazine that blocks of a size lie in.

use super::magazine::Magazine;
use crate::extents::MOST_UNITS;
use crate::policy::size_classes::{CLASS_BITS, LONGEST_IN_THROUGHPUT_MODE, class_of, rounded};

/// How a pool rounds sizes. See the [module](super).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    unit_shift: u32,
    /// Requests of at most so many bytes are rounded to a class.
    rounded_to: u64,
    /// Where the magazine of another request is looked up, and by which bits of its size. The last bits do not matter,
    /// since classes are wide there.
    exact_places: &'static Places,
    exact_shift: u32,
}

/// Magazines in a stream cache: one for each class of any size up to the most units that a block can have.
pub(super) const MAGAZINES: usize = class_of(MOST_UNITS) as usize + 1;

/// Names a magazine of a stream cache, by its distance in bytes from the start of the magazines: it is added as it is.
/// The first stride is taken. At most `MAGAZINES` strides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MagazineIndex(usize);

const _: () = assert!(
    MAGAZINES * size_of::<Magazine>() < 1 << u16::BITS,
    "places are looked up in tables of that width"
);

impl MagazineIndex {
    /// The magazine for blocks of this length, which is less than `MOST_UNITS`.
    #[inline]
    pub(super) fn of(units: u64) -> Self {
        assert!(units < MOST_UNITS, "an arena has no longer blocks");
        Self(usize::from(place_of(units)))
    }

    /// The magazine for blocks of a class.
    ///
    /// # Safety
    /// It is the class of a block.
    #[inline]
    pub(super) unsafe fn of_class(class: u32) -> Self {
        debug_assert!((class as usize) < MAGAZINES);
        Self((class as usize + 1) * size_of::<Magazine>())
    }

    /// Its distance from the start of the magazines, in bytes.
    #[inline]
    pub(super) fn place(self) -> usize {
        self.0
    }

    /// Magazines before it.
    pub(super) fn number(self) -> usize {
        self.0 / size_of::<Magazine>() - 1
    }
}

impl Sizes {
    /// For units of `unit_bytes` (a power of two); blocks of `exact_from` bytes and more are not rounded.
    pub(crate) fn new(unit_bytes: u64, exact_from: u64) -> Self {
        // A block of `exact_from` bytes is not rounded, nor is what becomes one in whole units.
        let rounded_to = exact_from.min(LOOKED_UP as u64 * unit_bytes).saturating_sub(unit_bytes);
        let unit_shift = unit_bytes.ilog2();
        // From the next length on, classes are at least so wide.
        let ignored_bits = ((rounded_to >> unit_shift) + 1).ilog2().saturating_sub(CLASS_BITS);
        let exact_places = &PLACES[ignored_bits as usize];
        Self { unit_shift, rounded_to, exact_places, exact_shift: unit_shift + ignored_bits }
    }

    /// Whether a request of this size is rounded to a class: any block of its magazine will do.
    #[inline]
    pub(super) fn is_rounded(self, bytes: u64) -> bool {
        // Zero bytes wrap around.
        bytes.wrapping_sub(1) < self.rounded_to
    }

    /// The length of a block for a request of `bytes`, at least 1, in units.
    pub(crate) fn units(self, bytes: u64) -> u64 {
        let units = self.exact_units(bytes);
        if self.is_rounded(bytes) { rounded(units) } else { units }
    }

    /// As [`units`](Self::units), where large blocks are rounded to classes too: an eighth is wasted at most. The
    /// longest are not.
    pub(crate) fn units_in_throughput_mode(self, bytes: u64) -> u64 {
        let units = self.exact_units(bytes);
        if self.is_rounded_in_throughput_mode(bytes) { rounded(units) } else { units }
    }

    /// Whether a request of this size is rounded to a class in throughput mode.
    pub(super) fn is_rounded_in_throughput_mode(self, bytes: u64) -> bool {
        bytes <= LONGEST_IN_THROUGHPUT_MODE
    }

    /// As [`units`](Self::units), for a block that is not of a class.
    #[inline]
    pub(crate) fn exact_units(self, bytes: u64) -> u64 {
        ((bytes - 1) >> self.unit_shift) + 1
    }

    /// The magazine with blocks for a request that is rounded.
    ///
    /// # Safety
    /// It [is](Self::is_rounded).
    #[inline]
    pub(super) unsafe fn magazine_for_rounded(self, bytes: u64) -> MagazineIndex {
        debug_assert!(self.is_rounded(bytes));
        let units_less_one = ((bytes - 1) >> self.unit_shift) as usize;
        // SAFETY: `new` has no more rounded than the table has, and this request is.
        MagazineIndex(usize::from(unsafe { *PLACES[0].get_unchecked(units_less_one) }))
    }

    /// The magazine with blocks for a request that is not rounded, if the table has it; not for 0 bytes.
    #[inline]
    pub(super) fn magazine_for_exact(self, bytes: u64) -> Option<MagazineIndex> {
        // Zero bytes wrap around.
        let place = self.exact_places.get((bytes.wrapping_sub(1) >> self.exact_shift) as usize)?;
        Some(MagazineIndex(usize::from(*place)))
    }

    /// The first magazine that may have blocks of exact sizes.
    pub(super) fn first_large(self) -> MagazineIndex {
        MagazineIndex::of(self.exact_units(self.rounded_to + self.bytes(1)))
    }

    /// The longest that a block in the same magazine can be: an eighth more at most.
    pub(super) fn longest_beside(self, bytes: u64) -> u64 {
        self.bytes(rounded(self.exact_units(bytes)))
    }

    /// Whether blocks for such a request are ever cached.
    pub(super) fn is_cached(self, bytes: u64) -> bool {
        bytes > 0 && self.exact_units(bytes) < MOST_UNITS
    }

    #[inline]
    pub(crate) fn bytes(self, units: u64) -> u64 {
        units << self.unit_shift
    }
}

/// The place of the class's magazine: see [`MagazineIndex`].
const fn place_of(units: u64) -> u16 {
    ((class_of(units) as usize + 1) * size_of::<Magazine>()) as u16
}

/// Places of the magazines for so many lengths.
type Places = [u16; LOOKED_UP];

const LOOKED_UP: usize = 4096;

/// By how many bits of a length do not matter; then by the others, of the length less one. To look a place up costs less
/// than to find a leading bit, on some processors.
///
/// Classes of lengths that are not rounded are at first as wide as the last table's places, at most.
static PLACES: [Places; (LOOKED_UP.ilog2() - CLASS_BITS) as usize + 1] = {
    let mut all = [[0; LOOKED_UP]; _];
    let mut ignored = 0;
    while ignored < all.len() {
        let mut at = 0;
        while at < LOOKED_UP {
            // The longest of those lengths: the first class of any use may begin among them.
            all[ignored][at] = place_of(((at + 1) as u64) << ignored);
            at += 1;
        }
        ignored += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many sizes one is looked at: Miri takes minutes for all.
    const ONE_IN: usize = if cfg!(miri) { 199 } else { 1 };

    #[test]
    fn sizes_waste_less_than_an_eighth_or_a_unit() {
        let sizes = Sizes::new(512, 1 << 20);
        for bytes in (1..4 << 20).step_by(61 * ONE_IN) {
            let held = sizes.bytes(sizes.units(bytes));
            assert!(held >= bytes);
            let in_units = bytes.next_multiple_of(512);
            if sizes.is_rounded(bytes) {
                assert!((held - in_units) * 8 < in_units, "{bytes} got {held}");
            } else {
                assert_eq!(held, in_units);
            }
        }
        assert!(sizes.is_rounded((1 << 20) - 512) && !sizes.is_rounded((1 << 20) - 511));
    }

    #[test]
    fn throughput_mode_rounds_all_but_the_longest() {
        let sizes = Sizes::new(512, 1 << 20);
        let longest = LONGEST_IN_THROUGHPUT_MODE;
        assert_eq!(sizes.bytes(sizes.units_in_throughput_mode(longest - 512)), longest);
        assert_eq!(sizes.bytes(sizes.units_in_throughput_mode(longest + 1)), longest + 512);
    }

    #[test]
    fn looking_a_class_up_finds_the_class_of_the_block() {
        // Bytes of the longest length in the table, by what a unit has and from where on sizes are exact.
        for (unit, exact_from, longest) in [
            (512, 1 << 20, 512 << 20),
            (512, 32 << 10, 16 << 20),
            (512, 48 << 10, 16 << 20),
            (256, 3000, 1 << 20),
            (4096, 32 << 20, 8 << 30),
            (2 << 20, 1 << 20, 8 << 30),
        ] {
            let sizes = Sizes::new(unit, exact_from);
            let around = |at: u64| [at - 1, at, at + 1, at + unit];
            let edges =
                (10..34).flat_map(|power| around(1 << power).into_iter().chain(around(3 << (power - 1))));
            let spread =
                (1..=1 << 20).step_by(113 * ONE_IN).chain((1 << 20..3 << 30).step_by(77_773 * ONE_IN));
            for bytes in spread.chain(edges).chain(around(exact_from)) {
                let expected = MagazineIndex::of(sizes.units(bytes));
                if sizes.is_rounded(bytes) {
                    // SAFETY: just asked.
                    let found = unsafe { sizes.magazine_for_rounded(bytes) };
                    assert_eq!(found, expected, "{bytes} of {sizes:?}");
                } else {
                    let expected = (bytes <= longest).then_some(expected);
                    assert_eq!(sizes.magazine_for_exact(bytes), expected, "{bytes} of {sizes:?}");
                }
            }
            assert_eq!(sizes.magazine_for_exact(0), None);
            assert_eq!(sizes.magazine_for_exact(u64::MAX), None);
        }
        let sizes = Sizes::new(512, 1 << 20);
        assert!(sizes.is_cached(1) && sizes.is_cached(1 << 40));
        assert!(!sizes.is_cached(0) && !sizes.is_cached(sizes.bytes(MOST_UNITS)));
    }

    #[test]
    fn large_units_and_small_pages_have_magazines_too() {
        let sizes = Sizes::new(2 << 20, 1 << 20);
        assert!(!sizes.is_rounded(1) && sizes.units(1) == 1);
        assert_eq!(sizes.magazine_for_exact(5 << 20), Some(MagazineIndex::of(3)));
    }
}
