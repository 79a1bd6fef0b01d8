//! How much a file may hold.

/// What a file may hold at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes, after decompression.
    pub bytes: u64,
    /// Lists, tuples, dicts, strings, numbers and references in a pickle; events and labels in a recording.
    pub values: usize,
    /// Bytes of memory that what is read may take, with the room that tables grow into.
    pub memory: u64,
}

impl Default for Limits {
    /// 8 GiB, 2 billion values (some 20 million events with 60 frames each), and 32 GiB of memory, which honest files
    /// of that many values do not come to.
    fn default() -> Self {
        Self { bytes: 8 << 30, values: 2_000_000_000, memory: 32 << 30 }
    }
}

impl Limits {
    /// These limits for a file of `bytes` bytes, compressed or not, which may take memory in proportion to them: 256
    /// bytes for each, and 512 MiB. By this count the gzipped traces that were recorded take 45 to 56 bytes for each of
    /// theirs, and some 300 for each event.
    pub fn for_file_of(self, bytes: u64) -> Self {
        let memory = bytes.saturating_mul(256).saturating_add(512 << 20);
        Self { memory: self.memory.min(memory), ..self }
    }
}
