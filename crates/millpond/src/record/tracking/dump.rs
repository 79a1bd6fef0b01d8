//! What is known when memory runs out, as a recording: each sampled block with its allocation, and its free where that was
//! among the last; the other live blocks at the end, when they were allocated is not known; the error.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::chunks::file_head;
use super::super::clock::{Moment, nanoseconds};
use super::super::encoder::{Encoder, Event, Kind, cut};
use super::super::format::Record;
use super::super::labels::{WrittenSites, WrittenTags};
use super::super::names::{expanded, numbered};
use super::samples::{Held, Sample};
use crate::device::DevicePtr;
use crate::out_of_memory::OutOfMemory;
use crate::system::file_limit;

/// Files of one name at most: a program that goes on after an error must not fill the disk.
const MOST_FILES: u32 = 4;

/// Time 0 of a dump, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub(super) moment: Moment,
    unix_ns: u64,
}

impl Origin {
    pub(super) fn now() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { moment: Moment::now(), unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX) }
    }
}

/// What a dump says of its pool.
#[derive(Debug, Clone)]
pub(crate) struct OfPool {
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) ordinal: u32,
    /// As in [`Record::Pool`].
    pub(crate) device_key: u64,
}

/// A new file of this name, or of the next ones: `oom.mprec`, `oom.2.mprec` … `None` where all are there. A folder gets a
/// file named for the process.
///
/// # Errors
/// The file cannot be made.
pub(super) fn create(path: &Path) -> io::Result<Option<(std::fs::File, PathBuf)>> {
    let mut path = expanded(path, std::process::id());
    if path.is_dir() {
        path.push(format!("millpond-oom.{}.mprec", std::process::id()));
    }
    for number in 1..=MOST_FILES {
        let path = numbered(&path, number);
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return Ok(Some((file, path))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Writes a dump, or nothing: what a full disk left is removed.
pub(super) fn write((mut file, path): (std::fs::File, &Path), chunks: &[u8]) -> io::Result<()> {
    let written = file_limit::refusing(|| file.write_all(chunks));
    if written.is_err() {
        std::fs::remove_file(path).ok();
    }
    written
}

/// The dump's bytes. `live` is what the pool says is live.
pub(super) fn encode(
    origin: Origin,
    pool: &OfPool,
    held: &Held,
    live: &[(DevicePtr, u64)],
    failed: &OutOfMemory,
) -> Vec<u8> {
    let mut encoder = Encoder::new();
    let program = std::env::args_os().next().unwrap_or_default();
    let program = program.to_string_lossy();
    encoder.define(&Record::Start {
        unix_ns: origin.unix_ns,
        process: std::process::id(),
        program: cut(&program),
    });
    encoder.define(&Record::Pool {
        pool: 1,
        name: cut(&pool.name),
        device: cut(&pool.device),
        ordinal: pool.ordinal,
        device_key: pool.device_key,
    });
    WrittenTags::default().catch_up(&mut encoder);
    // Where another thread looks up lines for too long, the dump has no call sites.
    let has_sites = WrittenSites::default().catch_up(&mut encoder).is_ok();
    for event in events(origin, held, live, failed) {
        let site = if has_sites { event.site } else { 0 };
        encoder.event(0, &Event { site, ..event });
    }
    encoder.define(&Record::Message { text: cut(&failed.to_string()) });
    encoder.define(&Record::End);
    encoder.seal();
    let mut bytes = file_head().to_vec();
    while let Some(chunk) = encoder.take() {
        bytes.extend(chunk.bytes);
    }
    bytes
}

fn events(origin: Origin, held: &Held, live: &[(DevicePtr, u64)], failed: &OutOfMemory) -> Vec<Event> {
    let at = |moment: Moment| nanoseconds(moment.since(origin.moment));
    let plain =
        Event { time: 0, address: 0, size: 0, stream: 0, pool: 1, tag: 0, site: 0, kind: Kind::Reserved };
    let alloc = |sample: &Sample| Event {
        time: at(sample.allocated),
        address: sample.ptr.raw(),
        size: sample.bytes,
        stream: sample.stream,
        tag: sample.tag,
        site: sample.site,
        kind: Kind::Alloc,
        ..plain
    };
    let time = at(Moment::now());
    let mut events = vec![Event { size: failed.reserved, ..plain }];
    for &(ptr, bytes) in live {
        let not_sampled = || Event { time, address: ptr.raw(), size: bytes, kind: Kind::Alloc, ..plain };
        events.push(held.live.get(&ptr).map_or_else(not_sampled, alloc));
    }
    for (sample, freed) in &held.freed {
        let alloc = alloc(sample);
        events.extend([alloc, Event { time: at(*freed), kind: Kind::Free, ..alloc }]);
    }
    events.sort_by_key(|event| (event.time, event.kind != Kind::Free));
    let (address, size) = (failed.device_free, failed.requested);
    events.push(Event { time, address, size, kind: Kind::OutOfMemory, ..plain });
    events.push(Event { time, kind: Kind::PoolEnd, ..plain });
    events
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn no_more_than_four_files_of_a_name_are_made() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str| folder.path().join(name);
        let made: Vec<_> =
            std::iter::from_fn(|| create(&named("a.b.mprec")).unwrap()).map(|made| made.1).collect();
        let expected = ["a.b.mprec", "a.b.2.mprec", "a.b.3.mprec", "a.b.4.mprec"].map(named);
        assert_eq!(made, expected);
        let (file, own) = create(folder.path()).unwrap().unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(own, named(&format!("millpond-oom.{}.mprec", std::process::id())));
        assert!(create(&named("none/there.mprec")).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let (_, path) = create(&folder.path().join("oom.mprec")).unwrap().unwrap();
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(write((full, &path), b"chunks").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(!path.exists());
    }
}
