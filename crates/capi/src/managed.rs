//! Managed memory: where it lies, and how it will be used.

use std::ffi::c_void;

use millpond::{Advice, Place, Residency};

use crate::arguments::{SizedStruct, write_struct};
use crate::failure::{Failure, boundary};
use crate::kind::{AnyStream, PoolHandle};
use crate::memory::from_c;
use crate::pool::POOLS;
use crate::status::Status;
use crate::stream::find_stream;

/// Where managed memory lies.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceCode {
    /// No place, or not the same for all of a block.
    None = 0,
    /// In the memory of the context's device.
    Device = 1,
    /// In the memory of the host.
    Host = 2,
}

impl PlaceCode {
    /// The place that a number names; `None` for none.
    fn from_c(number: i32) -> Result<Option<Place>, Failure> {
        match number {
            0 => Ok(None),
            1 => Ok(Some(Place::Device)),
            2 => Ok(Some(Place::Host)),
            _ => Err(Failure::option("place", format!("{number}; it must be one of millpond_place"))),
        }
    }

    fn needed(number: i32) -> Result<Place, Failure> {
        let none = || Failure::option("place", "MILLPOND_PLACE_NONE; say which: the device or the host");
        Self::from_c(number)?.ok_or_else(none)
    }

    fn number_of(place: Option<Place>) -> i32 {
        let code = match place {
            None => Self::None,
            Some(Place::Device) => Self::Device,
            Some(Place::Host) => Self::Host,
        };
        code as i32
    }
}

/// How managed memory will be used. It changes where the bytes lie, and never what they are.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdviceCode {
    /// It is mostly read: the device and the host each have a copy, until one of them writes. The place is not looked at.
    ReadMostly = 1,
    /// It is not. The place is not looked at.
    NotReadMostly = 2,
    /// It is to stay at the place; `MILLPOND_PLACE_NONE`: anywhere.
    PreferredLocation = 3,
    /// It stays mapped for the one at the place, so that its first use there is no page fault.
    AccessedBy = 4,
    /// It does not.
    NotAccessedBy = 5,
}

impl AdviceCode {
    fn from_c(number: i32, place: i32) -> Result<Advice, Failure> {
        Ok(match number {
            1 => Advice::ReadMostly(true),
            2 => Advice::ReadMostly(false),
            3 => Advice::PreferredLocation(PlaceCode::from_c(place)?),
            4 => Advice::AccessedBy(PlaceCode::needed(place)?, true),
            5 => Advice::AccessedBy(PlaceCode::needed(place)?, false),
            _ => {
                return Err(Failure::option(
                    "advice",
                    format!("{number}; it must be one of millpond_advice"),
                ));
            }
        })
    }
}

/// What was said of a block of managed memory, where it is the same of all its pages. Set `size` before the call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BlockResidency {
    /// sizeof this struct.
    pub size: usize,
    /// Where it was last prefetched to: one of `millpond_place`.
    pub last_prefetch: i32,
    /// Its preferred location: one of `millpond_place`.
    pub preferred_location: i32,
    /// Whether it is mostly read.
    pub read_mostly: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, integers only, the size first.
unsafe impl SizedStruct for BlockResidency {
    const NAME: &'static str = "millpond_residency";
}

/// Moves a block of managed memory to a place (one of `millpond_place`) in the order of `stream`, which may be any: no byte
/// changes. On a GPU, the call takes most of the time of the move. NOT_MANAGED for other memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_prefetch(
    pool: *mut PoolHandle,
    ptr: *const c_void,
    place: i32,
    stream: AnyStream,
) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        let place = PlaceCode::needed(place)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        Ok(object.pool.prefetch(from_c(ptr), place, &stream)?)
    })
}

/// Says how a block of managed memory will be used (one of `millpond_advice`, and of `millpond_place`). It holds for the
/// system's pages that are the block's alone, until it is taken back: do that before the block is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_advise(
    pool: *mut PoolHandle,
    ptr: *const c_void,
    advice: i32,
    place: i32,
) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        Ok(object.pool.advise(from_c(ptr), AdviceCode::from_c(advice, place)?)?)
    })
}

/// Takes back all advice on a block of managed memory, so that whoever gets the memory next does not have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_take_back_advice(pool: *mut PoolHandle, ptr: *const c_void) -> Status {
    boundary(|me| Ok(POOLS.get(me, pool)?.pool.take_back_advice(from_c(ptr))?))
}

/// Where a block of managed memory was last prefetched to, and the advice on it. It may lie elsewhere by now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_block_residency(
    pool: *mut PoolHandle,
    ptr: *const c_void,
    residency: *mut BlockResidency,
) -> Status {
    boundary(|me| {
        let found = POOLS.get(me, pool)?.pool.residency(from_c(ptr))?;
        let Residency { last_prefetch, read_mostly, preferred, .. } = found;
        let value = BlockResidency {
            size: 0,
            last_prefetch: PlaceCode::number_of(last_prefetch),
            preferred_location: PlaceCode::number_of(preferred),
            read_mostly: read_mostly.into(),
            reserved: 0,
        };
        // SAFETY: as the header asks of its caller.
        unsafe { write_struct(residency, "residency", &value) }
    })
}
