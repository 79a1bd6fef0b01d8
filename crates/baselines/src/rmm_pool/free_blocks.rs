//! Free blocks of one stream: the smallest that fits is taken, and neighbours are one.

use std::collections::{BTreeMap, BTreeSet};

/// By address: bytes, and whether the block begins a chunk of the device's, which never joins what lies before.
#[derive(Debug, Default)]
pub(super) struct FreeBlocks {
    by_address: BTreeMap<u64, (u64, bool)>,
    by_size: BTreeSet<(u64, u64)>,
}

/// A stretch of free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FreeBlock {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) begins_chunk: bool,
}

impl FreeBlocks {
    /// Takes the smallest block that has so many bytes.
    pub(super) fn take(&mut self, bytes: u64) -> Option<FreeBlock> {
        let &(_, address) = self.by_size.range((bytes, 0)..).next()?;
        self.remove(address)
    }

    fn remove(&mut self, address: u64) -> Option<FreeBlock> {
        let (bytes, begins_chunk) = self.by_address.remove(&address)?;
        self.by_size.remove(&(bytes, address));
        Some(FreeBlock { address, bytes, begins_chunk })
    }

    pub(super) fn insert(&mut self, mut block: FreeBlock) {
        let before = self.by_address.range(..block.address).next_back();
        let before = before.map(|(address, (bytes, _))| (*address, address + bytes));
        if let Some((address, _)) = before.filter(|(_, end)| *end == block.address && !block.begins_chunk)
            && let Some(joined) = self.remove(address)
        {
            block = FreeBlock { bytes: joined.bytes + block.bytes, ..joined };
        }
        let behind = block.address + block.bytes;
        if self.by_address.get(&behind).is_some_and(|(_, begins_chunk)| !begins_chunk)
            && let Some(joined) = self.remove(behind)
        {
            block.bytes += joined.bytes;
        }
        self.by_address.insert(block.address, (block.bytes, block.begins_chunk));
        self.by_size.insert((block.bytes, block.address));
    }

    /// Takes all blocks of another list.
    pub(super) fn merge(&mut self, other: Self) {
        other.blocks().for_each(|block| self.insert(block));
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = FreeBlock> {
        self.by_address.iter().map(|(&address, &(bytes, begins_chunk))| FreeBlock {
            address,
            bytes,
            begins_chunk,
        })
    }

    /// Takes what lies in these addresses, all of which are free or not in this list.
    pub(super) fn remove_within(&mut self, from: u64, to: u64) {
        let within: Vec<u64> = self.by_address.range(from..to).map(|(address, _)| *address).collect();
        within.into_iter().for_each(|address| {
            self.remove(address);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_fits_is_taken_and_neighbours_are_one() {
        let block = |address, bytes, begins_chunk| FreeBlock { address, bytes, begins_chunk };
        let mut free = FreeBlocks::default();
        [block(0, 1024, true), block(4096, 512, false), block(8192, 256, true)]
            .into_iter()
            .for_each(|block| free.insert(block));
        assert_eq!(free.take(300), Some(block(4096, 512, false)));
        assert_eq!(free.take(2048), None);
        free.insert(block(1024, 1024, false));
        // A chunk of its own.
        free.insert(block(2048, 512, true));
        assert_eq!(
            free.blocks().collect::<Vec<_>>(),
            [block(0, 2048, true), block(2048, 512, true), block(8192, 256, true)]
        );
        free.remove_within(0, 2048);
        assert_eq!(free.take(1), Some(block(8192, 256, true)));
    }
}
