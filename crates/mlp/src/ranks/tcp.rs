//! Collectives of the host device, over TCP: rank 0 adds up, in the order of the ranks.
//!
//! A collective is a closure on a stream, as other work of the host device is. It reads and writes the tensor's block
//! where it lies.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use millpond::Stream;
use millpond::device::host::HostDevice;
use parking_lot::Mutex;

use super::collective::Collective;
use super::world::Ranks;
use crate::{Error, Result, Tensor};

/// Over connections to the other ranks: rank 0's to all in their order, another's to rank 0.
#[derive(Debug)]
pub(crate) struct Tcp {
    device: Arc<HostDevice>,
    size: usize,
    wires: Arc<Mutex<Wires>>,
}

#[derive(Debug)]
struct Wires {
    rank: usize,
    size: usize,
    streams: Vec<TcpStream>,
    /// What a rank sent, before it is added.
    received: Vec<f32>,
    failure: Option<io::Error>,
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
    /// Of these ranks; of one rank alone without.
    pub(crate) fn new(device: Arc<HostDevice>, ranks: Option<&Ranks>) -> Result<Self> {
        let (rank, size) = ranks.map_or((0, 1), |ranks| (ranks.place().rank, ranks.place().world));
        let streams = ranks.map_or_else(|| Ok(Vec::new()), Ranks::data)?;
        let wires = Wires { rank, size, streams, received: Vec::new(), failure: None };
        Ok(Self { device, size, wires: Arc::new(Mutex::new(wires)) })
    }

    fn launch(&self, operation: Operation, buffer: &Tensor, piece: &Tensor, stream: &Stream) -> Result<()> {
        let wires = self.wires.clone();
        let [buffer, piece] = [buffer, piece].map(|tensor| (tensor.ptr().raw() as usize, tensor.len()));
        let work = move || {
            // SAFETY: the trait's promise: the block lives until this work is done, and the streams' order keeps other work
            // on it away. Blocks are aligned to 256 bytes at least.
            let values = unsafe {
                std::slice::from_raw_parts_mut(
                    std::ptr::with_exposed_provenance_mut::<f32>(buffer.0),
                    buffer.1,
                )
            };
            let mut wires = wires.lock();
            if wires.failure.is_some() {
                return;
            }
            wires.failure = wires.run(operation, values).err();
            let own = wires.own_piece(values);
            if operation == Operation::ReduceScatter && own.as_ptr().addr() != piece.0 {
                // SAFETY: as above, and it is no part of the buffer.
                let piece = unsafe {
                    std::slice::from_raw_parts_mut(
                        std::ptr::with_exposed_provenance_mut::<f32>(piece.0),
                        piece.1,
                    )
                };
                piece.copy_from_slice(own);
            }
        };
        Ok(self.device.launch(stream.handle(), work)?)
    }
}

impl Wires {
    fn own_piece<'a>(&self, buffer: &'a mut [f32]) -> &'a mut [f32] {
        let length = buffer.len() / self.size;
        &mut buffer[self.rank * length..][..length]
    }

    fn run(&mut self, operation: Operation, buffer: &mut [f32]) -> io::Result<()> {
        match self.rank {
            0 => self.run_first(operation, buffer),
            _ => self.run_other(operation, buffer),
        }
    }

    fn run_first(&mut self, operation: Operation, buffer: &mut [f32]) -> io::Result<()> {
        let length = buffer.len() / self.size;
        for (rank, stream) in (1..).zip(&mut self.streams) {
            match operation {
                Operation::Reduce | Operation::ReduceScatter => {
                    self.received.resize(buffer.len(), 0.0);
                    stream.read_exact(bytemuck::cast_slice_mut(&mut self.received))?;
                    buffer.iter_mut().zip(&self.received).for_each(|(sum, value)| *sum += value);
                }
                Operation::Gather => {
                    stream.read_exact(bytemuck::cast_slice_mut(&mut buffer[rank * length..][..length]))?;
                }
                Operation::Broadcast => {}
            }
        }
        for (rank, stream) in (1..).zip(&mut self.streams) {
            let part = match operation {
                Operation::ReduceScatter => &buffer[rank * length..][..length],
                _ => &*buffer,
            };
            stream.write_all(bytemuck::cast_slice(part))?;
        }
        Ok(())
    }

    fn run_other(&mut self, operation: Operation, buffer: &mut [f32]) -> io::Result<()> {
        match operation {
            Operation::Reduce | Operation::ReduceScatter => {
                self.streams[0].write_all(bytemuck::cast_slice(buffer))?;
            }
            Operation::Gather => {
                let own = self.own_piece(buffer);
                self.streams[0].write_all(bytemuck::cast_slice(own))?;
            }
            Operation::Broadcast => {}
        }
        let wanted = if operation == Operation::ReduceScatter { self.own_piece(buffer) } else { buffer };
        self.streams[0].read_exact(bytemuck::cast_slice_mut(wanted))
    }
}

impl Collective for Tcp {
    fn size(&self) -> usize {
        self.size
    }

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

    fn check(&self) -> Result<()> {
        // An operation that runs holds the lock, and has not failed yet.
        match self.wires.try_lock().and_then(|mut wires| wires.failure.take()) {
            Some(failure) => {
                Err(Error::Rendezvous { what: format!("a rank's data did not come: {failure}") })
            }
            None => Ok(()),
        }
    }
}
