//! Collectives of the host device, over the ranks' connections: rank 0 adds up, in the order of the ranks.
//!
//! A collective is a closure on a stream, as other work of the host device is. It reads and writes the tensor's block
//! where it lies.

use std::sync::Arc;

use millpond::Stream;
use millpond::device::host::HostDevice;

use super::collective::Collective;
use super::meeting::MessageKind;
use super::world::Ranks;
use crate::host::View;
use crate::{Result, Tensor};

/// Of these ranks.
#[derive(Debug)]
pub(crate) struct Tcp {
    pub(crate) device: Arc<HostDevice>,
    pub(crate) ranks: Arc<Ranks>,
}

/// What is done with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Reduce,
    ReduceScatter,
    Gather,
    Broadcast,
}

impl Tcp {
    fn launch(&self, operation: Operation, buffer: &Tensor, piece: &Tensor, stream: &Stream) -> Result<()> {
        let ranks = self.ranks.clone();
        let own = buffer.ptr().raw() + (ranks.place().rank * piece.len() * size_of::<f32>()) as u64;
        let is_apart = operation == Operation::ReduceScatter && piece.ptr().raw() != own;
        let (buffer, piece) = (View::of(buffer), View::of(piece));
        let work = move || {
            // SAFETY: the trait's promise: the block lives until this work is done, and the streams' order keeps other work
            // on it away.
            let values = unsafe { buffer.get_mut() };
            if ranks.loss().is_some() {
                return;
            }
            if let Err(error) = run(&ranks, operation, values) {
                return ranks.leave(Some(&format!("a rank's data did not come: {error}")));
            }
            if is_apart {
                // SAFETY: as above, and it is no part of the buffer.
                unsafe { piece.get_mut() }.copy_from_slice(own_piece(&ranks, values));
            }
        };
        Ok(self.device.launch(stream.handle(), work)?)
    }
}

fn own_piece<'a>(ranks: &Ranks, buffer: &'a mut [f32]) -> &'a mut [f32] {
    let length = buffer.len() / ranks.place().world;
    &mut buffer[ranks.place().rank * length..][..length]
}

/// Values as they came.
fn values(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

fn run(ranks: &Ranks, operation: Operation, buffer: &mut [f32]) -> Result<()> {
    let (world, sums) =
        (ranks.place().world, matches!(operation, Operation::Reduce | Operation::ReduceScatter));
    let length = buffer.len() / world;
    let send = |to, part: &[f32]| ranks.send(MessageKind::Data, to, bytemuck::cast_slice(part));
    if ranks.place().rank > 0 {
        match operation {
            Operation::Broadcast => {}
            Operation::Gather => send(0, own_piece(ranks, buffer))?,
            _ => send(0, buffer)?,
        }
        let wanted = if operation == Operation::ReduceScatter { own_piece(ranks, buffer) } else { buffer };
        wanted
            .iter_mut()
            .zip(values(&ranks.receive(MessageKind::Data, 0)?))
            .for_each(|(to, value)| *to = value);
        return Ok(());
    }
    for other in (0..world - 1).filter(|_| operation != Operation::Broadcast) {
        let received = ranks.receive(MessageKind::Data, other)?;
        if sums {
            buffer.iter_mut().zip(values(&received)).for_each(|(sum, value)| *sum += value);
        } else {
            let piece = &mut buffer[(other + 1) * length..][..length];
            piece.iter_mut().zip(values(&received)).for_each(|(to, value)| *to = value);
        }
    }
    (0..world - 1).try_for_each(|other| match operation {
        Operation::ReduceScatter => send(other, &buffer[(other + 1) * length..][..length]),
        _ => send(other, buffer),
    })
}

impl Collective for Tcp {
    fn all_reduce(&self, buffer: &Tensor, stream: &Stream) -> Result<()> {
        self.launch(Operation::Reduce, buffer, buffer, stream)
    }

    fn reduce_scatter(&self, buffer: &Tensor, piece: &Tensor, stream: &Stream) -> Result<()> {
        self.launch(Operation::ReduceScatter, buffer, piece, stream)
    }

    fn all_gather(&self, buffer: &Tensor, stream: &Stream) -> Result<()> {
        self.launch(Operation::Gather, buffer, buffer, stream)
    }

    fn broadcast(&self, buffer: &Tensor, stream: &Stream) -> Result<()> {
        self.launch(Operation::Broadcast, buffer, buffer, stream)
    }
}
