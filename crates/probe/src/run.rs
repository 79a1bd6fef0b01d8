//! Repeats work until its time is over, and makes a row of the samples.

use std::fmt::Display;
use std::time::Instant;

use crate::{Effort, Measured, Result, Row, Section, Unit};

/// Samples of a figure at least, however long they take.
const LEAST_SAMPLES: usize = 3;
/// Samples of a figure at most.
const MOST_SAMPLES: usize = 1_000;
/// Sizes grow by this factor.
const STEP: u64 = 4;

/// How a sample's nanoseconds become a figure.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scale {
    /// So many bytes were moved.
    Bytes(u64),
    /// So many calls or steps were made: nanoseconds of each.
    Each(u64),
    /// One call was made: microseconds.
    Call,
}

impl Scale {
    fn figure(self, ns: f64) -> f64 {
        match self {
            // Bytes in a nanosecond are 10⁹ bytes in a second.
            Self::Bytes(bytes) => bytes as f64 / ns.max(1.0),
            Self::Each(count) => ns / count.max(1) as f64,
            Self::Call => ns / 1e3,
        }
    }

    fn unit(self) -> Unit {
        match self {
            Self::Bytes(_) => Unit::GigabytesPerSecond,
            Self::Each(_) => Unit::Nanoseconds,
            Self::Call => Unit::Microseconds,
        }
    }
}

/// Hears of each figure before it is measured, and says whether to go on.
type GoOn<'a> = dyn FnMut(&str) -> bool + Send + 'a;

/// A section while it is measured.
pub(crate) struct Run<'a> {
    section: Section,
    pub(crate) effort: Effort,
    go_on: &'a mut GoOn<'a>,
    is_over: bool,
    measured: Measured,
}

impl<'a> Run<'a> {
    pub(crate) fn new(section: Section, effort: Effort, go_on: &'a mut GoOn<'a>) -> Self {
        Self { section, effort, go_on, is_over: false, measured: Measured::default() }
    }

    /// Sizes from `least` to the largest of the run.
    pub(crate) fn sizes(&self, least: u64) -> impl Iterator<Item = u64> + use<> {
        let most = self.effort.most_bytes;
        std::iter::successors(Some(least), |size| size.checked_mul(STEP))
            .take_while(move |size| *size <= most)
    }

    /// Measures one figure. `sample` does the work once and returns its nanoseconds.
    pub(crate) fn figure(
        &mut self,
        what: &str,
        bytes: Option<u64>,
        scale: Scale,
        mut sample: impl FnMut() -> Result<f64>,
    ) {
        self.figures([(what, scale)], bytes, || Ok([sample()?]));
    }

    /// Measures several figures, of which each sample has one time each.
    pub(crate) fn figures<const N: usize>(
        &mut self,
        of: [(&str, Scale); N],
        bytes: Option<u64>,
        sample: impl FnMut() -> Result<[f64; N]>,
    ) {
        let name = of.map(|(what, _)| what).join(", ");
        if self.is_over || !(self.go_on)(&name) {
            self.is_over = true;
            return;
        }
        match self.samples(sample) {
            Ok(samples) => {
                for (at, (what, scale)) in of.into_iter().enumerate() {
                    let figures = samples.iter().map(|times| scale.figure(times[at]));
                    let row = self.row(what, bytes, scale.unit(), figures.collect());
                    self.measured.rows.push(row);
                }
            }
            Err(why) => self.leave_out(&name, &why),
        }
    }

    fn samples<const N: usize>(&self, mut sample: impl FnMut() -> Result<[f64; N]>) -> Result<Vec<[f64; N]>> {
        let time = self.effort.time;
        let began = Instant::now();
        let first = sample()?;
        // The first one warms up what it uses, and counts only where it takes so long that this is small beside it.
        let mut samples = if began.elapsed() > time { vec![first] } else { Vec::new() };
        let began = Instant::now();
        while samples.len() < LEAST_SAMPLES || began.elapsed() < time && samples.len() < MOST_SAMPLES {
            samples.push(sample()?);
        }
        Ok(samples)
    }

    fn row(&self, what: &str, bytes: Option<u64>, unit: Unit, mut figures: Vec<f64>) -> Row {
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| rounded(figures.get(index).copied().unwrap_or_default());
        Row {
            section: self.section.name(),
            what: what.to_owned(),
            bytes,
            unit,
            median: at(figures.len() / 2),
            least: at(0),
            most: at(figures.len().saturating_sub(1)),
            samples: figures.len(),
            peak: None,
        }
    }

    /// Keeps a figure that was measured elsewhere.
    pub(crate) fn keep(
        &mut self,
        what: &str,
        bytes: Option<u64>,
        unit: Unit,
        [least, median, most]: [f64; 3],
    ) {
        let row = self.row(what, bytes, unit, vec![median]);
        self.measured.rows.push(Row { least: rounded(least), most: rounded(most), ..row });
    }

    /// Says that something was not measured.
    pub(crate) fn leave_out(&mut self, what: &str, why: &dyn Display) {
        let section = self.section.name();
        let of = if what == section { what.to_owned() } else { format!("{section}, {what}") };
        self.measured.left_out.push(format!("{of}: left out: {why}"));
    }

    /// Whether a figure of this name is still wanted.
    pub(crate) fn wants(&mut self, what: &str) -> bool {
        self.is_over |= !(self.go_on)(what);
        !self.is_over
    }

    pub(crate) fn end(self) -> Measured {
        self.measured
    }
}

/// The nanoseconds that some work takes the calling thread.
pub(crate) fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    Ok(made(work)?.1)
}

/// What some work makes, and the nanoseconds that it takes the calling thread.
pub(crate) fn made<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let began = Instant::now();
    let value = work()?;
    Ok((value, began.elapsed().as_nanos() as f64))
}

/// To four digits: what is below is noise.
fn rounded(figure: f64) -> f64 {
    if figure <= 0.0 || !figure.is_finite() {
        return 0.0;
    }
    let unit = 10_f64.powf(figure.log10().floor() - 3.0);
    let digits = (figure / unit).round();
    // By a division where the unit is below 1, so that 0.1234 is not 0.12340000000000001.
    if unit < 1.0 { digits / (1.0 / unit).round() } else { digits * unit.round() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const EFFORT: Effort = Effort { time: Duration::from_millis(1), most_bytes: 1 << 20 };

    #[test]
    fn the_median_and_the_spread_are_of_all_samples_but_the_first() {
        let mut times = [900.0, 30.0, 10.0, 20.0].into_iter();
        let mut go_on = |_: &str| true;
        let mut run = Run::new(Section::Calls, Effort { time: Duration::ZERO, ..EFFORT }, &mut go_on);
        // No time at all: the first sample counts.
        run.figure("call", None, Scale::Each(10), || Ok(times.next().unwrap_or(25.0)));
        let row = &run.end().rows[0];
        assert_eq!((row.least, row.median, row.most, row.samples), (1.0, 3.0, 90.0, 3));
    }

    #[test]
    fn what_fails_is_left_out_and_the_rest_goes_on() {
        let mut go_on = |_: &str| true;
        let mut run = Run::new(Section::Calls, EFFORT, &mut go_on);
        run.figure("first", None, Scale::Call, || Err(crate::Error::Thread));
        run.figure("second", Some(4096), Scale::Bytes(2000), || Ok(1000.0));
        let Measured { rows, left_out } = run.end();
        assert_eq!(left_out, ["calls, first: left out: a measuring thread panicked; its message is above"]);
        assert_eq!((rows.len(), rows[0].median, rows[0].unit), (1, 2.0, Unit::GigabytesPerSecond));
    }

    #[test]
    fn nothing_is_measured_once_it_is_over() {
        let mut asked = 0;
        let mut go_on = |_: &str| {
            asked += 1;
            asked < 2
        };
        let mut run = Run::new(Section::Calls, EFFORT, &mut go_on);
        for name in ["first", "second", "third"] {
            run.figure(name, None, Scale::Call, || Ok(1.0));
        }
        assert_eq!(run.end().rows.len(), 1);
        assert_eq!(asked, 2);
    }

    #[test]
    fn figures_have_four_digits() {
        let shown = [0.0, 0.123_456, 12.345_6, 4_917_123.0].map(rounded);
        assert_eq!(shown, [0.0, 0.1235, 12.35, 4_917_000.0]);
    }
}
