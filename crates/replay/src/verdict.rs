//! What a replay comes to, in plain words: what the job needs with PyTorch's allocator and with Millpond, what is cache,
//! what wasted memory, and which setting of PyTorch's allocator would need less.

use std::cmp::Ordering;

use millpond::{Context, HumanBytes};
use millpond_baselines::{Allocator, Caching, CachingOptions, ChoiceError, MILLPOND};
use serde::Serialize;

use crate::choice::Choice;
use crate::fit::smallest_capacity;
use crate::replay::{Choose, Program, ReplayError, UNLIMITED, Waste, at_peak, on_sim};
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

/// What an allocator takes of a device for a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The smallest capacity, in bytes, on which the whole trace runs.
    pub bytes: u64,
    /// What the allocator holds at most where nothing limits it, in bytes.
    pub unlimited: u64,
    /// Pages and segments that it gives back to the device on that smallest capacity, to take others.
    pub given_back: u64,
}

impl Need {
    /// Looks for it, where `known` is not the capacity. `None` where the trace does not run without a limit either.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn of(
        trace: &Trace,
        program: &Program,
        choose: &Choose<'_>,
        known: Option<u64>,
    ) -> Result<Option<Self>, ReplayError> {
        let unlimited = on_sim(trace, program, choose, UNLIMITED)?;
        let bytes = match known {
            Some(bytes) => Some(bytes),
            None => smallest_capacity(trace, program, choose, &unlimited)?,
        };
        let Some(bytes) = bytes else { return Ok(None) };
        let calls = on_sim(trace, program, choose, bytes)?.device_calls;
        let given_back = calls.release + calls.free;
        Ok(Some(Self { bytes, unlimited: unlimited.peak_reserved, given_back }))
    }
}

/// What the verdict is made of. Sizes in bytes.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The most that is requested at once.
    pub peak_requested: u64,
    /// What PyTorch's allocator takes: with its default settings, or those chosen.
    pub pytorch: Option<Need>,
    /// Its memory when it holds the most.
    pub pytorch_waste: Waste,
    /// What Millpond's pool takes.
    pub millpond: Option<Need>,
    /// The setting of PyTorch's allocator that reserves least, and what it takes; `None` for a trace that is not
    /// PyTorch's.
    pub best_setting: Option<(&'static str, Need)>,
}

impl Verdict {
    /// Replays the trace as PyTorch would run it, with each of [`SETTINGS`], and through the pool. `known` is the
    /// smallest capacity for an allocator, where it was found before.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn of(
        trace: &Trace,
        program: &Program,
        choice: &Choice,
        known: impl Fn(&str) -> Option<u64>,
    ) -> Result<Self, ReplayError> {
        let need = |name: &'static str| {
            Need::of(trace, program, &|context| choice.build(name, context), known(name))
        };
        Ok(Self {
            peak_requested: program.peak_requested().0,
            pytorch: need(Caching::NAME)?,
            pytorch_waste: at_peak(program, &|context| choice.build(Caching::NAME, context))?,
            millpond: need(MILLPOND)?,
            best_setting: if trace.is_pytorchs { best_setting(trace, program)? } else { None },
        })
    }

    /// The verdict, a sentence or two a line.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.about_needs()];
        lines.extend(self.about_cache());
        lines.extend(self.about_waste());
        lines.extend(self.best_setting.map(|best| self.about_setting(best)));
        lines
    }

    fn about_needs(&self) -> String {
        let requested = format!("The job requests {} at most.", HumanBytes(self.peak_requested));
        let (Some(pytorch), Some(millpond)) = (self.pytorch, self.millpond) else {
            return requested + " It did not run to its end, so that nobody can say what it needs.";
        };
        let difference = match (pytorch.bytes.cmp(&millpond.bytes), pytorch.bytes.abs_diff(millpond.bytes)) {
            (Ordering::Equal, _) => "as much".to_owned(),
            (Ordering::Greater, less) => format!("{} less", HumanBytes(less)),
            (Ordering::Less, more) => format!("{} more", HumanBytes(more)),
        };
        format!(
            "{requested} To run, PyTorch's allocator needs {}, Millpond {}: {difference}.",
            HumanBytes(pytorch.bytes),
            HumanBytes(millpond.bytes),
        )
    }

    /// What is held where nothing limits it is no need: some of it is cache.
    fn about_cache(&self) -> Option<String> {
        let (pytorch, millpond) = (self.pytorch?, self.millpond?);
        let cache = pytorch.unlimited.saturating_sub(pytorch.bytes);
        let mut line = format!(
            "Without a limit PyTorch's allocator holds up to {}, Millpond {}.",
            HumanBytes(pytorch.unlimited),
            HumanBytes(millpond.unlimited),
        );
        if cache > pytorch.unlimited / 100 {
            line += &format!(
                " Of the former, {} are cache that it gives back when memory is short. On the smallest device it \
                 does so {}, each time waiting for the device.",
                HumanBytes(cache),
                times(pytorch.given_back),
            );
        }
        Some(line)
    }

    fn about_waste(&self) -> Option<String> {
        let Waste { reserved, requested, .. } = self.pytorch_waste;
        let wasted = reserved.saturating_sub(requested);
        if wasted <= reserved / 50 {
            return None;
        }
        let parts = causes(&self.pytorch_waste);
        let said = parts.iter().filter(|(bytes, _)| bytes * 20 >= wasted);
        let said: Vec<_> = said.map(|(bytes, cause)| format!("{} {cause}", HumanBytes(*bytes))).collect();
        Some(format!(
            "When PyTorch's allocator first holds that much, {} are requested. Of the other {}, {}.",
            HumanBytes(requested),
            HumanBytes(wasted),
            said.join(", ")
        ))
    }

    fn about_setting(&self, (setting, need): (&str, Need)) -> String {
        let before = self.pytorch.map_or(need.bytes, |pytorch| pytorch.bytes);
        let saved = before.saturating_sub(need.bytes);
        let helped = if saved == 0 || saved < before / 100 {
            "No setting of PyTorch's allocator that was tried would need 1 % less.".to_owned()
        } else {
            format!(
                "PYTORCH_CUDA_ALLOC_CONF={setting} would need {}, {} ({:.0} %) less.",
                HumanBytes(need.bytes),
                HumanBytes(saved),
                percent(saved, before),
            )
        };
        // Who reads of cached segments reaches for this setting, which alone does nothing.
        let caches = self.pytorch_waste.caches.max(self.pytorch_waste.other_streams);
        if caches * 10 < self.pytorch_waste.reserved {
            return helped;
        }
        helped
            + " (garbage_collection_threshold does nothing unless torch.cuda.set_per_process_memory_fraction sets a \
               share below 1.)"
    }
}

fn best_setting(trace: &Trace, program: &Program) -> Result<Option<(&'static str, Need)>, ReplayError> {
    let mut best = None;
    for setting in SETTINGS {
        let reserved = on_sim(trace, program, &|context| with(setting, context), UNLIMITED)?.peak_reserved;
        if best.is_none_or(|(_, least)| reserved < least) {
            best = Some((setting, reserved));
        }
    }
    let Some((setting, _)) = best else { return Ok(None) };
    let need = Need::of(trace, program, &|context| with(setting, context), None)?;
    Ok(need.map(|need| (setting, need)))
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
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

    fn need(bytes: u64, unlimited: u64, given_back: u64) -> Option<Need> {
        Some(Need { bytes, unlimited, given_back })
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_is_needed_comes_first_and_cache_is_called_cache() {
        let verdict = Verdict {
            peak_requested: 10 * GIB,
            pytorch: need(12 * GIB, 20 * GIB, 7),
            pytorch_waste: waste(5 * GIB, 1 << 20, 15 * GIB),
            millpond: need(11 * GIB, 11 * GIB, 0),
            best_setting: Some(("expandable_segments:True", need(9 * GIB, 12 * GIB, 0).unwrap())),
        };
        let [needs, cache, waste, setting] = &verdict.lines()[..] else { panic!("four lines") };
        assert_eq!(
            needs,
            "The job requests 10.00 GiB at most. To run, PyTorch's allocator needs 12.00 GiB, Millpond 11.00 GiB: 1.00 GiB less."
        );
        assert!(cache.contains("8.00 GiB are cache that it gives back when memory is short"), "{cache}");
        assert!(cache.contains("On the smallest device it does so 7 times"), "{cache}");
        assert!(waste.contains("holds that much, 5.00 GiB are requested. Of the other 15.00 GiB"), "{waste}");
        assert!(waste.ends_with("15.00 GiB were free but kept for other streams."), "{waste}");
        assert!(
            setting.contains("expandable_segments:True would need 9.00 GiB, 3.00 GiB (25 %) less"),
            "{setting}"
        );
        assert!(setting.contains("garbage_collection_threshold does nothing unless"), "{setting}");
    }

    #[test]
    fn a_job_that_wastes_nothing_is_told_no_causes() {
        let verdict = Verdict {
            peak_requested: 10 * GIB,
            pytorch: need(10 * GIB, 10 * GIB, 0),
            pytorch_waste: waste(10 * GIB, 1 << 20, 0),
            millpond: need(10 * GIB + (1 << 20), 10 * GIB, 0),
            best_setting: Some(("expandable_segments:True", need(10 * GIB, 10 * GIB, 0).unwrap())),
        };
        let lines = verdict.lines();
        assert!(lines[0].ends_with("Millpond 10.00 GiB: 1.00 MiB more."), "{lines:?}");
        assert!(lines[1].ends_with("Millpond 10.00 GiB."), "{lines:?}");
        assert!(lines[2].starts_with("No setting"), "{lines:?}");
    }

    #[test]
    fn only_pytorch_s_recordings_get_its_settings_as_advice() {
        let verdict = Verdict {
            peak_requested: GIB,
            pytorch: need(2 * GIB, 2 * GIB, 0),
            pytorch_waste: waste(GIB, GIB, 0),
            millpond: need(GIB, GIB, 0),
            best_setting: None,
        };
        assert!(verdict.lines().iter().all(|line| !line.contains("ALLOC_CONF") && !line.contains("setting")));
    }

    #[test]
    fn a_job_that_asked_for_nothing_is_told_so_too() {
        let verdict = Verdict {
            peak_requested: 0,
            pytorch: need(0, 0, 0),
            pytorch_waste: Waste::default(),
            millpond: need(0, 0, 0),
            best_setting: None,
        };
        let lines = verdict.lines();
        assert!(
            lines[0].starts_with("The job requests 0 B at most.") && lines[0].ends_with(": as much."),
            "{lines:?}"
        );
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn every_setting_that_is_tried_is_one_of_pytorchs() {
        for setting in SETTINGS {
            assert!(setting.parse::<CachingOptions>().is_ok(), "{setting}");
        }
    }
}
