//! Sizes in units, and the magazine that blocks of a size lie in.

use super::magazine::Magazine;
use crate::extents::MOST_UNITS;
use crate::policy::caching::MOST_BYTES;
use crate::policy::size_classes::{CLASS_BITS, EXACT_FROM, class_of, is_rounded_in_throughput_mode, rounded};

/// How a pool rounds sizes. See the [module](super).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    unit_shift: u32,
    /// Requests of at most so many bytes are rounded to a class.
    rounded_to: u64,
    /// How a magazine for longer ones is looked up: by steps of this width, which is no wider than a class is there.
    large_shift: u32,
    /// How far the magazines of so many such steps lie behind those of as many units.
    large_from: usize,
}

/// Magazines in a stream cache: one for each class of any size up to the most units that a block can have.
pub(super) const MAGAZINES: usize = class_of(MOST_UNITS) as usize + 1;

/// Names a magazine of a stream cache, by its distance in bytes from the start of the magazines: it is added as it is.
/// The first stride is taken. At most `MAGAZINES` strides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// For units of `unit_bytes`, a power of two.
    pub(crate) fn new(unit_bytes: u64) -> Self {
        debug_assert!(EXACT_FROM <= LOOKED_UP as u64 * unit_bytes, "units are longer");
        // A block of `EXACT_FROM` bytes is not rounded, nor is what becomes one in whole units.
        let rounded_to = EXACT_FROM.saturating_sub(unit_bytes);
        let unit_shift = unit_bytes.ilog2();
        let large_shift = unit_shift.max(EXACT_FROM.ilog2() - CLASS_BITS);
        let classes = (large_shift - unit_shift) << CLASS_BITS;
        Self { unit_shift, rounded_to, large_shift, large_from: classes as usize * size_of::<Magazine>() }
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
        if is_rounded_in_throughput_mode(bytes) { rounded(units) } else { units }
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
        MagazineIndex(usize::from(unsafe { *PLACES.get_unchecked(units_less_one) }))
    }

    /// The magazine with blocks for a longer request.
    ///
    /// # Safety
    /// It is [rounded in throughput mode](is_rounded_in_throughput_mode).
    #[inline]
    pub(super) unsafe fn magazine_for_large(self, bytes: u64) -> MagazineIndex {
        debug_assert!(is_rounded_in_throughput_mode(bytes) && !self.is_rounded(bytes));
        let step = ((bytes - 1) >> self.large_shift) as usize;
        // SAFETY: the longest such request has as many steps as the table has places.
        MagazineIndex(usize::from(unsafe { *PLACES.get_unchecked(step) }) + self.large_from)
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

/// How many lengths have their magazines' places in a table.
const LOOKED_UP: usize = 4096;

const _: () = assert!(MOST_BYTES <= (LOOKED_UP as u64 * EXACT_FROM) >> CLASS_BITS);

/// The places of the magazines, by the length less one. To look a place up costs less than to find a leading bit, on some
/// processors.
static PLACES: [u16; LOOKED_UP] = {
    let mut all = [0; LOOKED_UP];
    let mut at = 0;
    while at < all.len() {
        all[at] = place_of(at as u64 + 1);
        at += 1;
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
        let sizes = Sizes::new(512);
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
        let (sizes, longest) = (Sizes::new(512), 512 << 20);
        assert_eq!(sizes.bytes(sizes.units_in_throughput_mode(longest - 512)), longest);
        assert_eq!(sizes.bytes(sizes.units_in_throughput_mode(longest + 1)), longest + 512);
    }

    #[test]
    fn looking_a_class_up_finds_the_class_of_the_block() {
        for unit in [256, 512, 4096, 64 << 10, 2 << 20] {
            let sizes = Sizes::new(unit);
            let around = |at: u64| [at - 1, at, at + 1, at + unit];
            let edges =
                (10..29).flat_map(|power| around(1 << power).into_iter().chain(around(3 << (power - 1))));
            let spread =
                (1..2 << 20).step_by(113 * ONE_IN).chain((2 << 20..MOST_BYTES).step_by(77_773 * ONE_IN));
            for bytes in spread.chain(edges).chain([MOST_BYTES]) {
                let found = if sizes.is_rounded(bytes) {
                    // SAFETY: just asked.
                    unsafe { sizes.magazine_for_rounded(bytes) }
                } else {
                    // SAFETY: it is no longer than the longest.
                    unsafe { sizes.magazine_for_large(bytes) }
                };
                assert_eq!(found, MagazineIndex::of(sizes.exact_units(bytes)), "{bytes} of {sizes:?}");
            }
        }
    }

    #[test]
    fn units_longer_than_small_blocks_are_never_rounded() {
        let sizes = Sizes::new(2 << 20);
        assert!(!sizes.is_rounded(1) && sizes.units(1) == 1);
    }
}
