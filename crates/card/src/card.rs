//! Which card the process is told that it has: `MILLPOND_CARD=name|bytes|major|minor|multiprocessors|count`.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// What programs ask a card for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The compute capability.
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
    pub(crate) multiprocessors: c_int,
    /// How many of them the process sees.
    pub(crate) count: c_int,
}

impl Card {
    /// As the environment says; an 80 GB H100 where it says nothing, or not this.
    pub(crate) fn get() -> &'static Self {
        static CARD: OnceLock<Card> = OnceLock::new();
        CARD.get_or_init(|| {
            let said = std::env::var("MILLPOND_CARD").ok().and_then(|text| Self::parsed(&text));
            said.unwrap_or_else(|| Self {
                name: "NVIDIA H100 80GB HBM3".to_owned(),
                bytes: 80 << 30,
                major: 9,
                minor: 0,
                multiprocessors: 132,
                count: 1,
            })
        })
    }

    fn parsed(text: &str) -> Option<Self> {
        let mut parts = text.split('|');
        let card = Self {
            name: parts.next()?.to_owned(),
            bytes: parts.next()?.parse().ok()?,
            major: parts.next()?.parse().ok()?,
            minor: parts.next()?.parse().ok()?,
            multiprocessors: parts.next()?.parse().ok()?,
            count: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(card)
    }

    /// Bytes of shared memory that a block may ask for, and that a multiprocessor has (CUDA C++ programming guide, technical
    /// specifications by compute capability).
    fn shared_memory(&self) -> (c_int, c_int) {
        match (self.major, self.minor) {
            (9.., _) if self.major < 12 => (227 << 10, 228 << 10),
            (8, 0 | 7) => (163 << 10, 164 << 10),
            (7, 5) => (64 << 10, 64 << 10),
            (7, _) => (96 << 10, 96 << 10),
            _ => (99 << 10, 100 << 10),
        }
    }

    /// The compute capability that the kernels were compiled for that such a card runs: the nearest below that PyTorch's builds
    /// have. CUB looks for exactly this one.
    pub(crate) fn compiled_for(&self) -> c_int {
        const BUILT: [c_int; 9] = [50, 60, 70, 75, 80, 86, 90, 100, 120];
        let own = self.major * 10 + self.minor;
        BUILT.into_iter().rev().find(|built| *built <= own).unwrap_or(own)
    }

    /// What `cudaDeviceGetAttribute` answers, by the number of the attribute (`cudaDeviceAttr` of driver_types.h).
    pub(crate) fn attribute(&self, number: c_int) -> c_int {
        match number {
            1..=3 => 1024,
            4 => 64,
            5 => c_int::MAX,
            6 | 7 => 65_535,
            8 => 48 << 10,
            9 => 64 << 10,
            10 => 32,
            12 | 82 => 65_536,
            16 => self.multiprocessors,
            38 => 50 << 20,
            39 => 2048,
            75 => self.major,
            76 => self.minor,
            81 => self.shared_memory().1,
            97 => self.shared_memory().0,
            // Unified addresses, concurrent kernels, cooperative launches.
            31 | 41 | 95 => 1,
            106 => 32,
            _ => 0,
        }
    }

    /// Fills a `cudaDeviceProp` of this layout.
    ///
    /// # Safety
    /// `properties` has room for the layout's bytes.
    pub(crate) unsafe fn fill(&self, properties: *mut c_void, layout: &Layout) {
        let mut bytes = vec![0u8; layout.bytes];
        let name = self.name.as_bytes();
        let length = name.len().min(255);
        bytes[..length].copy_from_slice(&name[..length]);
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(288, &self.bytes.to_ne_bytes());
        put(296, &(48u64 << 10).to_ne_bytes());
        put(352, &(64u64 << 10).to_ne_bytes());
        put(368, &512u64.to_ne_bytes());
        let (a_block, a_multiprocessor) = self.shared_memory();
        put(layout.shared_of_a_multiprocessor, &(a_multiprocessor as u64).to_ne_bytes());
        put(layout.shared_of_a_block, &(a_block as u64).to_ne_bytes());
        let numbers = [
            (304, 65_536),
            (308, 32),
            (320, 1024),
            (324, 1024),
            (328, 1024),
            (332, 64),
            (336, c_int::MAX),
            (340, 65_535),
            (344, 65_535),
            (360, self.major),
            (364, self.minor),
            (layout.multiprocessors, self.multiprocessors),
            (layout.concurrent_kernels, 1),
            (layout.unified_addresses, 1),
            (layout.l2_bytes, 50 << 20),
            (layout.threads_of_a_multiprocessor, 2048),
            (layout.registers_of_a_multiprocessor, 65_536),
            (layout.cooperative_launch, 1),
            (layout.blocks_of_a_multiprocessor, 32),
        ];
        numbers.into_iter().for_each(|(at, number)| put(at, &number.to_ne_bytes()));
        // SAFETY: the caller has the room.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), properties.cast(), bytes.len()) };
    }
}

/// Where a version of CUDA has the fields of `cudaDeviceProp` that do not lie where they always did (driver_types.h).
#[derive(Debug)]
pub(crate) struct Layout {
    bytes: usize,
    multiprocessors: usize,
    concurrent_kernels: usize,
    unified_addresses: usize,
    l2_bytes: usize,
    threads_of_a_multiprocessor: usize,
    shared_of_a_multiprocessor: usize,
    registers_of_a_multiprocessor: usize,
    cooperative_launch: usize,
    shared_of_a_block: usize,
    blocks_of_a_multiprocessor: usize,
}

impl Layout {
    pub(crate) const CUDA_12: Self = Self {
        bytes: 1032,
        multiprocessors: 388,
        concurrent_kernels: 576,
        unified_addresses: 604,
        l2_bytes: 616,
        threads_of_a_multiprocessor: 624,
        shared_of_a_multiprocessor: 640,
        registers_of_a_multiprocessor: 648,
        cooperative_launch: 688,
        shared_of_a_block: 696,
        blocks_of_a_multiprocessor: 712,
    };

    pub(crate) const CUDA_13: Self = Self {
        bytes: 1008,
        multiprocessors: 384,
        concurrent_kernels: 560,
        unified_addresses: 588,
        l2_bytes: 596,
        threads_of_a_multiprocessor: 604,
        shared_of_a_multiprocessor: 624,
        registers_of_a_multiprocessor: 632,
        cooperative_launch: 668,
        shared_of_a_block: 672,
        blocks_of_a_multiprocessor: 688,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_as_it_is_said() {
        let card = Card::parsed("RTX 4090|25769803776|8|9|128|2").unwrap();
        assert_eq!((card.name.as_str(), card.bytes >> 30, card.count), ("RTX 4090", 24, 2));
        assert_eq!(card.compiled_for(), 86);
        assert_eq!([75, 76, 16, 97].map(|number| card.attribute(number)), [8, 9, 128, 99 << 10]);
        for wrong in ["", "H100", "H100|x|9|0|132|1", "H100|1|9|0|132|1|more"] {
            assert_eq!(Card::parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn properties_lie_where_each_cuda_has_them() {
        let card = Card::parsed("A100|85899345920|8|0|108|1").unwrap();
        for (layout, at) in [(&Layout::CUDA_12, 388), (&Layout::CUDA_13, 384)] {
            let mut bytes = vec![0xffu8; layout.bytes];
            // SAFETY: the array has so many bytes.
            unsafe { card.fill(bytes.as_mut_ptr().cast(), layout) };
            assert_eq!(&bytes[..5], b"A100\0");
            let number = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!([360, 364, at].map(number), [8, 0, 108]);
        }
    }
}
