//! A tensor's block as the closures of a stream see it.

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::Tensor;

/// Where a tensor's elements lie and how many they are; no claim that they still do.
#[derive(Debug)]
pub(crate) struct View<T> {
    address: usize,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> View<T> {
    /// A view of the tensor's block, of any length of life.
    pub(crate) fn of(tensor: &Tensor<T>) -> Self {
        Self { address: tensor.ptr().raw() as usize, len: tensor.len(), element: PhantomData }
    }

    /// The elements.
    ///
    /// # Safety
    /// The tensor's block is live host memory, and nobody writes to it as long as the slice is used.
    pub(crate) unsafe fn get<'a>(&self) -> &'a [T] {
        let address = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: the caller's promise; blocks are aligned to 256 bytes at least and any bytes are a `T: Pod`.
        unsafe { std::slice::from_raw_parts(address, self.len) }
    }

    /// The elements, to change.
    ///
    /// # Safety
    /// The tensor's block is live host memory, and nobody else uses it as long as the slice is used.
    pub(crate) unsafe fn get_mut<'a>(&self) -> &'a mut [T] {
        let address = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: the caller's promise; blocks are aligned to 256 bytes at least and any bytes are a `T: Pod`.
        unsafe { std::slice::from_raw_parts_mut(address, self.len) }
    }
}
