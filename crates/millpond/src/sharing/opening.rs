//! What another process lent, opened in this one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FileType;

use super::event::{OwnedEvent, SharedEvent};
use super::imported::{Import, ImportedMemory};
use super::lease::Borrowed;
use super::token::{Header, SharedToken};
use crate::core::{Core, allocating::hand_out};
use crate::device::{Device, DevicePtr, EventExport, PageExport};
use crate::extents::MOST_UNITS;
use crate::open_file::OpenFile;
use crate::order::{Stream, Timelines};
use crate::{Error, Result};

/// Whether this device can map what the token says.
pub(crate) fn check_token(device: &dyn Device, token: &SharedToken) -> Result<()> {
    let bad = |why| Err(Error::BadToken { why });
    if !device.reaches(token.device())? {
        let here = device.identity()?;
        return bad(format!(
            "it is memory of device {}, which device {here} cannot reach: open it with a context of that one",
            token.device()
        ));
    }
    let granularity = device.properties().granularity;
    if let Some(page) = token.pages.iter().find(|page| !page.is_multiple_of(granularity)) {
        return bad(format!("its pages of {page} bytes are no multiple of {granularity} bytes"));
    }
    Ok(())
}

/// Makes an import a block of the pool of all that other processes shared.
pub(crate) fn alloc_import(of: &OfOthers, import: Import, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
    let core = &of.pool;
    let units = core.caches.sizes().units(bytes);
    if units >= MOST_UNITS {
        return Err(Error::SizeOverflow { bytes, count: 1 });
    }
    let ptr = {
        let mut state = core.state.lock();
        match state.arenas.own.alloc_as_segment(units, stream, || Ok(of.memory.enter(import))) {
            Ok(found) => hand_out(core, &mut state, &found, bytes),
            Err(refusal) => {
                drop(state);
                let no_memory = |_| core.no_host_memory("memory of another process", 0);
                return Err(core.shortage_of(refusal).map_or_else(|error| error, no_memory));
            }
        }
    };
    core.recording.alloc(ptr, bytes, stream);
    Ok(ptr)
}

/// Keeps the last descriptor's file, without the descriptor, where there is one of a budget.
pub(crate) fn keep_budget(token: &SharedToken, descriptors: &mut Vec<OwnedFd>) -> Result<Option<OpenFile>> {
    let Some(file) = token.has(Header::HAS_BUDGET).then(|| descriptors.pop()).flatten() else { return Ok(None) };
    let kind = rustix::fs::fstat(&file).map(|found| FileType::from_raw_mode(found.st_mode));
    let kept = if kind == Ok(FileType::RegularFile) { OpenFile::keep(&file).ok() } else { None };
    match kept {
        Some(kept) => Ok(Some(kept)),
        None => {
            let why = "its last descriptor is no budget's: pass them in the order of Shared::descriptors";
            Err(Error::BadToken { why: why.to_owned() })
        }
    }
}

/// The pool of all that other processes shared, and the device that it takes as its segments.
#[derive(Debug)]
pub(crate) struct OfOthers {
    pub(crate) memory: Arc<ImportedMemory>,
    pub(crate) pool: Arc<Core>,
}

/// The event, the lease, and the pages with their lengths.
pub(crate) type Opened = (SharedEvent, Arc<Borrowed>, Vec<(PageExport, u64)>);

pub(crate) fn open_descriptors(
    timelines: &Arc<Timelines>,
    token: &SharedToken,
    descriptors: Vec<OwnedFd>,
) -> Result<Opened> {
    let missing = || Error::BadToken { why: "descriptors are missing".to_owned() };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(missing);
    let lease = Arc::new(Borrowed::begin(next()?, &next()?)?);
    let descriptor = if token.has(Header::HAS_EVENT) { Some(next()?) } else { None };
    if lease.owner_is_gone() {
        return Err(Error::OwnerGone);
    }
    let handle = timelines.device().open_event(EventExport { data: token.header.event, descriptor })?;
    let event = Arc::new(OwnedEvent { timelines: timelines.clone(), handle });
    let event = SharedEvent { event, lease: Some(lease.clone()) };
    let exports = descriptors.zip(&token.positions);
    let exports = exports.map(|(descriptor, position)| PageExport { descriptor, position: *position });
    Ok((event, lease, exports.zip(token.pages.iter().copied()).collect()))
}
