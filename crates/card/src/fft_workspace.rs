//! How much memory a Fourier transform works in, as far as cuFFT's documentation says it.

use std::ffi::{c_int, c_longlong};

/// What a plan is made for.
#[derive(Debug)]
pub(crate) struct Transform<'a> {
    pub(crate) lengths: &'a [c_longlong],
    /// `cudaDataType` of what goes in and comes out.
    pub(crate) types: [c_int; 2],
    pub(crate) batch: c_longlong,
}

/// `cudaDataType`: real numbers of 64, 32 and 16 bits, then complex ones.
const REAL: [c_int; 3] = [1, 0, 2];
const DOUBLE: [c_int; 2] = [1, 5];
const HALF: [c_int; 2] = [2, 6];

/// Lengths with a prime factor above this go through a transform of twice as many places (cuFFT documentation, "Accuracy and
/// performance").
const LARGEST_PRIME: u64 = 127;

impl Transform<'_> {
    /// Bytes: as many as the complex values of the transform have ("In most cases, the work area is as large as the signal").
    pub(crate) fn workspace(&self) -> usize {
        let is_real = self.types.iter().any(|kind| REAL.contains(kind));
        let each = match self.types {
            types if types.iter().any(|kind| DOUBLE.contains(kind)) => 16,
            types if types.iter().any(|kind| HALF.contains(kind)) => 4,
            _ => 8,
        };
        let lengths = self.lengths.iter().map(|length| u64::try_from(*length).unwrap_or(0));
        let last = self.lengths.len().saturating_sub(1);
        let places = lengths.enumerate().map(|(at, length)| match length {
            _ if largest_prime_of(length) > LARGEST_PRIME => (2 * length).next_power_of_two(),
            _ if is_real && at == last => length / 2 + 1,
            _ => length,
        });
        let places = places.fold(1u64, u64::saturating_mul);
        let batch = u64::try_from(self.batch).unwrap_or(0);
        usize::try_from(places.saturating_mul(batch).saturating_mul(each)).unwrap_or(usize::MAX)
    }
}

fn largest_prime_of(mut number: u64) -> u64 {
    let (mut largest, mut factor) = (1, 2);
    while factor * factor <= number {
        while number.is_multiple_of(factor) {
            (largest, number) = (factor, number / factor);
        }
        factor += 1;
    }
    largest.max(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transform_works_in_as_much_as_its_complex_values_have() {
        let of = |lengths: &[c_longlong], types, batch| Transform { lengths, types, batch }.workspace();
        assert_eq!(of(&[1024], [4, 4], 64), 64 * 1024 * 8);
        assert_eq!(of(&[1024], [0, 4], 64), 64 * 513 * 8);
        assert_eq!(of(&[100, 100], [5, 1], 3), 3 * 100 * 51 * 16);
        assert_eq!(of(&[256], [6, 6], 1), 256 * 4);
        // 1,021 is prime.
        assert_eq!(of(&[1021], [4, 4], 1), 2048 * 8);
        assert_eq!(of(&[], [4, 4], 1), 8);
    }
}
