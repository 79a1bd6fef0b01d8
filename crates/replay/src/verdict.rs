//! What a replay comes to, in plain words: what wasted memory, which setting of PyTorch's allocator would have
//! helped, what Millpond would save.

use millpond::{Context, HumanBytes};
use millpond_baselines::{Allocator, Caching, CachingOptions, ChoiceError};

use crate::choice::Choice;
use crate::replay::{Program, ReplayError, UNLIMITED, Waste, at_peak, on_sim};
use crate::trace::Trace;

/// Settings of PyTorch's allocator that are tried, as `PYTORCH_CUDA_ALLOC_CONF` has them. Not
/// `garbage_collection_threshold`: it acts only below a memory fraction, and only once memory is short.
pub const SETTINGS: [&str; 6] = [
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
];

/// What the verdict is made of. Sizes in bytes.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The most that is requested at once.
    pub peak_requested: u64,
    /// The memory of PyTorch's allocator at its peak: with its default settings, or those chosen.
    pub pytorch: Waste,
    /// The memory of Millpond's pool at its peak.
    pub millpond: Waste,
    /// The setting that reserves least, and how much that is.
    pub best_setting: (&'static str, u64),
}

impl Verdict {
    /// Replays the trace as PyTorch would run it, with each of [`SETTINGS`], and through the pool.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn of(trace: &Trace, program: &Program, choice: &Choice) -> Result<Self, ReplayError> {
        let mut best_setting = ("", u64::MAX);
        for setting in SETTINGS {
            let outcome = on_sim(trace, program, &|context| with(setting, context), UNLIMITED)?;
            if outcome.peak_reserved < best_setting.1 {
                best_setting = (setting, outcome.peak_reserved);
            }
        }
        Ok(Self {
            peak_requested: program.peak_requested().0,
            pytorch: at_peak(program, &|context| choice.build("caching", context))?,
            millpond: at_peak(program, &|context| choice.build("millpond", context))?,
            best_setting,
        })
    }

    /// The verdict, a sentence or two a line.
    pub fn lines(&self) -> Vec<String> {
        vec![self.about_pytorch(), self.about_settings(), self.about_millpond()]
    }

    fn about_pytorch(&self) -> String {
        let Waste { reserved, requested, .. } = self.pytorch;
        let wasted = reserved.saturating_sub(requested);
        let held = format!(
            "PyTorch's allocator holds {} where {} are requested",
            HumanBytes(reserved),
            HumanBytes(requested)
        );
        if wasted <= reserved / 50 {
            return format!("{held}: next to nothing is wasted.");
        }
        let parts = causes(&self.pytorch);
        let said = parts.iter().filter(|(bytes, _)| bytes * 20 >= wasted);
        let said: Vec<_> = said.map(|(bytes, cause)| format!("{} {cause}", HumanBytes(*bytes))).collect();
        format!("{held}. Of the {} between them, {}.", HumanBytes(wasted), said.join(", "))
    }

    fn about_settings(&self) -> String {
        let (setting, reserved) = self.best_setting;
        let saved = self.pytorch.reserved.saturating_sub(reserved);
        let helped = if saved == 0 || saved < self.pytorch.reserved / 100 {
            "No setting of PyTorch's allocator that was tried would have saved as much as 1 %.".to_owned()
        } else {
            format!(
                "PYTORCH_CUDA_ALLOC_CONF={setting} would have saved {} ({:.0} %): {} instead of {}.",
                HumanBytes(saved),
                percent(saved, self.pytorch.reserved),
                HumanBytes(reserved),
                HumanBytes(self.pytorch.reserved),
            )
        };
        // Who reads of cached segments reaches for this setting, which alone does nothing.
        let caches = self.pytorch.caches.max(self.pytorch.other_streams);
        if caches * 10 < self.pytorch.reserved {
            return helped;
        }
        helped
            + " (garbage_collection_threshold does nothing unless torch.cuda.set_per_process_memory_fraction sets a \
               share below 1.)"
    }

    fn about_millpond(&self) -> String {
        let reserved = self.millpond.reserved;
        let best = self.best_setting.1.min(self.pytorch.reserved);
        let over = percent(reserved.saturating_sub(self.peak_requested), self.peak_requested.max(1));
        let against = |other: u64, whom: &str| match other.checked_sub(reserved) {
            Some(0) => format!("as much as {whom}"),
            Some(less) => format!("{} less than {whom}", HumanBytes(less)),
            None => format!("{} more than {whom}", HumanBytes(reserved - other)),
        };
        format!(
            "Millpond would hold {}, {over:.1} % more than the most that is requested at once: {}, {}.",
            HumanBytes(reserved),
            against(self.pytorch.reserved, "PyTorch's allocator"),
            against(best, "the best of its settings"),
        )
    }
}

/// The parts of what is wasted, the largest first.
fn causes(waste: &Waste) -> Vec<(u64, &'static str)> {
    let mut parts = vec![
        (waste.other_streams, "were free but kept for other streams"),
        (waste.holes, "lay in holes between live blocks, too small for what was asked next"),
        (waste.caches, "lay in whole segments that were cached and fitted nothing"),
        (waste.rounding, "went into rounding"),
    ];
    parts.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    parts
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

fn with(setting: &str, context: &Context) -> Result<Box<dyn Allocator>, ChoiceError> {
    let options: CachingOptions = setting.parse()?;
    Ok(Box::new(Caching::with_options(context, options)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waste(requested: u64, holes: u64, other_streams: u64) -> Waste {
        let reserved = requested + holes + other_streams;
        Waste { reserved, requested, holes, other_streams, ..Waste::default() }
    }

    #[test]
    fn the_largest_cause_is_named_first_and_small_ones_not_at_all() {
        let verdict = Verdict {
            peak_requested: 10 << 30,
            pytorch: waste(10 << 30, 1 << 20, 10 << 30),
            millpond: waste(10 << 30, 100 << 20, 0),
            best_setting: ("expandable_segments:True", 12 << 30),
        };
        let [pytorch, setting, millpond] = &verdict.lines()[..] else { panic!("three lines") };
        assert!(pytorch.ends_with("10.00 GiB were free but kept for other streams."), "{pytorch}");
        assert!(setting.contains("expandable_segments:True would have saved 8.00 GiB (40 %)"), "{setting}");
        assert!(setting.contains("garbage_collection_threshold does nothing unless"), "{setting}");
        assert!(millpond.contains("1.0 % more than the most"), "{millpond}");
        // Its settings may be chosen: these are not always its default.
        assert!(
            millpond.contains("less than PyTorch's allocator, 1.90 GiB less than the best"),
            "{millpond}"
        );
    }

    #[test]
    fn a_job_that_wastes_nothing_is_told_so() {
        let verdict = Verdict {
            peak_requested: 10 << 30,
            pytorch: waste(10 << 30, 1 << 20, 0),
            millpond: waste(10 << 30, 1 << 20, 0),
            best_setting: ("expandable_segments:True", 10 << 30),
        };
        assert!(verdict.lines()[0].ends_with("next to nothing is wasted."));
        assert!(verdict.lines()[1].starts_with("No setting"));
        assert!(
            verdict.lines()[2]
                .ends_with("as much as PyTorch's allocator, 1.00 MiB more than the best of its settings.")
        );
    }

    #[test]
    fn a_job_that_asked_for_nothing_is_told_so_too() {
        let verdict = Verdict {
            peak_requested: 0,
            pytorch: Waste::default(),
            millpond: Waste::default(),
            best_setting: ("expandable_segments:True", 0),
        };
        let lines = verdict.lines();
        assert!(lines[0].ends_with("next to nothing is wasted."), "{lines:?}");
        assert!(lines[1].starts_with("No setting"), "{lines:?}");
        assert!(lines[2].contains("0.0 % more"), "{lines:?}");
    }

    #[test]
    fn every_setting_that_is_tried_is_one_of_pytorchs() {
        for setting in SETTINGS {
            assert!(setting.parse::<CachingOptions>().is_ok(), "{setting}");
        }
    }
}
