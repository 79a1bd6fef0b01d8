//! Which images of a batch a rank works on.

/// The share of a rank in each batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Parts that a rank works on one after another.
    pub(crate) parts: usize,
}

/// Images of a batch that are worked on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) images: &'a [u32],
    /// Images of the whole batch, on all ranks.
    pub(crate) of: usize,
    /// Which part of the rank's share it is.
    pub(crate) part: usize,
    /// Whether it is the rank's first piece of the batch, and its last.
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
}

impl Share {
    /// Pieces that a batch is cut into.
    pub(crate) fn pieces(&self) -> usize {
        self.ranks * self.parts
    }

    /// This rank's pieces of a batch. Where it has no image of a small batch, that is one empty piece.
    pub(crate) fn of<'a>(&self, batch: &'a [u32]) -> Vec<Piece<'a>> {
        let of = batch.len();
        let start = |piece: usize| of * piece / self.pieces();
        let piece = |part: usize| {
            let at = self.rank * self.parts + part;
            Piece { images: &batch[start(at)..start(at + 1)], of, part, is_first: false, is_last: false }
        };
        let mut pieces: Vec<_> =
            (0..self.parts).map(piece).filter(|piece| !piece.images.is_empty()).collect();
        if pieces.is_empty() {
            pieces.push(Piece { images: &[], of, part: 0, is_first: true, is_last: true });
        }
        pieces[0].is_first = true;
        if let Some(last) = pieces.last_mut() {
            last.is_last = true;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_image_of_a_batch_is_in_one_piece_of_one_rank() {
        let batch: Vec<u32> = (0..64).collect();
        for (ranks, parts) in [(1, 1), (2, 1), (4, 1), (3, 2), (1, 7), (5, 3)] {
            for count in [64, 63, 16, 15, 3, 1] {
                let share = |rank| Share { rank, ranks, parts };
                let pieces: Vec<_> = (0..ranks).map(|rank| share(rank).of(&batch[..count])).collect();
                let images: Vec<u32> =
                    pieces.iter().flatten().flat_map(|piece| piece.images).copied().collect();
                assert_eq!(images, batch[..count]);
                let sizes = pieces.iter().flatten().map(|piece| piece.images.len());
                assert!(sizes.max().unwrap() <= count.div_ceil(ranks * parts));
                for of_rank in &pieces {
                    assert_eq!(of_rank.iter().filter(|piece| piece.is_last).count(), 1);
                    assert_eq!(of_rank.iter().position(|piece| piece.is_first), Some(0));
                    assert!(of_rank.len() == 1 || of_rank.iter().all(|piece| !piece.images.is_empty()));
                    assert!(of_rank.iter().all(|piece| piece.of == count && piece.part < parts));
                }
            }
        }
    }
}
