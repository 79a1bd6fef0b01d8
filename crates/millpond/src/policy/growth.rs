//! Growth: whether requests in a size class are growing, each a little longer than the block freed next. So grow the
//! keys and values of a text, by a word at a time.
//!
//! Exact sizes serve such a program badly. No free block is as long as the next request: each step moves pages, and
//! leaves holes that no later block fits. So a growing request gets [a little
//! more](super::size_classes::rounded_to_grow), and the next ones find blocks of just their length. docs/lab/pages.md has
//! what that saves.

/// What is remembered of the large blocks of one magazine, in it or not.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Growth {
    /// Bytes that were asked for in the block that was freed last; 0 for none.
    last: u64,
    /// Steps in a row so far, up to those that are enough.
    steps: u32,
}

/// A request grows if it is longer than the block freed last by at most this part of it.
const MOST_GROWN_PART: u64 = 64;

/// Steps in a row from which on requests are growing. (With one, a job passes 1.02. 2 to 6 are alike.)
const STEPS: u32 = 4;

impl Growth {
    /// A block was freed, of which so many bytes were asked for.
    pub(crate) fn note_free(&mut self, requested: u64) {
        self.last = requested;
    }

    /// So many bytes are asked for; returns whether requests are growing. `last` is what was asked for in the block freed
    /// last, where that is known better.
    pub(crate) fn note_alloc(&mut self, bytes: u64, last: Option<u64>) -> bool {
        let last = last.unwrap_or(self.last);
        let by = bytes.wrapping_sub(last);
        if last != 0 && by != 0 {
            // What is shorter wraps around.
            let grows = by <= last / MOST_GROWN_PART;
            self.steps = if grows { (self.steps + 1).min(STEPS) } else { 0 };
        }
        self.steps >= STEPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::MIB;

    /// Whether each of a row of blocks was taken to grow, where each is freed once the next one is there.
    fn in_a_row(growth: &mut Growth, sizes: impl IntoIterator<Item = u64>) -> Vec<bool> {
        let mut last = 0;
        let mut one = |bytes| {
            let grows = growth.note_alloc(bytes, None);
            growth.note_free(last);
            last = bytes;
            grows
        };
        sizes.into_iter().map(&mut one).collect()
    }

    #[test]
    fn after_a_few_slightly_longer_requests_blocks_grow() {
        let mut growth = Growth::default();
        let grows = in_a_row(&mut growth, (0..40).map(|step| 5 * MIB + step * 4096));
        assert_eq!(grows.iter().position(|grows| *grows), Some(STEPS as usize + 1));
        assert!(grows[STEPS as usize + 1..].iter().all(|grows| *grows));
    }

    #[test]
    fn blocks_of_any_size_or_one_do_not_grow() {
        // A multiplicative generator: sizes from 8 to 9 MiB, of one magazine.
        let any = std::iter::successors(Some(1_u64), |last| Some(last * 48_271 % 0x7fff_ffff));
        let any = any.map(|number| 8 * MIB + number % 2048 * 512).take(2000);
        let mut growth = Growth::default();
        let grows = in_a_row(&mut growth, any).iter().filter(|grows| **grows).count();
        // A next size is longer by up to a 64th, 128 KiB, once in eight times; `STEPS` in a row are one in 4,096.
        assert!(grows < 20, "{grows} of 2000 were taken to grow");
        assert!(in_a_row(&mut Growth::default(), [3 * MIB; 100]).iter().all(|grows| !grows));
    }

    #[test]
    fn two_that_take_turns_go_on_growing() {
        let mut growth = Growth::default();
        // Forty blocks of one text, then forty of another, each a word longer than before.
        let mut last = 0;
        for step in 0..20 {
            for text in [5 * MIB, 5 * MIB + 300_000] {
                for layer in 0..40 {
                    let bytes = text + step * 4096;
                    let grows = growth.note_alloc(bytes, Some(last));
                    assert!(grows || step == 0 || layer < 1 + STEPS as usize, "{step} {layer}");
                    last = bytes - 4096;
                    growth.note_free(last);
                }
            }
        }
        // They end, and others come.
        in_a_row(&mut growth, [8, 7, 8, 6, 8, 7, 8].map(|count| count * MIB));
        assert!(!growth.note_alloc(9 * MIB, None));
    }
}
