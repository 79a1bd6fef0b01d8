//! Amounts of memory on the command line: `20GiB`, `20Gi`, `20G`, and `50%` of a GPU.

use millpond::bindings::Amount;

use crate::error::{Error, Result};
use crate::live::gpus::{Gpu, Gpus};

/// A number of bytes; no part.
pub(crate) fn bytes(text: &str) -> std::result::Result<u64, String> {
    match text.parse()? {
        Amount::Bytes(bytes) => Ok(bytes),
        Amount::Percent(_) => {
            Err("a part is of one GPU, which is not known here: use a size, such as 20GiB".to_owned())
        }
    }
}

/// In bytes. A part is one of the smallest GPU, by NVIDIA's library.
pub(crate) fn of_the_gpus(amount: Amount) -> Result<u64> {
    match amount {
        Amount::Bytes(bytes) => Ok(bytes),
        Amount::Percent(_) => part_of(amount, Gpus::open().look()),
    }
}

fn part_of(amount: Amount, gpus: std::result::Result<Vec<Gpu>, String>) -> Result<u64> {
    let refused =
        |why: &str| Error::Usage(format!("the GPUs' memory is not known: {why}: use a size, such as 20GiB"));
    let gpus = gpus.map_err(|why| refused(&why))?;
    let least = gpus.iter().map(|gpu| gpu.total).min();
    Ok(amount.of(least.ok_or_else(|| refused("there is none"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(total: u64) -> Gpu {
        let (name, uuid) = (String::new(), String::new());
        Gpu { number: 0, name, uuid, total, used: 0, processes: Vec::new() }
    }

    #[test]
    fn a_part_is_of_the_smallest_gpu() {
        let half = Amount::Percent(50.0);
        assert_eq!(part_of(half, Ok(vec![gpu(80 << 30), gpu(40 << 30)])).unwrap(), 20 << 30);
        for gpus in [Ok(Vec::new()), Err("there is no library".to_owned())] {
            assert!(part_of(half, gpus).unwrap_err().to_string().contains("use a size"));
        }
        assert_eq!((bytes("20Gi"), bytes("50%").is_err()), (Ok(20 << 30), true));
    }
}
