//! Whether the machine kept its speed: the reference, measured again and again.

use crate::{Bench, Result, Row};

/// A run whose reference moved by more than this is said to have drifted.
const MOST: f64 = 1.10;

/// The reference in the course of a run: what a pair of 512 B costs mimalloc.
#[derive(Debug, Clone, PartialEq)]
pub struct Drift {
    /// As it was at first.
    reference: Row,
    rows: Vec<Row>,
}

impl Drift {
    /// Measures the reference before everything else.
    ///
    /// # Errors
    /// Where mimalloc has no memory.
    pub fn begin(bench: &Bench) -> Result<Self> {
        let reference = bench.reference()?;
        let mut begun = Self { reference: reference.clone(), rows: Vec::new() };
        begun.add("before all", reference);
        Ok(begun)
    }

    /// Measures the reference again.
    ///
    /// # Errors
    /// Where mimalloc has no memory.
    pub fn measure(&mut self, bench: &Bench, when: &str) -> Result<()> {
        self.add(when, bench.reference()?);
        Ok(())
    }

    fn add(&mut self, when: &str, reference: Row) {
        self.rows.push(Row { suite: "reference", mode: when.to_owned(), ..reference });
    }

    /// The reference as it was at first, which other figures are held against.
    pub fn reference(&self) -> &Row {
        &self.reference
    }

    /// The reference as it was each time. The mode says when.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// How many times as long the slowest took as the fastest. 1 where one took no time that could be measured.
    pub fn factor(&self) -> f64 {
        let [least, most] = self.range();
        if least > 0.0 { most / least } else { 1.0 }
    }

    /// One sentence for people, and what to do where the machine did not keep its speed.
    pub fn sentence(&self) -> String {
        let [least, most] = self.range();
        if self.factor() <= MOST {
            return format!(
                "The reference stayed at {least:.1} to {most:.1} ns: the machine kept its speed."
            );
        }
        format!(
            "The reference took {least:.1} to {most:.1} ns in the course of this run: the machine changed its speed. \
             Compare allocators within a table only, or measure again while nothing else runs."
        )
    }

    /// Least and most nanoseconds.
    fn range(&self) -> [f64; 2] {
        let times = self.rows.iter().map(|row| row.p50_ns);
        times.fold([f64::INFINITY, 0.0], |[least, most], ns| [least.min(ns), most.max(ns)])
    }
}

#[cfg(test)]
impl Drift {
    /// With these times, in nanoseconds.
    pub(crate) fn of_test(times: &[f64]) -> Self {
        let row = |&p50_ns| Row { p50_ns, ..Row::for_test(crate::Suite::Reference, "pair", "mimalloc", 1) };
        Self { reference: row(&times[0]), rows: times.iter().map(row).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_moves_by_a_tenth_is_told() {
        let kept = Drift::of_test(&[5.8, 6.1, 5.9]).sentence();
        assert!(kept.starts_with("The reference stayed at 5.8 to 6.1 ns"), "{kept}");
        let moved = Drift::of_test(&[5.8, 10.6, 7.0]).sentence();
        assert!(moved.starts_with("The reference took 5.8 to 10.6 ns in the course"), "{moved}");
        assert!((Drift::of_test(&[5.0, 10.0]).factor() - 2.0).abs() < 1e-9);
        assert!((Drift::of_test(&[0.0, 10.0]).factor() - 1.0).abs() < 1e-9);
    }
}
