//! Allocates and frees so many times on the simulated device, and does nothing else: what `scripts/instructions`
//! counts the instructions of.
//!
//! ```text
//! pairs [ALLOCATOR [BYTES [PAIRS]]]
//! ```

use std::error::Error;

use millpond::device::DeviceName;
use millpond_bench::{Target, repeat};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let allocator = args.next().unwrap_or_else(|| "millpond".to_owned());
    let bytes = args.next().map_or(Ok(512), |text| text.parse())?;
    let pairs = args.next().map_or(Ok(1000), |text| text.parse())?;
    let (target, _) = Target::find(DeviceName::SIM.into())?;
    repeat(&target, &allocator, bytes, pairs)?;
    println!("{allocator}: {pairs} pairs of {bytes} bytes");
    Ok(())
}
