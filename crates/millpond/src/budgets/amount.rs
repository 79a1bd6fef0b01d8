//! An amount of memory, as people write it: `20GiB`, `20Gi`, `20G`, `1.5GiB`, `8000000000`, or `50%` of a device's.

use std::str::FromStr;

/// Bytes, or a part of what a device has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of the device's memory, at most 100.
    Percent(f64),
}

/// What an amount looks like.
const EXPECTED: &str = "expected a size such as 20GiB, 20Gi or 8000000000, or a part such as 50%";

/// A bare number of fewer bytes lacks its unit: no program on a GPU has so few.
const LEAST_WITHOUT_UNIT: f64 = (1 << 20) as f64;

impl Amount {
    /// In bytes, of a device that has so many.
    #[must_use]
    pub fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(part) => (total as f64 * (part / 100.0)) as u64,
        }
    }
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = || format!("'{text}' is no amount of memory: {EXPECTED}");
        let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim().to_ascii_lowercase();
        // "20G" means 20 GiB, as for every other tool that speaks of GPU memory.
        let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
            "%" if unit == "%" && number > 0.0 && number <= 100.0 => return Ok(Self::Percent(number)),
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            _ => return Err(wrong()),
        };
        let bytes = number * (1_u64 << shift) as f64;
        if unit.is_empty() && bytes < LEAST_WITHOUT_UNIT {
            let likely = if number < 256.0 { "GiB" } else { "MiB" };
            return Err(format!("{text} without a unit is {text} bytes; did you mean {text}{likely}?"));
        }
        // No device has more.
        let fits = (1.0..(1_u64 << 60) as f64).contains(&bytes);
        if fits { Ok(Self::Bytes(bytes as u64)) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        let bytes = |text: &str| match text.parse() {
            Ok(Amount::Bytes(bytes)) => bytes,
            other => panic!("{text}: {other:?}"),
        };
        for text in ["20GiB", "20Gi", "20G", "20 gib", "20gb", "21474836480", "20480MiB", "20480Mi"] {
            assert_eq!(bytes(text), 20 << 30, "{text}");
        }
        assert_eq!(bytes("1.5GiB"), 3 << 29);
        assert_eq!("50%".parse(), Ok(Amount::Percent(50.0)));
        assert_eq!(Amount::Percent(12.5).of(8 << 30), 1 << 30);
        for wrong in
            ["", "GiB", "20", "20X", "-1GiB", "0GiB", "0%", "101%", "5%i", "1e9GiB", "99999999TiB", "1..5G"]
        {
            assert!(wrong.parse::<Amount>().is_err(), "{wrong}");
        }
    }
}
