//! The stream that a builder launches on.

use std::fmt::{self, Write};

use cudarc::driver::LaunchArgs;

use crate::device::StreamHandle;

/// What the text of a builder begins with.
const BEFORE: &[u8] = b"LaunchArgs { stream: CudaStream { cu_stream: 0x";

/// The stream of a builder. cudarc shows it in the `Debug` of a builder only. `None` where another version shows something else.
pub(super) fn stream_of(builder: &LaunchArgs<'_>) -> Option<StreamHandle> {
    let mut start = Start { bytes: [0; _], len: 0 };
    // An error ends it as soon as all is there.
    write!(start, "{builder:?}").ok();
    let rest = start.bytes[..start.len].strip_prefix(BEFORE)?;
    let digits = &rest[..rest.iter().position(|byte| *byte == b',')?];
    let raw = u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    // SAFETY: the handle of the stream that the builder borrows.
    Some(unsafe { StreamHandle::from_raw(raw) })
}

/// The start of a text: as long as the handle of a stream and the comma behind it need.
struct Start {
    bytes: [u8; BEFORE.len() + 17],
    len: usize,
}

impl Write for Start {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        if self.len == self.bytes.len() || (self.len > BEFORE.len() && text.contains(',')) {
            return Err(fmt::Error);
        }
        Ok(())
    }
}
