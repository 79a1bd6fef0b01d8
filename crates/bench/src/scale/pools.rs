//! Beside many pools.

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool};

use super::Meter;
use super::pages::CAPACITY;
use crate::Result;

/// The last of so many pools, each with one block.
pub(super) fn pool(meter: &mut Meter, pools: u64) -> Result<()> {
    let context = Context::new(SimDevice::new(SimOptions::default().capacity(CAPACITY))?);
    let stream = context.create_stream()?;
    let with_block = || -> Result<Pool> {
        let pool = Pool::builder(&context).live(false).build()?;
        _ = pool.alloc(4096, &stream)?;
        Ok(pool)
    };
    let mut all = Vec::new();
    for left in (0..pools).rev() {
        all.push(if left < 20 { meter.watch(1, with_block)? } else { with_block()? });
    }
    Ok(())
}
