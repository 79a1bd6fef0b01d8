//! Sizes on the command line, in bytes.

use millpond_replay::replay::UNLIMITED;

pub(crate) fn size(text: &str) -> Result<u64, String> {
    match size_or_none(text) {
        Ok(0) => Err(A_SIZE.to_owned()),
        other => other,
    }
}

/// No more than a device may claim to have: allocators reserve addresses in proportion to it.
pub(crate) fn capacity(text: &str) -> Result<u64, String> {
    // A bare number can only be GiB: no device has so few bytes.
    let text = match text.trim().parse::<f64>() {
        Ok(number) if (1.0..=512.0).contains(&number) => format!("{}GiB", text.trim()),
        _ => text.to_owned(),
    };
    match size(&text) {
        Ok(bytes) if bytes > UNLIMITED => Err("16TiB are the most that can be simulated".to_owned()),
        other => other,
    }
}

pub(crate) fn size_or_none(text: &str) -> Result<u64, String> {
    size_near(text, |number| if number < 256.0 { "GiB" } else { "MiB" })
}

/// `unit` is what a number without one most likely means.
fn size_near(text: &str, unit: fn(f64) -> &'static str) -> Result<u64, String> {
    // "24G" means 24 GiB, as for every other tool that speaks of GPU memory.
    let bytes = parse_size::Config::new().with_binary().parse_size(text).map_err(|_| A_SIZE.to_owned())?;
    let number = text.trim();
    match number.parse::<f64>() {
        // Nobody means so few bytes.
        Ok(plain) if bytes < LEAST_WITHOUT_UNIT && plain > 0.0 => {
            Err(format!("{number} without a unit is {number} bytes; did you mean {number}{}?", unit(plain)))
        }
        _ => Ok(bytes),
    }
}

const LEAST_WITHOUT_UNIT: u64 = 1 << 20;

const A_SIZE: &str = "expected a size such as 24GiB, 512MiB or 8000000000";

/// Whether they are powers of two, the pool says.
pub(crate) fn page_sizes(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("expected two sizes, such as 2MiB..64MiB")?;
    let page = |text| {
        size_near(text, |_| "MiB")
            .and_then(|bytes| if bytes == 0 { Err(A_SIZE.to_owned()) } else { Ok(bytes) })
    };
    Ok((page(from)?, page(to)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_unless_they_say_otherwise() {
        assert_eq!(size("24GiB"), Ok(24 << 30));
        assert_eq!(size("24g"), Ok(24 << 30));
        assert_eq!(size("24KiB"), Ok(24 << 10));
        assert_eq!(size("8000000000"), Ok(8_000_000_000));
        assert!(size("0").is_err());
        assert!(size("much").is_err());
        assert_eq!(capacity("16TiB"), Ok(UNLIMITED));
        let sizes = ["24", "23.5GiB", "24564MiB"].map(|text| capacity(text).unwrap() >> 20);
        assert_eq!(sizes, [24 << 10, 24064, 24564]);
        assert!(capacity("17TiB").unwrap_err().starts_with("16TiB are the most"));
        assert_eq!(size_or_none("0"), Ok(0));
        assert_eq!(page_sizes("2M..64MiB"), Ok((2 << 20, 64 << 20)));
        assert!(page_sizes("2MiB").is_err());
        assert!(page_sizes("0..2MiB").is_err());
    }

    #[test]
    fn a_number_that_cannot_be_bytes_is_refused_with_what_it_may_mean() {
        for (text, meant) in [("24", "24GiB"), ("512", "512MiB"), ("8192", "8192MiB"), (" 1.5 ", "1.5GiB")] {
            let said = size_or_none(text).unwrap_err();
            assert!(said.ends_with(&format!("did you mean {meant}?")), "{said}");
        }
        assert!(page_sizes("2..64MiB").unwrap_err().ends_with("did you mean 2MiB?"));
        assert_eq!(size_or_none("0"), Ok(0));
        assert_eq!(size_or_none("1048576"), Ok(1 << 20));
    }
}
