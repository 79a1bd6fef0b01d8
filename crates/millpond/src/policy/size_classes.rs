//! Size classes: which lengths are rounded, and to what.
//!
//! Lengths are in units. Those of up to 16 units have classes of their own. Then classes are 2 units wide up to 32
//! units, 4 up to 64, and so on. So the longest of a class is a whole number of eighths of a power of two, and
//! powers of two waste nothing.

use super::caching::MOST_BYTES;

/// Bits of a length that its class keeps, besides the leading one: eight classes a doubling. An eighth is
/// wasted at most.
pub(crate) const CLASS_BITS: u32 = 3;

/// Bytes from which on blocks keep their exact size, outside of throughput mode.
pub(crate) const EXACT_FROM: u64 = 1 << 20;

/// Whether a request of so many bytes is rounded to a class, and its block cached, in throughput mode. (Zero bytes wrap around.)
#[inline]
pub(crate) fn is_rounded_in_throughput_mode(bytes: u64) -> bool {
    bytes.wrapping_sub(1) < MOST_BYTES
}

/// Whether the limits and the device leave enough, beside what is held, to round in throughput mode: a quarter. What a block
/// has to spare is missing where memory runs out. (Prompts in turn, with 22 GiB, need 1.008 of what they request, and 1.018 if
/// this is not looked at; 86 recordings need 1.0064 and 1.0066.)
pub(crate) fn is_enough_to_round(left: u64, held: u64) -> bool {
    left >= held / 4
}

/// Bytes that the class of a cached block may waste: an eighth of the longest. The pool may grow by as many, however little is live.
/// (By 8 MiB, mixed sizes of up to 16 MiB on one thread took 420 ns a pair, not 28. A block of 1 MiB that one thread hands to another took
/// three times as long.)
pub(super) fn most_wasted() -> u64 {
    MOST_BYTES >> CLASS_BITS
}

/// How often classes have doubled their width up to this length, less one.
const fn doublings(last: u64) -> u32 {
    (last | 1).ilog2().saturating_sub(CLASS_BITS)
}

/// The class of a length.
pub(crate) const fn class_of(units: u64) -> u32 {
    let last = units - 1;
    (doublings(last) << CLASS_BITS) + (last >> doublings(last)) as u32
}

/// The longest length of the class.
pub(crate) const fn rounded(units: u64) -> u64 {
    let last = units - 1;
    (last | ((1 << doublings(last)) - 1)) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many lengths one is looked at: Miri takes minutes for all.
    const ONE_IN: usize = if cfg!(miri) { 199 } else { 1 };

    #[test]
    fn a_rounded_length_is_the_longest_of_its_class() {
        for units in (1..100_000).step_by(ONE_IN) {
            assert_eq!(class_of(rounded(units)), class_of(units));
            assert_eq!(class_of(rounded(units) + 1), class_of(units) + 1);
            assert!(class_of(units) <= class_of(units + 1));
        }
        for power in 0..40 {
            assert_eq!(rounded(1 << power), 1 << power);
        }
    }
}
