//! Events: points in a stream's work.

use std::ffi::c_void;

use millpond::Event;

use crate::arguments::Out;
use crate::failure::boundary;
use crate::handle::Table;
use crate::kind::{EventHandle, Kind};
use crate::status::Status;

pub(crate) static EVENTS: Table<Event> = Table::new(Kind::Event);

/// Gives up the event. Streams that wait for it still do.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_event_release(event: *mut EventHandle) -> Status {
    boundary(|me| EVENTS.release(me, event))
}

/// Whether the work before the event is complete: 1 or 0. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_query(event: *mut EventHandle, out: *mut i32) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::new(out, "out", 0) }?;
        out.set(i32::from(EVENTS.get(me, event)?.query()?));
        Ok(())
    })
}

/// Waits until the work before the event is complete, then lets the pools of the device give back what lies above
/// their release thresholds.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_event_synchronize(event: *mut EventHandle) -> Status {
    boundary(|me| Ok(EVENTS.get(me, event)?.synchronize()?))
}

/// The driver's handle (`CUevent`), valid until the event is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_raw(event: *mut EventHandle, out: *mut *mut c_void) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let raw = EVENTS.get(me, event)?.handle().raw();
        out.set(std::ptr::without_provenance_mut(raw as usize));
        Ok(())
    })
}
