//! Copies from one GPU to another on default streams.
//!
//! CUDA orders them by itself: such a copy begins when both GPUs have done what they were given before, and what they are given later
//! begins when it has ended (CUDA C++ Programming Guide, "Peer-to-Peer Memory Copy"). The driver keeps that promise for its own memory, and
//! not for pages that are mapped. So it is kept here for blocks of the pools.

use std::ffi::c_int;
use std::sync::Arc;

use millpond::Stream;

use crate::code::Code;
use crate::driver::{DeviceAddress, Handle};
use crate::gpus::{self, Gpu};

/// `CUDA_MEMCPY2D`, as far as it says where memory is.
#[repr(C)]
pub(crate) struct Plane {
    from: PlaneEnd,
    to: PlaneEnd,
}

#[repr(C)]
struct PlaneEnd {
    offset: [usize; 2],
    kind: c_int,
    host: usize,
    at: DeviceAddress,
    array: Handle,
    pitch: usize,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`, as far as they say where memory is.
#[repr(C)]
pub(crate) struct Space {
    from: SpaceEnd,
    to: SpaceEnd,
}

#[repr(C)]
struct SpaceEnd {
    offset: [usize; 4],
    kind: c_int,
    host: usize,
    at: DeviceAddress,
    array: Handle,
    context: Handle,
    pitch: [usize; 2],
}

/// An address of a device; 0 where the memory is of another kind.
fn of_device(kind: c_int, at: DeviceAddress) -> DeviceAddress {
    /// `CU_MEMORYTYPE_DEVICE`, `CU_MEMORYTYPE_UNIFIED`
    const DEVICE: [c_int; 2] = [2, 4];
    if DEVICE.contains(&kind) { at } else { 0 }
}

/// Does a copy of a plane on a stream.
pub(crate) fn copy_plane(plane: Option<&Plane>, stream: Handle, real: impl FnOnce() -> Code) -> Code {
    let ends = |plane: &Plane| [&plane.to, &plane.from].map(|end| of_device(end.kind, end.at));
    let [to, from] = plane.map_or([0; 2], ends);
    copy(to, from, stream, real)
}

/// Does a copy of a part of space on a stream.
pub(crate) fn copy_space(space: Option<&Space>, stream: Handle, real: impl FnOnce() -> Code) -> Code {
    let ends = |space: &Space| [&space.to, &space.from].map(|end| of_device(end.kind, end.at));
    let [to, from] = space.map_or([0; 2], ends);
    copy(to, from, stream, real)
}

/// Does a copy between two addresses on a stream.
#[inline]
pub(crate) fn copy(
    to: DeviceAddress,
    from: DeviceAddress,
    stream: Handle,
    real: impl FnOnce() -> Code,
) -> Code {
    if gpus::are_several() && is_default(stream) { copy_in_order(to, from, real) } else { real() }
}

/// Whether it is the default stream of a context, by either of its handles.
fn is_default(stream: Handle) -> bool {
    /// `CU_STREAM_LEGACY`
    const LEGACY: usize = 1;
    stream.addr() <= LEGACY
}

#[cold]
fn copy_in_order(to: DeviceAddress, from: DeviceAddress, real: impl FnOnce() -> Code) -> Code {
    let (Some(to), Some(from)) = (gpus::block_at(to), gpus::block_at(from)) else { return real() };
    if to.gpu.ordinal == from.gpu.ordinal {
        return real();
    }
    // A context of the program's own has streams that the pools do not know.
    let Some(current) = gpus::current() else { return real() };
    match before([&to.gpu, &from.gpu], &current) {
        Ok((here, others)) => {
            let code = real();
            let ordered = others.iter().try_for_each(|other| other.wait_for(&here));
            ordered.map_or_else(|error| Code::from(&error), |()| code)
        }
        Err(error) => Code::from(&error),
    }
}

/// Has the default stream of the current context wait for those of both GPUs. Returns it, and the others.
fn before(both: [&Arc<Gpu>; 2], current: &Arc<Gpu>) -> millpond::Result<(Stream, Vec<Stream>)> {
    let here = current.context.default_stream()?;
    let others = both.into_iter().filter(|gpu| gpu.ordinal != current.ordinal);
    let others = others.map(|gpu| gpu.context.default_stream()).collect::<millpond::Result<Vec<_>>>()?;
    others.iter().try_for_each(|other| here.wait_for(other))?;
    Ok((here, others))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// As cuda.h lays them out.
    #[test]
    fn addresses_are_where_the_driver_has_them() {
        assert_eq!([offset_of!(Plane, from.at), offset_of!(Plane, to.at)], [32, 88]);
        assert_eq!([offset_of!(Space, from.at), offset_of!(Space, to.at)], [48, 136]);
    }
}
