//! The rules of size: what a request is rounded to, and how large a segment for it is. Also when a block is split, and
//! when it is too large to be given out whole.

use millpond::{Error, Result};

use super::options::{CachingOptions, OWN_SEGMENT};
use crate::books::round_up;

/// Bytes that blocks are multiples of.
pub(super) const UNIT: u64 = 512;
/// Bytes of the largest request that goes to the small pool.
const SMALL_REQUEST: u64 = 1 << 20;
/// Bytes of a segment, or of a page of an expandable segment, of the small pool.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Bytes that segments for one request are multiples of.
const SEGMENT_STEP: u64 = 2 << 20;
/// Bytes that no request of any device reaches; rounding below it does not overflow.
const ABSURD: u64 = 1 << 62;

/// The two pools of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// Requests up to 1 MiB, packed into segments of 2 MiB.
    Small,
    /// All other requests.
    Large,
}

impl Size {
    /// The pool for a rounded request.
    pub(super) fn of(bytes: u64) -> Self {
        if bytes <= SMALL_REQUEST { Self::Small } else { Self::Large }
    }
}

impl CachingOptions {
    /// The block size for a request of `bytes`.
    ///
    /// # Errors
    /// [`Error::SizeOverflow`] for more bytes than any device has.
    pub(super) fn rounded(&self, bytes: u64) -> Result<u64> {
        if bytes > ABSURD {
            return Err(Error::SizeOverflow { bytes, count: 1 });
        }
        let divisions = self.roundup_power2_divisions.for_bytes(bytes);
        if divisions > 1 && bytes > UNIT * divisions {
            return Ok(next_division(bytes, divisions));
        }
        round_up(bytes.max(1), UNIT)
    }

    /// Bytes of the segment to be allocated for a rounded request that no free block can serve.
    pub(super) fn segment_bytes(&self, rounded: u64) -> u64 {
        if rounded <= SMALL_REQUEST {
            SMALL_SEGMENT
        } else if rounded < OWN_SEGMENT {
            self.large_segment_size
        } else {
            rounded.next_multiple_of(SEGMENT_STEP)
        }
    }

    /// Bytes of the pages that an expandable segment grows by.
    pub(super) fn page_bytes(&self, size: Size) -> u64 {
        match size {
            Size::Small => SMALL_SEGMENT,
            Size::Large => self.large_segment_size,
        }
    }

    /// Whether what is left of a block of `block` bytes, after `rounded` are taken from it, becomes a block.
    pub(super) fn splits(&self, size: Size, block: u64, rounded: u64) -> bool {
        let rest = block - rounded;
        if size == Size::Small || self.expandable_segments {
            rest >= UNIT
        } else {
            rounded < self.max_split_size && rest > SMALL_REQUEST
        }
    }

    /// Whether the best fit may serve the request: an oversize block only serves requests nearly as large,
    /// since it is never split.
    pub(super) fn may_serve(&self, block: u64, rounded: u64) -> bool {
        if rounded < self.max_split_size {
            block < self.max_split_size
        } else {
            block < rounded.saturating_add(self.max_non_split_rounding)
        }
    }
}

/// `bytes` rounded up to the next of `divisions` equal steps between two powers of two.
fn next_division(bytes: u64, divisions: u64) -> u64 {
    let step = (1 << bytes.ilog2()) >> divisions.ilog2();
    bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_to_512_bytes_or_divisions_of_a_power() {
        let plain = CachingOptions::default();
        let rounded = [1, 512, 513, 1_503_232].map(|bytes| plain.rounded(bytes).unwrap());
        assert_eq!(rounded, [512, 512, 1024, 1_503_232]);
        let divided: CachingOptions = "roundup_power2_divisions:4".parse().unwrap();
        let rounded = [1200, 2048, 2049, 5000, (5 << 30) + 1].map(|bytes| divided.rounded(bytes).unwrap());
        assert_eq!(rounded, [1536, 2048, 2560, 5120, 6 << 30], "1200 is below 4 units, and 4 divisions");
        assert!(matches!(plain.rounded(u64::MAX), Err(Error::SizeOverflow { .. })));
    }

    #[test]
    fn segments_are_2_or_20_mebibytes_or_the_request_rounded() {
        const MIB: u64 = 1 << 20;
        let options = CachingOptions::default();
        let segments = [MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 10 * MIB + 512];
        let segments = segments.map(|bytes| options.segment_bytes(bytes) / MIB);
        assert_eq!(segments, [2, 20, 20, 10, 12]);
    }

    #[test]
    fn small_blocks_split_at_512_bytes_large_above_a_mebibyte() {
        const MIB: u64 = 1 << 20;
        let options = CachingOptions::default();
        assert!(options.splits(Size::Small, 1024, 512));
        assert!(!options.splits(Size::Large, 5 * MIB, 4 * MIB));
        assert!(options.splits(Size::Large, 5 * MIB + 512, 4 * MIB));
        let capped: CachingOptions = "max_split_size_mb:40".parse().unwrap();
        assert!(!capped.splits(Size::Large, 80 * MIB, 40 * MIB), "oversize blocks are not split");
        assert!(!capped.may_serve(40 * MIB, 39 * MIB), "nor do they serve small requests");
        assert!(capped.may_serve(60 * MIB - 512, 40 * MIB) && !capped.may_serve(60 * MIB, 40 * MIB));
    }
}
