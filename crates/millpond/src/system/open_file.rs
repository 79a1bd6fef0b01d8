//! `open_file`: a file that is open without a descriptor. Uses `process`; every floor may use it.

use std::io;

use memmap2::{MmapAsRawDesc, MmapOptions, MmapRaw};

use crate::system::process::OfProcess;

/// The open file description of a descriptor, which may be closed. It is let go of when this is dropped, at `exec`, and
/// at the end of the process. A forked child has it, too, until one of the latter two, as it has the driver's descriptors.
///
/// The locks of an open file description (`F_OFD_SETLK`) last as long as anybody has it. A mapping has it, of which
/// nothing is ever read. So it takes no descriptor. And a process that ends lets go of its mappings' files after those of
/// its descriptors (Linux closes what was let go of last first), so after the driver's.
pub(crate) type OpenFile = OfProcess<MmapRaw>;

/// Keeps a file open that has at least one byte.
pub(crate) fn keep_open(file: impl MmapAsRawDesc) -> io::Result<OpenFile> {
    MmapOptions::new().len(1).map_raw_read_only(file).map(OfProcess::new)
}
