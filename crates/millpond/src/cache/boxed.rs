//! Boxes for which the host may have no memory.

pub(super) use crate::host::try_box;
