//! Workspaces: one block taken in advance, for a program that needs the same scratch memory every step.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use millpond::Workspace;
use millpond::bindings::Process;
use millpond::bindings::{Mutex, MutexGuard};

use crate::arguments::Out;
use crate::failure::{Failure, boundary};
use crate::handle::Table;
use crate::kind::{AnyStream, Kind, PoolHandle, WorkspaceHandle};
use crate::pool::POOLS;
use crate::status::Status;
use crate::stream::{StreamObject, find_stream};

/// What a workspace's handle stands for.
#[derive(Debug)]
pub(crate) struct WorkspaceObject {
    process: Process,
    workspace: Mutex<Workspace>,
    /// After the workspace, which frees its memory on the stream.
    _registration: Option<Arc<StreamObject>>,
}

impl WorkspaceObject {
    fn lock(&self) -> Result<MutexGuard<'_, Workspace>, Failure> {
        self.process.check()?;
        Ok(self.workspace.lock())
    }
}

pub(crate) static WORKSPACES: Table<WorkspaceObject> = Table::new(Kind::Workspace);

/// Takes a block of `bytes` from the pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_workspace_create(
    pool: *mut PoolHandle,
    bytes: usize,
    stream: AnyStream,
    out: *mut *mut WorkspaceHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = POOLS.get(me, pool)?;
        // SAFETY: likewise.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        let workspace = Workspace::new(&object.pool, bytes as u64, &stream)?;
        out.set(WORKSPACES.insert(WorkspaceObject {
            process: Process::here(),
            workspace: Mutex::new(workspace),
            _registration: stream.registration(),
        })?);
        Ok(())
    })
}

/// Hands out `bytes` with no defined content, for work on the workspace's stream, until the next reset. Aligned to 512 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_workspace_alloc(
    workspace: *mut WorkspaceHandle,
    bytes: usize,
    out: *mut *mut c_void,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let workspace = WORKSPACES.get(me, workspace)?;
        let at = workspace.lock()?.alloc::<u8>(bytes)?.ptr().raw();
        out.set(ptr::without_provenance_mut(at as usize));
        Ok(())
    })
}

/// The same at a multiple of `align` bytes, a power of two up to the device's granularity (2 MiB).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_workspace_alloc_aligned(
    workspace: *mut WorkspaceHandle,
    bytes: usize,
    align: usize,
    out: *mut *mut c_void,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let workspace = WORKSPACES.get(me, workspace)?;
        let at = workspace.lock()?.alloc_aligned(bytes as u64, align as u64)?.raw();
        out.set(ptr::without_provenance_mut(at as usize));
        Ok(())
    })
}

/// Takes everything back. What was handed out before must not be used by work given to the stream later.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_workspace_reset(workspace: *mut WorkspaceHandle) -> Status {
    boundary(|me| {
        WORKSPACES.get(me, workspace)?.lock()?.reset();
        Ok(())
    })
}

/// Bytes taken from the pool, handed out since the last reset, and handed out at most between two resets. Each
/// output may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_workspace_read(
    workspace: *mut WorkspaceHandle,
    capacity: *mut usize,
    used: *mut usize,
    high_water: *mut usize,
) -> Status {
    boundary(|me| {
        let object = WORKSPACES.get(me, workspace)?;
        let workspace = object.lock()?;
        let figures = [
            (capacity, workspace.capacity()),
            (used, workspace.used()),
            (high_water, workspace.high_water()),
        ];
        for (at, bytes) in figures {
            if !at.is_null() {
                // SAFETY: not null, and as the header asks of its caller.
                unsafe { at.write(bytes as usize) };
            }
        }
        Ok(())
    })
}

/// Gives up the workspace, and frees its block after the work given to its stream so far.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_workspace_release(workspace: *mut WorkspaceHandle) -> Status {
    boundary(|me| WORKSPACES.release(me, workspace))
}
