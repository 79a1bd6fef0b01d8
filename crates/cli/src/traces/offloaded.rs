//! What a job would need whose memory under a tag is offloaded, and what that costs: for `replay` and `predict`.

use millpond::{Context, HumanBytes};
use millpond_baselines::MILLPOND;
use millpond_replay::choice::Choice;
use millpond_replay::fit::Need;
use millpond_replay::offload::{Offload, PAGE_SIZES};
use millpond_replay::replay::{Program, UNLIMITED, on_sim};
use millpond_replay::trace::Trace;
use serde::Serialize;

use crate::error::Result;

/// Bytes a second that a plain copy of pinned memory takes between an H100 or H200 and its host, each way: PCIe 5.0 with 16 lanes.
const BANDWIDTH: f64 = 55e9;

/// How fast copies are: GB/s, each way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bandwidth(f64);

impl Default for Bandwidth {
    fn default() -> Self {
        Self(BANDWIDTH)
    }
}

impl Bandwidth {
    /// As an argument says it.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let said = text.parse().ok().filter(|speed: &f64| speed.is_finite() && *speed > 0.0);
        said.map(|speed| Self(speed * 1e9))
            .ok_or_else(|| format!("'{text}' is no number of GB/s above 0, such as 55"))
    }
}

/// What came of it. Sizes in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Offloaded {
    #[serde(flatten)]
    offload: Offload,
    /// With Millpond; `None` where no size suffices.
    needs: Option<u64>,
    /// Bytes a second, each way.
    bandwidth: f64,
    /// Seconds that the copies of one time take, both ways.
    copies_s: f64,
    /// Whether the bandwidth was not said.
    #[serde(skip)]
    is_assumed: bool,
}

impl Offloaded {
    /// By a replay with Millpond's allocator.
    pub(crate) fn of(
        (trace, program): (&Trace, &Program),
        tag: &str,
        bandwidth: Option<Bandwidth>,
    ) -> Result<Self> {
        let offload = Offload::of(trace, program, tag)?;
        let choice = Choice { page_sizes: Some(PAGE_SIZES), ..Choice::default() };
        let choose = |context: &Context| choice.build(MILLPOND, context);
        let unlimited = on_sim(trace, &offload.program, &choose, UNLIMITED)?;
        let needs = Need::of(&offload.program, &choose, &unlimited)?.map(|need| need.most());
        let Bandwidth(speed) = bandwidth.unwrap_or_default();
        let (copies_s, is_assumed) = (offload.copy_seconds(speed), bandwidth.is_none());
        Ok(Self { offload, needs, bandwidth: speed, copies_s, is_assumed })
    }

    /// For people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let Offload { tag, bytes, times, peak_requested, peak_before, away_us, .. } = &self.offload;
        let needs = self
            .needs
            .map_or_else(String::new, |needs| format!(", and needs {} with millpond", HumanBytes(needs)));
        let assumed = if self.is_assumed {
            ", as pinned copies over PCIe 5.0 are; --bandwidth says another"
        } else {
            ""
        };
        let less = match peak_before.saturating_sub(*peak_requested) {
            0 => "as without".to_owned(),
            less => format!("{} less", HumanBytes(less)),
        };
        let mut lines = vec![
            format!("With '{tag}' offloaded: {} that leave {times} times", HumanBytes(*bytes)),
            format!("requests {} at most, {less}{needs}", HumanBytes(*peak_requested)),
            format!(
                "each time {} travel, both ways together: {} at {} GB/s{assumed}",
                HumanBytes(self.offload.bytes_a_time),
                time(self.copies_s),
                self.bandwidth / 1e9
            ),
        ];
        if let Some(away_us) = away_us {
            let away = *away_us as f64 / 1e6;
            let longer = self.copies_s - away;
            let said = match longer > 0.0 {
                true => format!("so a step takes {} longer at least", time(longer)),
                false => "so there is time for that".to_owned(),
            };
            lines.push(format!("it is away for {} in the mean, {said}", time(away)));
        }
        lines
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        small if small < 1e-3 => format!("{:.0} µs", small * 1e6),
        medium if medium < 1.0 => format!("{:.0} ms", medium * 1e3),
        large => format!("{large:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_is_a_number_above_zero() {
        assert_eq!(Bandwidth::parse("12.5").unwrap().0, 12.5e9);
        for wrong in ["0", "-1", "fast", "inf", "nan", ""] {
            assert!(Bandwidth::parse(wrong).unwrap_err().contains("no number of GB/s"), "{wrong}");
        }
    }
}
