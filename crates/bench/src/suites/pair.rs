//! One pair, and the sizes that suites speak of.

use crate::error::Result;
use crate::opaque::Opaque;
use crate::subject::Subject;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;

/// Allocates and frees once. The size is not known to the compiler, and the block is not optimised away.
#[inline(always)]
pub(super) fn pair<S: Subject>(subject: &S, bytes: u64, stream: &S::Stream) -> Result<()> {
    let block = subject.allocate(bytes.opaque(), stream)?;
    subject.free(block.opaque(), stream)
}
