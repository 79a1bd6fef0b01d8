//! Managed memory.

use std::sync::Arc;

use millpond::device::Device;

use super::Gpu;
use crate::Result;
use crate::run::Run;

pub(super) fn measure(_gpu: &Gpu, _device: &Arc<dyn Device>, run: &mut Run<'_>) -> Result<()> {
    run.leave_out("managed", &"this version has no managed pool");
    Ok(())
}
