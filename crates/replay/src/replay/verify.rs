//! Marks in real memory: written into each block when it is allocated, looked for when it is freed.
//!
//! A mark names its block and its offset in it. Marks lie at both ends of a block and at the start of up to
//! [`MOST_MARKS`] of its pages, where two blocks that share memory by mistake would meet. All of it is work
//! on the block's stream, in order with the allocations and frees, and the host does not wait for it until
//! some megabytes of marks are to be compared.

use millpond::device::{DevicePtr, Kind};
use millpond_baselines::Allocator;

use super::{Played, Program, ReplayError, Stage, Step};

/// Marks in one block at most.
const MOST_MARKS: u64 = 64;

/// Bytes of a mark.
const MARK: usize = 16;

/// Marks lie this far apart: a page.
const APART: u64 = 2 << 20;

/// Marks read back before the host waits and compares them.
const BATCH: usize = 1 << 16;

/// On the host, larger blocks get marks only: filling them would take memory that the machine may not have.
const FILL_ON_HOST: u64 = 64 << 10;

/// A mark, as it is written.
fn mark(block: u32, offset: u64) -> [u8; MARK] {
    let mut bytes = [0; MARK];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    // Never all zero, as fresh memory is.
    bytes[8..].copy_from_slice(&(u64::from(block) + 1).to_le_bytes());
    bytes
}

/// Where a block's marks lie, and how much of each fits.
fn marks(size: u64) -> impl Iterator<Item = (u64, usize)> {
    let length = size.min(MARK as u64);
    let pages = size / APART;
    let step = pages.div_ceil(MOST_MARKS).max(1);
    let inside = (0..).map(move |at| at * step * APART).take_while(move |at| at + length <= size);
    let last = size - length;
    inside
        .filter(move |&at| at == 0 || at + length <= last)
        .chain((last >= MARK as u64).then_some(last))
        .map(move |at| (at, length as usize))
}

/// A mark that was read back and is to be compared.
#[derive(Debug, Clone, Copy)]
struct Expected {
    block: u32,
    offset: u64,
    length: usize,
}

/// Writes and compares marks on the device of a stage.
struct Verifier<'a> {
    stage: &'a Stage,
    /// Where marks are read to. Its memory stays where it is while copies are under way.
    read: Box<[[u8; MARK]]>,
    expected: Vec<Expected>,
    /// The stream that each block was marked on.
    marked_on: Vec<u16>,
    checked: u64,
}

impl Stage {
    /// Plays a program to its end and frees what is live then, with marks in each block.
    ///
    /// # Errors
    /// [`ReplayError::Corrupt`] for a block that did not keep its marks; else as for [`play`](Self::play).
    pub fn play_verified(
        &self,
        allocator: &dyn Allocator,
        program: &Program,
        blocks: &mut [DevicePtr],
    ) -> Result<(Played, u64), ReplayError> {
        let mut verifier = Verifier {
            stage: self,
            read: vec![[0; MARK]; BATCH].into_boxed_slice(),
            expected: Vec::with_capacity(BATCH),
            marked_on: vec![0; program.blocks],
            checked: 0,
        };
        let mut total = Played { events: 0, took: std::time::Duration::ZERO, oom: None };
        for (at, step) in program.steps.iter().enumerate() {
            if !step.alloc {
                self.untimed(|| verifier.read_back(step, blocks[step.block as usize]))?;
            }
            let played = self.play(allocator, std::slice::from_ref(step), blocks)?;
            total.took += played.took;
            if let Some(oom) = played.oom {
                total.oom = Some(super::Oom { event: at, ..oom });
                break;
            }
            total.events += 1;
            if step.alloc {
                self.untimed(|| verifier.write(step, blocks[step.block as usize]))?;
            }
        }
        let live = program.steps.iter().filter(|step| step.alloc);
        let live = live.filter(|step| !blocks[step.block as usize].is_null());
        self.untimed(|| {
            for step in live {
                verifier.read_back(step, blocks[step.block as usize])?;
            }
            verifier.compare()
        })?;
        Ok((total, verifier.checked))
    }

    /// Work that is not the allocator's: its waits are no time in device calls.
    fn untimed<R>(&self, work: impl FnOnce() -> R) -> R {
        let Some(watched) = &self.watched else { return work() };
        watched.pause();
        let result = work();
        watched.resume();
        result
    }
}

impl Verifier<'_> {
    fn write(&mut self, step: &Step, ptr: DevicePtr) -> Result<(), ReplayError> {
        let device = self.stage.context().device();
        let stream = self.stage.stream(step.stream).handle();
        if step.size == 0 {
            return Ok(());
        }
        self.marked_on[step.block as usize] = step.stream;
        if device.properties().kind == Kind::Cuda || step.size <= FILL_ON_HOST {
            // SAFETY: the block is live and this is its stream, so that no other work uses the range.
            unsafe { device.memset(ptr, step.block as u8, step.size, stream) }?;
        }
        for (offset, length) in marks(step.size) {
            let mark = mark(step.block, offset);
            // SAFETY: as above; the mark is read before the call returns.
            unsafe { device.copy_from_host(ptr.offset(offset), mark.as_ptr(), length as u64, stream) }?;
        }
        Ok(())
    }

    fn read_back(&mut self, step: &Step, ptr: DevicePtr) -> Result<(), ReplayError> {
        if step.size == 0 {
            return Ok(());
        }
        if self.expected.len() + MOST_MARKS as usize + 2 > BATCH {
            self.compare()?;
        }
        let stream = self.stage.stream(step.stream);
        let marked_on = self.marked_on[step.block as usize];
        if marked_on != step.stream {
            // The program had ordered the two; the trace does not say how.
            stream.wait_for(self.stage.stream(marked_on))?;
        }
        let stream = stream.handle();
        for (offset, length) in marks(step.size) {
            let to = self.read[self.expected.len()].as_mut_ptr();
            // SAFETY: the block is live, on its stream. The slot is used by no other copy before `compare` has
            // waited for all of them, and lives until then.
            unsafe {
                self.stage.context().device().copy_to_host(to, ptr.offset(offset), length as u64, stream)
            }?;
            self.expected.push(Expected { block: step.block, offset, length });
        }
        Ok(())
    }

    /// Waits for the copies and compares what they brought.
    fn compare(&mut self) -> Result<(), ReplayError> {
        self.stage.context().synchronize()?;
        for (found, &Expected { block, offset, length }) in self.read.iter().zip(&self.expected) {
            let wanted = mark(block, offset);
            if found[..length] != wanted[..length] {
                let found = found[..length].iter().map(|byte| format!("{byte:02x}")).collect();
                return Err(ReplayError::Corrupt { block, offset, found });
            }
        }
        self.checked += self.expected.len() as u64;
        self.expected.clear();
        Ok(())
    }
}

impl Drop for Verifier<'_> {
    fn drop(&mut self) {
        if !self.expected.is_empty() && self.stage.context().synchronize().is_err() {
            // Copies may still write there: the memory must stay.
            std::mem::forget(std::mem::take(&mut self.read));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_lie_at_ends_and_pages_without_overlap() {
        for size in [1, 15, 16, 17, 31, 32, 4096, APART, APART + 7, 5 * APART + 3, 1 << 34] {
            let marks: Vec<_> = marks(size).collect();
            assert!(marks.len() as u64 <= MOST_MARKS + 2, "{size}");
            assert_eq!(marks[0].0, 0);
            let (last, length) = marks[marks.len() - 1];
            assert!(last + length as u64 == size || size < 32);
            for pair in marks.windows(2) {
                assert!(pair[0].0 + pair[0].1 as u64 <= pair[1].0, "{size}: {pair:?}");
            }
        }
    }
}
