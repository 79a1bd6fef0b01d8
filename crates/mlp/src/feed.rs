//! Batches on their way to the device.
//!
//! The data set stays in the host's memory. A batch is gathered in pinned memory, and a stream of its own copies it to
//! the device while the device works on the batch before. Three slots take turns. One is worked on, one is ready, and
//! one is written.
//!
//! **Order.** The host writes a slot's pinned memory once its last copy is done. The copy waits, on the device, for the
//! work on the slot's last batch. The work on a batch waits, on the device, for its copy.

use std::ops::ControlFlow;

use millpond::{Buffer, Context, Event, Pool, Stream};

use crate::data::Split;
use crate::rank_share::Piece;
use crate::{Batch, Kind, Memory, Result, Tensor};

/// Batches between the data set and the work on them. With two, the host would have to gather and launch the next batch
/// within the time of one step.
const SLOTS: usize = 3;

/// How batches get to the device.
#[derive(Debug, Clone)]
pub struct Upload {
    stream: Stream,
    pinned: Option<Pool>,
}

impl Upload {
    /// On a stream of their own. Through pinned memory, if the device has any; else from pageable memory.
    ///
    /// # Errors
    /// The device's own.
    pub fn new(context: &Context) -> Result<Self> {
        let pinned = context.pinned().and_then(|builder| builder.name("batches").build()).ok();
        Ok(Self { stream: context.create_stream()?, pinned })
    }

    /// The stream of the copies.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The pool of pinned memory, if there is one. Where it has no room for the batches, it stays empty.
    pub fn pinned(&self) -> Option<&Pool> {
        self.pinned.as_ref()
    }
}

/// Brings batches to the device.
#[derive(Debug)]
pub(crate) struct Feed {
    /// The device's side of the slots, and the stream that works on batches.
    memory: Memory,
    upload: Stream,
    slots: Vec<Slot>,
    /// Batches staged so far.
    staged: usize,
}

#[derive(Debug)]
struct Slot {
    staging: Staging,
    rows: Tensor<u8>,
    /// The work on the slot's last batch.
    read: Event,
}

/// Where a batch is gathered.
#[derive(Debug)]
enum Staging {
    /// Used on the stream of the uploads only.
    Pinned(Buffer<u8>),
    Pageable(Vec<u8>),
}

/// A batch that is on its way.
#[derive(Debug)]
struct Staged<'a> {
    slot: usize,
    piece: Piece<'a>,
    arrived: Event,
}

impl Feed {
    /// For batches of at most `count` images, each of `row` bytes with its label.
    pub(crate) fn new(memory: &Memory, upload: &Upload, count: usize, row: usize) -> Result<Self> {
        let slot = |_| {
            let pinned = upload.pinned().and_then(|pool| Buffer::new(pool, count * row, &upload.stream).ok());
            Ok(Slot {
                staging: pinned.map_or_else(|| Staging::Pageable(vec![0; count * row]), Staging::Pinned),
                rows: memory.uninit_for(Kind::Batch, count, row)?,
                // What had the memory before is done by then, too.
                read: memory.stream().record()?,
            })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<_>>()?;
        Ok(Self { memory: memory.clone(), upload: upload.stream.clone(), slots, staged: 0 })
    }

    /// Calls `work` with one piece of a batch after another, until there are no more or it breaks. `work` gives the memory's
    /// stream what there is to do with the piece. It does not wait for that. The piece after it is sent on its way then.
    pub(crate) fn batches<'a>(
        &mut self,
        split: &Split,
        mut batches: impl Iterator<Item = Piece<'a>>,
        mut work: impl FnMut(Batch<'_>, Piece<'a>) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        let mut next = batches.next().map(|first| self.stage(split, first)).transpose()?;
        while let Some(staged) = next.take() {
            if self.take(&staged, &mut work)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            next = batches.next().map(|batch| self.stage(split, batch)).transpose()?;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Gathers a piece, and has it copied to the device.
    fn stage<'a>(&mut self, split: &Split, piece: Piece<'a>) -> Result<Staged<'a>> {
        let batch = piece.images;
        let at = self.staged % SLOTS;
        let (slot, stream) = (&mut self.slots[at], &self.upload);
        let bytes = batch.len() * split.row();
        assert!(bytes as u64 <= slot.rows.bytes(), "the slots are for smaller batches");
        let (to, device, handle) = (slot.rows.ptr(), stream.device(), stream.handle());
        match &mut slot.staging {
            _ if batch.is_empty() => {}
            Staging::Pinned(staging) => {
                // Waits until the stream is done with its copies.
                split.gather(batch, staging.as_mut_slice()?);
                stream.wait(&slot.read)?;
                // SAFETY: both blocks are live and as long. The pinned one is used on this stream only. The work that read
                // the other is over, which the stream has been told to wait for, and the next waits for `arrived`.
                unsafe { device.copy(to, staging.ptr(), bytes as u64, handle) }?;
            }
            Staging::Pageable(staging) => {
                split.gather(batch, staging);
                stream.wait(&slot.read)?;
                // SAFETY: as above, and the vector is read before the call returns.
                unsafe { device.copy_from_host(to, staging.as_ptr(), bytes as u64, handle) }?;
            }
        }
        self.staged += 1;
        Ok(Staged { slot: at, piece, arrived: stream.record()? })
    }

    /// Has the work on a batch done once it has arrived.
    fn take<'a>(
        &mut self,
        staged: &Staged<'a>,
        work: &mut impl FnMut(Batch<'_>, Piece<'a>) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        let (slot, stream) = (&mut self.slots[staged.slot], self.memory.stream());
        stream.wait(&staged.arrived)?;
        let Piece { images, of, .. } = staged.piece;
        let worked = work(Batch { rows: &slot.rows, count: images.len(), of, images: None }, staged.piece);
        slot.read = stream.record()?;
        worked
    }
}

impl Drop for Feed {
    /// A batch that nobody took may still be on its way to memory that is freed now.
    fn drop(&mut self) {
        if self.memory.stream().wait_for(&self.upload).is_err() {
            // A device that refuses both does no more work.
            self.upload.synchronize().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use millpond::device::host::{HostDevice, HostOptions};
    use millpond::testing::checker::CheckerDevice;
    use millpond_baselines::Allocator;

    use super::*;

    const PIXELS: usize = 64;

    /// Images whose pixels are their number, as their labels are.
    fn images(count: u8) -> Split {
        let images = (0..count).flat_map(|image| [image; PIXELS]).collect();
        Split { images, labels: (0..count).collect() }
    }

    fn memory(context: &Context) -> (Memory, Arc<dyn Allocator>) {
        let pool: Arc<dyn Allocator> = Arc::new(Pool::builder(context).build().unwrap());
        (Memory::new(pool.clone(), context.create_stream().unwrap()), pool)
    }

    fn piece(images: &[u32]) -> Piece<'_> {
        Piece { images, of: images.len(), part: 0, is_first: true, is_last: true }
    }

    fn pieces(order: &[u32], size: usize) -> impl Iterator<Item = Piece<'_>> {
        order.chunks(size).map(piece)
    }

    /// Copies all batches where the device works on them; the rows in their order.
    fn through(memory: &Memory, upload: &Upload, split: &Split, order: &[u32], size: usize) -> Vec<u8> {
        let mut feed = Feed::new(memory, upload, size, split.row()).unwrap();
        let mut copies = Vec::new();
        let done = feed.batches(split, pieces(order, size), |batch, _| {
            let copy = memory.uninit::<u8>(batch.count, split.row())?;
            let stream = memory.stream();
            // SAFETY: both are live on this stream, and of that size at least.
            unsafe { stream.device().copy(copy.ptr(), batch.rows.ptr(), copy.bytes(), stream.handle()) }?;
            copies.push(copy);
            Ok(ControlFlow::Continue(()))
        });
        assert!(done.unwrap().is_continue());
        copies.iter().flat_map(|copy| copy.to_vec().unwrap()).collect()
    }

    #[test]
    fn every_batch_arrives_whole_and_in_order() {
        let split = images(250);
        let order: Vec<u32> = (0..250).rev().collect();
        let mut expected = vec![0; 250 * split.row()];
        split.gather(&order, &mut expected);
        let room = [Some(64 << 20), Some(0)];
        for (room, pinned_bytes) in room.into_iter().zip([3 * 7 * split.row() as u64, 0]) {
            let host = HostDevice::with_options(HostOptions::default().pinned_capacity(room)).unwrap();
            let checker = CheckerDevice::new(host);
            {
                let context = Context::new(checker.clone());
                let (memory, pool) = memory(&context);
                let upload = Upload::new(&context).unwrap();
                assert!(through(&memory, &upload, &split, &order, 7) == expected, "{room:?}");
                memory.synchronize().unwrap();
                let pinned = upload.pinned().unwrap().stats().requested;
                assert_eq!((pinned.high, pinned.current), (pinned_bytes, 0));
                assert_eq!(pool.usage().requested.current, 0);
            }
            checker.verify_nothing_left().unwrap();
        }
    }

    #[test]
    fn the_next_batch_arrives_while_the_device_works() {
        let host = HostDevice::new().unwrap();
        let context = Context::new(host.clone());
        let ((memory, _), upload) = (memory(&context), Upload::new(&context).unwrap());
        let (split, order) = (images(9), [1, 2, 3, 4, 5, 6, 7, 8, 0]);
        let mut feed = Feed::new(&memory, &upload, 3, split.row()).unwrap();
        let (release, released) = mpsc::channel::<()>();
        let mut work = |_: Batch<'_>, _: Piece<'_>| Ok(ControlFlow::Continue(()));
        let first = feed.stage(&split, piece(&order[..3])).unwrap();
        host.launch(memory.stream().handle(), move || _ = released.recv()).unwrap();
        _ = feed.take(&first, &mut work).unwrap();
        for batch in [&order[3..6], &order[6..]] {
            let next = feed.stage(&split, piece(batch)).unwrap();
            let began = Instant::now();
            while !next.arrived.query().unwrap() {
                assert!(began.elapsed() < Duration::from_secs(20), "it waits for the work on the first");
                std::thread::yield_now();
            }
        }
        assert!(!memory.stream().is_idle().unwrap());
        drop(release);
    }

    #[test]
    fn a_batch_that_nobody_takes_arrives_before_its_memory_is_freed() {
        let checker = CheckerDevice::new(HostDevice::new().unwrap());
        {
            let context = Context::new(checker.clone());
            let ((memory, _), upload) = (memory(&context), Upload::new(&context).unwrap());
            let split = images(100);
            let mut feed = Feed::new(&memory, &upload, 100, split.row()).unwrap();
            let order: Vec<u32> = (0..100).collect();
            let _staged = feed.stage(&split, piece(&order)).unwrap();
            drop(feed);
            let reused = memory.zeroed::<u8>(100, split.row()).unwrap();
            assert!(reused.to_vec().unwrap().iter().all(|byte| *byte == 0));
        }
        checker.verify_nothing_left().unwrap();
    }
}
