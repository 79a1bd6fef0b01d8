//! Memory from the allocator under test, as tensors that free themselves in stream order.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use millpond::device::DevicePtr;
use millpond::{Pool, Stream};
use millpond_baselines::{Allocator, Usage};
use parking_lot::Mutex;

use crate::captured_blocks::CapturedBlocks;
use crate::step_memory::{Kind, Ledger, Purpose, StepMemory};
use crate::{Error, Result};

/// The allocator under test and the stream that it is used on. Clones are the same.
#[derive(Debug, Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    allocator: Arc<dyn Allocator>,
    /// The allocator, where it is a pool, which knows captures.
    pool: Option<Pool>,
    stream: Stream,
    /// Where blocks come from while another allocator's work is captured.
    kept: Mutex<Option<Arc<CapturedBlocks>>>,
    /// The first free that was refused. A drop cannot report it, the end of the epoch can.
    refused: Arc<Mutex<Option<millpond::Error>>>,
    /// What tensors are for, where somebody wants to know.
    ledger: Option<Ledger>,
}

impl Memory {
    /// Memory from `allocator` for work on `stream`.
    pub fn new(allocator: Arc<dyn Allocator>, stream: Stream) -> Self {
        Self::of(allocator, None, stream)
    }

    /// Memory from a pool for work on `stream`. What is captured has the pool's memory for captures.
    pub fn of_pool(pool: &Pool, stream: Stream) -> Self {
        Self::of(Arc::new(pool.clone()), Some(pool.clone()), stream)
    }

    fn of(allocator: Arc<dyn Allocator>, pool: Option<Pool>, stream: Stream) -> Self {
        let (kept, refused) = (Mutex::default(), Arc::default());
        Self { inner: Arc::new(Inner { allocator, pool, stream, kept, refused, ledger: None }) }
    }

    /// The same allocator and stream, of which is kept what a step's memory is for: [`step`](Self::step).
    #[must_use]
    pub fn watched(&self) -> Self {
        let Inner { allocator, pool, stream, refused, .. } = &*self.inner;
        let (allocator, pool, stream) = (allocator.clone(), pool.clone(), stream.clone());
        let (kept, refused, ledger) = (Mutex::default(), refused.clone(), Some(Ledger::default()));
        Self { inner: Arc::new(Inner { allocator, pool, stream, kept, refused, ledger }) }
    }

    /// The allocator, where it is a pool.
    pub(crate) fn pool(&self) -> Option<&Pool> {
        self.inner.pool.as_ref()
    }

    /// Blocks of the allocator for graphs on this stream; `beside` is never captured.
    pub(crate) fn kept(&self, beside: &Stream) -> CapturedBlocks {
        let Inner { allocator, stream, refused, .. } = &*self.inner;
        let (allocator, main, refused) = (allocator.clone(), stream.clone(), refused.clone());
        CapturedBlocks { allocator, main, beside: beside.clone(), free: Mutex::default(), refused }
    }

    /// Takes blocks from here from now on, or from the allocator again.
    pub(crate) fn keep(&self, kept: Option<Arc<CapturedBlocks>>) {
        *self.inner.kept.lock() = kept;
    }

    /// The last step that was kept; `None` if this is not [`watched`](Self::watched).
    pub fn step(&self) -> Option<StepMemory> {
        self.inner.ledger.as_ref().map(|ledger| ledger.step())
    }

    /// Says what the tensors from here on are for.
    pub(crate) fn next_is(&self, kind: Kind, layer: usize) {
        if let Some(ledger) = &self.inner.ledger {
            ledger.next_is((kind, layer));
        }
    }

    /// Where the steps are kept.
    pub(crate) fn ledger(&self) -> Option<&Ledger> {
        self.inner.ledger.as_ref()
    }

    /// The stream that tensors are allocated for and freed on.
    pub fn stream(&self) -> &Stream {
        &self.inner.stream
    }

    /// The allocator under test.
    pub fn allocator(&self) -> &Arc<dyn Allocator> {
        &self.inner.allocator
    }

    /// What the allocator holds and did.
    pub fn usage(&self) -> Usage {
        self.inner.allocator.usage()
    }

    /// Waits for all work on the stream, and reports the first free that was refused since the last call.
    ///
    /// # Errors
    /// That, and the device's own.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.stream.synchronize()?;
        match self.inner.refused.lock().take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// A tensor whose contents are undefined until an operation has written them.
    ///
    /// # Errors
    /// The allocator's own.
    pub fn uninit<T: Pod>(&self, rows: usize, cols: usize) -> Result<Tensor<T>> {
        self.allocate(None, rows, cols)
    }

    /// As [`uninit`](Self::uninit), of this kind whatever the tensors around it are for.
    pub(crate) fn uninit_for<T: Pod>(&self, kind: Kind, rows: usize, cols: usize) -> Result<Tensor<T>> {
        self.allocate(Some(kind), rows, cols)
    }

    fn allocate<T: Pod>(&self, kind: Option<Kind>, rows: usize, cols: usize) -> Result<Tensor<T>> {
        let bytes = (rows as u64).saturating_mul(cols as u64).saturating_mul(size_of::<T>() as u64);
        let kept = self.inner.kept.lock().clone();
        let ptr = match &kept {
            Some(kept) => kept.allocate(bytes)?,
            None => self.inner.allocator.allocate(bytes, &self.inner.stream)?,
        };
        let purpose = self.inner.ledger.as_ref().map(|ledger| ledger.allocated(bytes, kind));
        let block = Arc::new(Block { memory: self.clone(), ptr, bytes, purpose, kept });
        Ok(Tensor { block, ptr, rows, cols, element: PhantomData })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// The allocator's and the device's own.
    pub fn zeroed<T: Pod>(&self, rows: usize, cols: usize) -> Result<Tensor<T>> {
        let mut tensor = self.uninit(rows, cols)?;
        tensor.clear()?;
        Ok(tensor)
    }

    /// A tensor with these values, row by row.
    ///
    /// # Errors
    /// [`Error::Shape`] where `values` has not `rows · cols` entries, and the allocator's and the device's own.
    pub fn upload<T: Pod>(&self, rows: usize, cols: usize, values: &[T]) -> Result<Tensor<T>> {
        if rows.checked_mul(cols) != Some(values.len()) {
            return Err(Error::Shape {
                operation: "upload",
                found: (1, values.len()),
                expected: (rows, cols),
            });
        }
        let mut tensor = self.uninit(rows, cols)?;
        tensor.set(values)?;
        Ok(tensor)
    }
}

/// A block of the allocator under test. Dropping it frees it, after the work given to its stream so far.
#[derive(Debug)]
struct Block {
    memory: Memory,
    ptr: DevicePtr,
    bytes: u64,
    /// What it is for, where that is kept.
    purpose: Option<Purpose>,
    /// Where it goes back to, if that is not the allocator.
    kept: Option<Arc<CapturedBlocks>>,
}

/// A dense row-major matrix on the device, in a block of the allocator under test or a part of one. The block is freed
/// with the last tensor in it.
#[derive(Debug)]
pub struct Tensor<T: Pod = f32> {
    block: Arc<Block>,
    ptr: DevicePtr,
    rows: usize,
    cols: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Tensor<T> {
    /// A part of a tensor as a matrix, from this element on.
    ///
    /// # Errors
    /// [`Error::Shape`] where the whole ends before the part does.
    pub fn part(whole: &Self, from: usize, rows: usize, cols: usize) -> Result<Self> {
        if from + rows * cols > whole.len() {
            let (found, expected) = ((rows, cols), (1, whole.len().saturating_sub(from)));
            return Err(Error::Shape { operation: "part", found, expected });
        }
        let ptr = DevicePtr::new(whole.ptr.raw() + (from * size_of::<T>()) as u64);
        Ok(Self { block: whole.block.clone(), ptr, rows, cols, element: PhantomData })
    }

    /// The same tensor once more: its block is freed with the last one.
    #[must_use]
    pub fn share(&self) -> Self {
        let &Self { ptr, rows, cols, .. } = self;
        Self { block: self.block.clone(), ptr, rows, cols, element: PhantomData }
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        (self.len() * size_of::<T>()) as u64
    }

    /// Where the first element lies.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Where it came from, and the stream that it is used on.
    pub fn memory(&self) -> &Memory {
        &self.block.memory
    }

    /// Sets every byte to zero, in stream order.
    ///
    /// # Errors
    /// The device's own.
    pub fn clear(&mut self) -> Result<()> {
        let stream = self.block.memory.stream();
        // SAFETY: the block is live, has that many bytes, and is ours to write in stream order.
        unsafe { stream.device().memset(self.ptr, 0, self.bytes(), stream.handle())? };
        Ok(())
    }

    /// Takes over these values, row by row, in stream order.
    ///
    /// # Errors
    /// [`Error::Shape`] where there are not as many, and the device's own.
    pub fn set(&mut self, values: &[T]) -> Result<()> {
        if values.len() != self.len() {
            let (found, expected) = ((1, values.len()), self.shape());
            return Err(Error::Shape { operation: "set", found, expected });
        }
        let (stream, from) = (self.block.memory.stream(), bytemuck::cast_slice::<T, u8>(values).as_ptr());
        // SAFETY: the block is live, as large as the values, and ours to write in stream order.
        unsafe { stream.device().copy_from_host(self.ptr, from, self.bytes(), stream.handle())? };
        Ok(())
    }

    /// Takes over the values of another tensor of the same shape, in stream order. That one is used on the same stream.
    ///
    /// # Errors
    /// [`Error::Shape`], and the device's own.
    pub(crate) fn copy_from(&mut self, other: &Self) -> Result<()> {
        if self.shape() != other.shape() {
            return Err(Error::Shape { operation: "copy", found: other.shape(), expected: self.shape() });
        }
        let stream = self.block.memory.stream();
        // SAFETY: both blocks are live, as long, and ours to use in stream order.
        unsafe { stream.device().copy(self.ptr, other.ptr, self.bytes(), stream.handle())? };
        Ok(())
    }

    /// The values, row by row. Waits for the stream.
    ///
    /// # Errors
    /// The device's own.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); self.len()];
        let stream = self.block.memory.stream();
        // SAFETY: `values` has as many bytes as the block and outlives the wait below, which also runs when
        // the copy fails half-way.
        let copied = unsafe {
            stream.device().copy_to_host(values.as_mut_ptr().cast(), self.ptr, self.bytes(), stream.handle())
        };
        if let Err(error) = stream.synchronize() {
            // The device may still write to the vector: better lost than freed under its hands.
            std::mem::forget(values);
            return Err(error.into());
        }
        copied?;
        Ok(values)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let memory = &self.memory.inner;
        if let (Some(ledger), Some(purpose)) = (&memory.ledger, self.purpose) {
            ledger.freed(self.bytes, purpose);
        }
        if let Some(kept) = &self.kept {
            return kept.free(self.ptr, self.bytes);
        }
        // SAFETY: the block is ours alone, and work of other streams was ordered or recorded by who gave it.
        if let Err(error) = unsafe { memory.allocator.free(self.ptr, &memory.stream) } {
            memory.refused.lock().get_or_insert(error);
        }
    }
}
