//! Figures beside one another.

use crate::Row;

/// How many times as long `row` takes as `other`: by the median, or where both had several threads by what those did
/// together. None where one of them took no time that could be measured.
pub fn times(row: &Row, other: &Row) -> Option<f64> {
    let (long, short) = if row.threads > 1 && other.threads > 1 {
        (other.pairs_per_s, row.pairs_per_s)
    } else {
        (row.p50_ns, other.p50_ns)
    };
    (long > 0.0 && short > 0.0).then(|| long / short)
}

/// How many times as long `row` takes as the reference: as that was measured by turns with the row, else as it was before
/// all.
pub fn times_reference(row: &Row, reference: &Row) -> Option<f64> {
    match row.reference_p50_ns {
        Some(beside) if row.threads == 1 => (row.p50_ns > 0.0 && beside > 0.0).then(|| row.p50_ns / beside),
        _ => times(row, reference),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Suite;

    #[test]
    fn a_mark_measured_beside_a_row_comes_first() {
        let reference = Row::for_test(Suite::Latency, "pair", "mimalloc", 1);
        let mut row = reference.clone();
        (row.p50_ns, row.reference_p50_ns) = (30.0, Some(20.0));
        assert_eq!(times_reference(&row, &reference), Some(1.5));
        row.reference_p50_ns = None;
        assert_eq!(times_reference(&row, &reference), Some(3.0));
        row.reference_p50_ns = Some(0.0);
        assert_eq!(times_reference(&row, &reference), None);
    }

    #[test]
    fn one_thread_is_compared_by_median_several_by_total() {
        let mut ours = Row::for_test(Suite::Threads, "1MiB", "millpond", 1);
        let mut other = ours.clone();
        (ours.p50_ns, other.p50_ns) = (10.0, 30.0);
        (ours.pairs_per_s, other.pairs_per_s) = (8e6, 2e6);
        assert_eq!(times(&other, &ours), Some(3.0));
        (ours.threads, other.threads) = (4, 4);
        assert_eq!(times(&other, &ours), Some(4.0));
        other.pairs_per_s = 0.0;
        assert_eq!(times(&other, &ours), None);
    }
}
