//! Recordings: what a pool did, written to a file; and the tags that it is filed under.

use std::cell::RefCell;
use std::ffi::c_char;

use millpond::record::{self, Status as Recorded, Tagged, tag};

use crate::arguments::{SizedStruct, fixed_text, text, write_struct};
use crate::failure::{Failure, boundary};
use crate::kind::PoolHandle;
use crate::pool::POOLS;
use crate::status::Status;

/// Each allocation's call stack is kept: microseconds for each, milliseconds for each new one.
pub const MILLPOND_RECORD_CALL_SITES: u32 = 1;

/// What a recording has done. Set `size` before the call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RecordingReport {
    /// sizeof this struct.
    pub size: usize,
    /// Events recorded, of all pools that record to this file.
    pub events: u64,
    /// Events dropped because too much waited for the disk. The file says so, too.
    pub dropped: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Whether anything is, or was, recorded: 1 or 0. If not, all fields are zero.
    pub recorded: u32,
    /// Zero.
    pub reserved: u32,
    /// Why the last write failed, cut to the field; empty if it did not. What could not be written is tried again.
    pub failure: [c_char; 256],
    /// The file, cut to the field. Its name may have the process's number, where another process held the one asked for.
    pub path: [c_char; 1024],
}

// SAFETY: `repr(C)`, integers only, the size first.
unsafe impl SizedStruct for RecordingReport {
    const NAME: &'static str = "millpond_recording";
}

impl From<Option<Recorded>> for RecordingReport {
    fn from(status: Option<Recorded>) -> Self {
        let is_there = status.is_some();
        let (events, dropped, bytes) =
            status.as_ref().map_or((0, 0, 0), |known| (known.events, known.dropped, known.bytes));
        let failure = status.as_ref().and_then(|known| known.failure.as_deref()).unwrap_or_default();
        let path = status.as_ref().map(|known| known.path.to_string_lossy()).unwrap_or_default();
        Self {
            size: size_of::<Self>(),
            events,
            dropped,
            bytes,
            recorded: u32::from(is_there),
            reserved: 0,
            failure: fixed_text(failure),
            path: fixed_text(&path),
        }
    }
}

/// Starts recording what the pool does to a file, for `millpond replay`: blocks that are live now first. `%p` in the
/// path becomes the process's number. `flags` is 0 or a sum of `MILLPOND_RECORD_…`. A recording that runs is stopped.
/// RECORDING if the file cannot be written; the pool records nothing then. docs/recording.md has the rest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_start_recording(
    pool: *mut PoolHandle,
    path: *const c_char,
    flags: u32,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let path = unsafe { text(path, "path") }?.ok_or(Failure::Null("path"))?;
        if flags & !MILLPOND_RECORD_CALL_SITES != 0 {
            return Err(Failure::option("flags", format!("{flags:#x}; a sum of MILLPOND_RECORD_…")));
        }
        let options = record::Options::new(path).call_sites(flags & MILLPOND_RECORD_CALL_SITES != 0);
        Ok(POOLS.get(me, pool)?.pool.start_recording(options)?)
    })
}

/// Stops recording once all is written, and says what was recorded; `recording` may be null. The pool's end does the
/// same. RECORDING if the file's last part could not be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_stop_recording(
    pool: *mut PoolHandle,
    recording: *mut RecordingReport,
) -> Status {
    boundary(|me| {
        let report = RecordingReport::from(POOLS.get(me, pool)?.pool.stop_recording()?);
        if recording.is_null() {
            return Ok(());
        }
        // SAFETY: as the header asks of its caller.
        unsafe { write_struct(recording, "recording", &report) }
    })
}

/// The recording that runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_recording(
    pool: *mut PoolHandle,
    recording: *mut RecordingReport,
) -> Status {
    boundary(|me| {
        let report = RecordingReport::from(POOLS.get(me, pool)?.pool.recording());
        // SAFETY: as the header asks of its caller.
        unsafe { write_struct(recording, "recording", &report) }
    })
}

thread_local! {
    /// The tags that this thread began, the innermost last.
    static TAGS: RefCell<Vec<Tagged>> = const { RefCell::new(Vec::new()) };
}

/// Files what this thread does with pools under a name, in recordings, until `millpond_tag_end`. Tags nest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_tag_begin(name: *const c_char) -> Status {
    boundary(|_| {
        // SAFETY: as the header asks of its caller.
        let name = unsafe { text(name, "name") }?.ok_or(Failure::Null("name"))?;
        // Fails while the thread ends, and no tag is set then.
        let _ = TAGS.try_with(|tags| tags.borrow_mut().push(tag(name)));
        Ok(())
    })
}

/// Ends the tag that this thread began last. BAD_OPTION where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_tag_end() -> Status {
    boundary(|_| {
        let ended = TAGS.try_with(|tags| tags.borrow_mut().pop()).ok().flatten();
        if ended.is_none() {
            return Err(Failure::option("tag", "this thread began no tag that has not ended"));
        }
        Ok(())
    })
}
