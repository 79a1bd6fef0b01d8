//! Two streams that share the work of a step.
//!
//! The main stream has the chain of activations and of their gradients. The gradients of the weights may have a second
//! stream: they depend on the chain, but nothing waits for them before the update.
//!
//! **Memory.** All tensors are the main stream's. The second one works between [`fork`](Lanes::fork) and
//! [`join`](Lanes::join), and what it uses is kept until the streams join. So every tensor is freed on the stream that it was
//! allocated on, after all work on it, and an allocator never has to order the two streams.

use millpond::Stream;

use crate::{Memory, Result, Tensor};

/// Bytes that the second stream reads, beyond which the streams join before its next work. So large batches take little more
/// memory than with one stream. What that costs on a GPU is not measured.
const MOST_READ: u64 = 16 << 20;

/// The memory of a main stream, and a second stream if there is one.
#[derive(Debug)]
pub struct Lanes {
    main: Memory,
    /// For memory that only the second stream uses.
    second: Option<Memory>,
    /// What the second stream uses since the last join.
    kept: Vec<Tensor>,
    /// Bytes of it that the stream reads.
    read: u64,
}

impl Lanes {
    /// Work on the stream of `main`, and beside it on `second`.
    pub fn new(main: Memory, second: Option<Stream>) -> Self {
        let second = second.map(|stream| main.on(stream));
        Self { main, second, kept: Vec::new(), read: 0 }
    }

    /// The memory of all tensors.
    pub fn main(&self) -> &Memory {
        &self.main
    }

    /// The stream of the gradients, and the memory that its work alone uses.
    pub fn gradients(&self) -> &Memory {
        self.second.as_ref().unwrap_or(&self.main)
    }

    /// Gives the second stream work that reads `read` and writes `out`: it waits for what the main one has so far, and `out`
    /// is its own until the streams join.
    ///
    /// # Errors
    /// The device's own, here and below.
    pub fn fork(&mut self, read: [&Tensor; 2], out: Tensor) -> Result<Tensor> {
        let bytes: u64 = read.iter().map(|tensor| tensor.bytes()).sum();
        if self.read + bytes > MOST_READ {
            self.join()?;
        }
        let Some(second) = &self.second else { return Ok(out) };
        self.read += bytes;
        second.stream().wait_for(self.main.stream())?;
        self.kept.extend(read.map(Tensor::share));
        self.kept.push(out.share());
        Ok(out.written_on(second))
    }

    /// Has the main stream wait for what the second one has so far.
    ///
    /// # Errors
    /// As above.
    pub fn join(&mut self) -> Result<()> {
        if let Some(second) = self.second.as_ref().filter(|_| !self.kept.is_empty()) {
            self.main.stream().wait_for(second.stream())?;
            self.kept.clear();
        }
        self.read = 0;
        Ok(())
    }
}

impl Drop for Lanes {
    /// What is kept is freed after the work that uses it.
    fn drop(&mut self) {
        if self.join().is_err() {
            // A device that refuses both does no more work.
            self.gradients().stream().synchronize().ok();
        }
    }
}
