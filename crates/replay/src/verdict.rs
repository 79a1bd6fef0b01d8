//! What a replay comes to, in plain words. It says what the job needs with PyTorch's allocator and with Millpond, and how far that
//! is from the least that is possible. It also says what giving memory back saves, what wasted memory, and which setting of
//! PyTorch's allocator would need less.
//!
//! A verdict is made of the figures that the tables show, so that the two agree.

use std::sync::atomic::{AtomicU64, Ordering};

use millpond::{Context, HumanBytes};
use millpond_baselines::{Allocator, Caching, CachingOptions, ChoiceError, MILLPOND};
use serde::Serialize;

use crate::cores::on_all_cores;
use crate::deciding::Deciding;
use crate::fit::{Need, resolution};
use crate::holes::{Beside, Holes};
use crate::possible::Possible;
use crate::replay::{Choose, Program, ReplayError, UNLIMITED, Waste, on_sim};
use crate::sites::site_of;
use crate::trace::Trace;

/// What `caching` is called.
const PYTORCH: &str = "PyTorch's allocator";

/// The setting that makes `expandable` of `caching`.
const EXPANDABLE: &str = "expandable_segments:True";

/// Settings of PyTorch's allocator that are tried, as `PYTORCH_CUDA_ALLOC_CONF` has them. Not
/// `garbage_collection_threshold`: it acts only below a memory fraction, and only once memory is short.
pub const SETTINGS: [&str; 6] = [
    EXPANDABLE,
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
];

/// What is known of an allocator's memory for a trace, where nothing limits it.
#[derive(Debug, Clone)]
pub struct Judged {
    /// `None` where the trace did not run to its end.
    pub need: Option<Need>,
    /// Its memory at the request that decides what is needed.
    pub waste: Waste,
    /// The holes then.
    pub holes: Holes,
}

impl Judged {
    /// Looks for it, by replays.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn of(trace: &Trace, program: &Program, choose: &Choose<'_>) -> Result<Self, ReplayError> {
        let unlimited = on_sim(trace, program, choose, UNLIMITED)?;
        let need = Need::of(program, choose, &unlimited)?;
        let Deciding { waste, map, .. } = Deciding::of(program, choose, need, unlimited.peak_reserved)?;
        Ok(Self { need, waste, holes: Holes::of(trace, &map) })
    }
}

/// What the verdict is made of. Sizes in bytes.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The most that is requested at once.
    pub peak_requested: u64,
    /// What PyTorch's allocator needs: with its default settings, or those chosen.
    pub pytorch: Option<Need>,
    /// What Millpond's pool needs.
    pub millpond: Option<Need>,
    /// The least that is possible.
    #[serde(skip)]
    pub possible: Possible,
    /// The allocator whose waste is told: `caching` for a snapshot of PyTorch's, else `millpond`.
    pub about: &'static str,
    /// Its memory at the request that decides what is needed.
    pub waste: Waste,
    /// The holes then.
    #[serde(flatten)]
    pub holes: Holes,
    /// Who makes that request, where that was recorded.
    pub site: Option<String>,
    /// The memory of the other of the two at the request that decides what that needs.
    pub other_waste: Waste,
    /// The setting of PyTorch's allocator that needs least; `None` for a trace that is not PyTorch's, and where none
    /// that was tried needs 1 % less than PyTorch's allocator does.
    pub best_setting: Option<Setting>,
}

/// A setting of PyTorch's allocator, and what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// As `PYTORCH_CUDA_ALLOC_CONF` has it.
    pub setting: &'static str,
    /// What the job needs with it.
    pub need: Need,
}

impl Verdict {
    /// Judges a trace by what is known of PyTorch's allocator and of the pool. Tries [`SETTINGS`] where the trace is a
    /// snapshot of PyTorch's. `expandable` is what `caching` needs with expandable segments and no other setting, where that
    /// is known.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn of(
        trace: &Trace,
        program: &Program,
        [pytorch, millpond]: [Judged; 2],
        expandable: Option<Need>,
        possible: Possible,
    ) -> Result<Self, ReplayError> {
        let best_setting = match pytorch.need {
            Some(need) if trace.is_pytorchs => best_setting(trace, program, need, expandable)?,
            _ => None,
        };
        let needs = [pytorch.need, millpond.need];
        let (about, judged, other) = match trace.is_pytorchs {
            true => (Caching::NAME, pytorch, millpond),
            false => (MILLPOND, millpond, pytorch),
        };
        let asks = program.steps.get(judged.waste.event).map(|step| &trace.blocks[step.block as usize]);
        Ok(Self {
            site: asks.and_then(|block| site_of(trace, block.stack)),
            peak_requested: program.peak_requested().0,
            pytorch: needs[0],
            millpond: needs[1],
            possible,
            about,
            waste: judged.waste,
            holes: judged.holes,
            other_waste: other.waste,
            best_setting,
        })
    }

    /// The verdict, a paragraph a line.
    pub fn lines(&self) -> Vec<String> {
        let requested = format!("The job requests {} at most.", HumanBytes(self.peak_requested));
        let (Some(pytorch), Some(millpond)) = (self.pytorch, self.millpond) else {
            return vec![requested + " It did not run to its end, so nobody can say what it needs."];
        };
        let (pytorch, millpond) = ((PYTORCH, pytorch), ("Millpond", millpond));
        let is_pytorchs = self.about == Caching::NAME;
        let (first, second) = if is_pytorchs { (pytorch, millpond) } else { (millpond, pytorch) };
        let mut lines = vec![format!("{requested} {}", self.about_needs(first, second))];
        lines.push(about_shortage(first, second));
        if self.peak_requested > 0 {
            lines.push(self.about_possible(first, second));
        }
        lines.extend(self.about_waste(first.0, second.0));
        if is_pytorchs {
            lines.push(self.about_setting(pytorch.1));
        }
        lines
    }

    fn about_needs(&self, (name, need): (&str, Need), (other, its): (&str, Need)) -> String {
        // As the tables call it.
        let [name, other] = [name, other].map(|name| match name {
            PYTORCH => format!("{name} ({})", Caching::NAME),
            _ => name.to_owned(),
        });
        let difference = need.bytes.abs_diff(its.bytes);
        let compared = if difference <= resolution(self.peak_requested) {
            "about as much".to_owned()
        } else if its.bytes < need.bytes {
            format!("{} less", HumanBytes(difference))
        } else {
            format!("{} more", HumanBytes(difference))
        };
        let (bytes, its) = (need.said(), its.said());
        format!("To run, it needs {bytes} with {name}, and {its} with {other}: {compared}.")
    }

    /// How much is held beside what is requested, and how little that could be.
    fn about_possible(&self, (name, need): (&str, Need), (other, its): (&str, Need)) -> String {
        let requested = self.peak_requested.max(1) as f64;
        let [ratio, its_ratio] = [need, its].map(|need| need.unlimited as f64 / requested);
        let Possible { bound, reserved, ratio: possible, .. } = self.possible;
        let bound_ratio = bound as f64 / requested;
        // A plan never moves a block to other pages, so an allocator that does may hold less.
        let is_beaten = reserved > need.unlimited.min(its.unlimited);
        let least = if self.possible.is_least() {
            format!("{possible:.3} is possible")
        } else if self.possible.planned.is_some() && !is_beaten {
            format!("{possible:.3} is possible, and less than {bound_ratio:.3} is not")
        } else {
            format!("less than {bound_ratio:.3} is not possible")
        };
        format!("{name} holds {ratio:.3} times what is requested, {other} {its_ratio:.3}; {least}.")
    }

    /// Where the rest is of what PyTorch's allocator and the pool hold, for those of which that is worth telling.
    fn about_waste(&self, first: &str, second: &str) -> Vec<String> {
        let least = self.possible.reserved;
        let is_above = self.other_waste.reserved.saturating_sub(least) > least / 200;
        let of_the_first = self.waste.wasted() > self.waste.reserved / 50;
        let mut lines = Vec::new();
        if of_the_first {
            let holes = if self.waste.holes * 20 >= self.waste.wasted() { self.about_holes() } else { None };
            lines.push(told((&self.waste, self.site.as_deref()), first) + &holes.unwrap_or_default());
        }
        // That of PyTorch's allocator is not asked for in a recording of the pool's.
        if is_above && self.about == Caching::NAME {
            lines.push(told((&self.other_waste, None), second));
        }
        lines
    }

    /// How long the holes are, and whose blocks keep their pages.
    fn about_holes(&self) -> Option<String> {
        let (from, to, bytes) = self.holes.largest_class()?;
        let Beside { site, bytes: beside, .. } = self.holes.beside.first()?;
        Some(format!(
            " Holes of {} to {} have most, {}. Beside {site}, there are {}.",
            HumanBytes(from),
            HumanBytes(to),
            HumanBytes(bytes),
            HumanBytes(*beside),
        ))
    }

    fn about_setting(&self, before: Need) -> String {
        let Some(Setting { setting, need }) = self.best_setting else {
            return "No setting of PyTorch's allocator that was tried needs 1 % less.".to_owned();
        };
        let saved = before.bytes - need.bytes;
        format!(
            "With PYTORCH_CUDA_ALLOC_CONF={setting} it needs {}: {} ({:.0} %) less, with {}.",
            HumanBytes(need.bytes),
            HumanBytes(saved),
            saved as f64 * 100.0 / before.bytes as f64,
            counted(need.retries),
        )
    }
}

/// What is held where nothing limits it is no need: some of it goes back to the device, or is never taken, where memory is
/// short.
fn about_shortage((name, need): (&str, Need), (other, its): (&str, Need)) -> String {
    let mut line = format!(
        "Without a limit {name} holds up to {}, {other} {}.",
        HumanBytes(need.unlimited),
        HumanBytes(its.unlimited),
    );
    for (name, need) in [(name, need), (other, its)] {
        let saved = need.unlimited.saturating_sub(need.bytes);
        if saved <= need.unlimited / 100 {
            continue;
        }
        let (bytes, saved) = (HumanBytes(need.bytes), HumanBytes(saved));
        line += &match need.retries {
            0 => format!(" On a device of {bytes} {name} holds {saved} less, without a retry."),
            retries => format!(
                " On a device of {bytes} {name} gives memory back and tries again, with {}: that saves {saved}.",
                counted(retries),
            ),
        };
    }
    line
}

fn counted(retries: u64) -> String {
    match retries {
        1 => "1 retry".to_owned(),
        _ => format!("{retries} retries"),
    }
}

/// What two settings may differ in for the one with fewer retries to be advised: each retry waits for the device.
const AS_LITTLE_PERCENT: u64 = 1;

/// The setting that needs least, where that is 1 % less than `need`. Of those that need nearly as little it is the one with the
/// fewest retries, and of these the first.
fn best_setting(
    trace: &Trace,
    program: &Program,
    need: Need,
    expandable: Option<Need>,
) -> Result<Option<Setting>, ReplayError> {
    let enough = need.bytes - need.bytes / 100;
    let least = AtomicU64::new(expandable.map_or(enough, |need| need.bytes.min(enough)));
    let found = on_all_cores(&SETTINGS, |&setting| {
        if let Some(need) = expandable.filter(|_| setting == EXPANDABLE) {
            return Ok(Some(Setting { setting, need }).filter(|_| need.bytes <= enough));
        }
        let choose = |context: &Context| with(setting, context);
        // Most settings are refused by one replay. Relaxed: a larger limit only makes that rarer.
        if on_sim(trace, program, &choose, least.load(Ordering::Relaxed))?.oom.is_some() {
            return Ok(None);
        }
        let unlimited = on_sim(trace, program, &choose, UNLIMITED)?;
        let need = Need::of(program, &choose, &unlimited)?.filter(|need| need.bytes <= enough);
        if let Some(need) = need {
            least.fetch_min(need.bytes, Ordering::Relaxed);
        }
        Ok(need.map(|need| Setting { setting, need }))
    });
    let found = found.into_iter().collect::<Result<Vec<_>, ReplayError>>()?;
    Ok(best(found.into_iter().flatten().collect()))
}

fn best(found: Vec<Setting>) -> Option<Setting> {
    let least = found.iter().map(|found| found.need.bytes).min()?;
    let as_little = |found: &Setting| found.need.bytes <= least + least / 100 * AS_LITTLE_PERCENT;
    found.into_iter().filter(as_little).min_by_key(|found| (found.need.retries, found.need.bytes))
}

/// What is reserved and not requested at the request that decides what an allocator needs.
fn told((waste, site): (&Waste, Option<&str>), name: &str) -> String {
    let wasted = waste.wasted();
    let parts = causes(waste);
    let said = parts.iter().filter(|(bytes, _)| bytes * 20 >= wasted);
    let said: Vec<_> = said.map(|(bytes, cause)| format!("{} {cause}", HumanBytes(*bytes))).collect();
    let [asked, reserved, requested, wasted] =
        [waste.asked, waste.reserved, waste.requested, wasted].map(HumanBytes);
    let rest = match &said[..] {
        [all] if all.starts_with(&wasted.to_string()) => format!("The other {all}."),
        _ => format!("Of the other {wasted}, {}.", said.join("; ")),
    };
    let whose = site.map_or_else(String::new, |site| format!(" That is {site}."));
    format!(
        "A request for {asked} decides what {name} needs: it then holds {reserved}, of which {requested} are requested.{whose} \
         {rest}"
    )
}

/// The parts of what is wasted, the largest first.
fn causes(waste: &Waste) -> Vec<(u64, &'static str)> {
    let mut parts = vec![
        (waste.other_streams, "were last used on other streams"),
        (waste.holes, "are holes beside live blocks"),
        (waste.caches, "are cached without a live block beside them"),
        (waste.rounding, "are rounding"),
    ];
    parts.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    parts
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
        Waste { asked: GIB, reserved, requested, holes, other_streams, ..Waste::default() }
    }

    fn need(bytes: u64, unlimited: u64, retries: u64) -> Option<Need> {
        Some(Need { bytes, elsewhere: bytes, unlimited, retries, decided_at: 0 })
    }

    const GIB: u64 = 1 << 30;

    fn possible(bound: u64, reserved: u64) -> Possible {
        let ratio = reserved as f64 / (10 * GIB) as f64;
        Possible { bound, planned: Some(reserved), reserved, ratio }
    }

    fn of_pytorch() -> Verdict {
        Verdict {
            peak_requested: 10 * GIB,
            pytorch: need(12 * GIB, 20 * GIB, 7),
            millpond: need(11 * GIB, 11 * GIB, 0),
            about: Caching::NAME,
            waste: waste(9 * GIB, 1 << 20, 3 * GIB),
            possible: possible(10 * GIB, 10 * GIB),
            holes: Holes::default(),
            site: Some("forward (gpt.py:7)".to_owned()),
            other_waste: Waste::default(),
            best_setting: Some(Setting {
                setting: "expandable_segments:True",
                need: need(9 * GIB, 12 * GIB, 1).unwrap(),
            }),
        }
    }

    #[test]
    fn what_is_needed_comes_first_and_then_what_a_shortage_saves() {
        let [needs, shortage, least, waste, setting] = &of_pytorch().lines()[..] else {
            panic!("five lines")
        };
        assert_eq!(
            needs,
            "The job requests 10.00 GiB at most. To run, it needs 12.00 GiB with PyTorch's allocator (caching), and \
             11.00 GiB with Millpond: 1.00 GiB less."
        );
        assert_eq!(
            shortage,
            "Without a limit PyTorch's allocator holds up to 20.00 GiB, Millpond 11.00 GiB. On a device of 12.00 GiB \
             PyTorch's allocator gives memory back and tries again, with 7 retries: that saves 8.00 GiB."
        );
        assert_eq!(
            least,
            "PyTorch's allocator holds 2.000 times what is requested, Millpond 1.100; 1.000 is possible."
        );
        assert_eq!(
            waste,
            "A request for 1.00 GiB decides what PyTorch's allocator needs: it then holds 12.00 GiB, of which 9.00 GiB are \
             requested. That is forward (gpt.py:7). The other 3.00 GiB were last used on other streams."
        );
        assert_eq!(
            setting,
            "With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True it needs 9.00 GiB: 3.00 GiB (25 %) less, with 1 retry."
        );
    }

    #[test]
    fn what_the_drivers_addresses_move_is_a_range() {
        let mut verdict = of_pytorch();
        let pytorch = verdict.pytorch.unwrap();
        verdict.pytorch = Some(Need { elsewhere: 12 * GIB + (10 << 20), ..pytorch });
        assert!(verdict.lines()[0].contains("it needs 12.00 GiB with PyTorch's"), "{:?}", verdict.lines());
        verdict.pytorch = Some(Need { elsewhere: 12 * GIB + GIB / 2, ..pytorch });
        assert!(
            verdict.lines()[0].contains("it needs 12.00 GiB to 12.50 GiB with PyTorch's"),
            "{:?}",
            verdict.lines()
        );
    }

    #[test]
    fn only_one_figure_is_called_cache() {
        let caches = 5 * GIB;
        let verdict = Verdict { waste: Waste { caches, ..waste(5 * GIB, 4 * GIB, 6 * GIB) }, ..of_pytorch() };
        let verdict = Verdict { waste: Waste { reserved: 20 * GIB, ..verdict.waste }, ..verdict };
        let text = verdict.lines().join("\n");
        assert!(text.contains("5.00 GiB are cached without a live block"), "{text}");
        assert_eq!(text.matches("cache").count(), 1, "{text}");
    }

    #[test]
    fn a_job_that_wastes_nothing_is_told_no_causes() {
        let verdict = Verdict {
            pytorch: need(10 * GIB, 10 * GIB, 0),
            waste: waste(10 * GIB, 1 << 20, 0),
            millpond: need(10 * GIB + (1 << 20), 10 * GIB, 0),
            best_setting: None,
            ..of_pytorch()
        };
        let lines = verdict.lines();
        assert!(lines[0].ends_with("10.00 GiB with Millpond: about as much."), "{lines:?}");
        assert!(lines[1].ends_with("Millpond 10.00 GiB."), "{lines:?}");
        assert!(lines[3].starts_with("No setting"), "{lines:?}");
    }

    #[test]
    fn other_programs_hear_of_millpond_first_and_of_no_setting() {
        let verdict = Verdict { about: MILLPOND, best_setting: None, ..of_pytorch() };
        let lines = verdict.lines();
        assert!(lines[0].contains("11.00 GiB with Millpond, and 12.00 GiB with PyTorch's"), "{lines:?}");
        assert!(lines[0].ends_with(": 1.00 GiB more."), "{lines:?}");
        assert!(lines[3].starts_with("A request for 1.00 GiB decides what Millpond needs: "), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains("ALLOC_CONF") && !line.contains("setting")));
    }

    #[test]
    fn a_job_that_asked_for_nothing_is_told_so_too() {
        let verdict = Verdict {
            peak_requested: 0,
            pytorch: need(0, 0, 0),
            millpond: need(0, 0, 0),
            possible: Possible { bound: 0, planned: Some(0), reserved: 0, ratio: 1.0 },
            about: MILLPOND,
            waste: Waste::default(),
            holes: Holes::default(),
            site: None,
            other_waste: Waste::default(),
            best_setting: None,
        };
        let lines = verdict.lines();
        assert!(lines[0].starts_with("The job requests 0 B at most."), "{lines:?}");
        assert!(lines[0].ends_with(": about as much."), "{lines:?}");
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn what_is_possible_is_only_claimed_if_a_plan_has_it() {
        let said = |possible: Possible| Verdict { possible, ..of_pytorch() }.lines()[2].clone();
        let plan = possible(10 * GIB, 10 * GIB + GIB / 2);
        assert!(said(plan).ends_with("; 1.050 is possible, and less than 1.000 is not."));
        let unplanned = Possible { planned: None, ..plan };
        assert!(said(unplanned).ends_with("; less than 1.000 is not possible."));
        // Millpond held less than the plan.
        assert!(said(possible(10 * GIB, 11 * GIB + GIB / 2)).ends_with("; less than 1.000 is not possible."));
    }

    #[test]
    fn what_keeps_the_pool_from_the_least_is_told_too() {
        let other_waste =
            Waste { reserved: 11 * GIB, requested: 9 * GIB, caches: 2 * GIB, ..Waste::default() };
        let lines = Verdict { other_waste, ..of_pytorch() }.lines();
        let told = "A request for 0 B decides what Millpond needs: it then holds 11.00 GiB, of which 9.00 GiB are \
                    requested. The other 2.00 GiB are cached without a live block beside them.";
        assert!(lines.iter().any(|line| line == told), "{lines:?}");
    }

    #[test]
    fn holes_are_told_by_length_and_by_whose_blocks_keep_them() {
        let beside = vec![Beside { site: "attention (t.py:7)".to_owned(), bytes: 3 * GIB, holes: 2 }];
        let holes = Holes { by_size: [(GIB, 3 * GIB), (1 << 20, 5 << 20)].into(), beside };
        let line = Verdict { waste: waste(5 * GIB, 4 * GIB, 0), holes, ..of_pytorch() }.lines()[3].clone();
        assert!(
            line.ends_with(" Holes of 1.00 GiB to 2.00 GiB have most, 3.00 GiB. Beside attention (t.py:7), there are 3.00 GiB."),
            "{line}"
        );
    }

    #[test]
    fn a_setting_without_retries_is_advised_where_it_needs_as_little() {
        let setting =
            |setting, bytes, retries| Setting { setting, need: need(bytes, bytes, retries).unwrap() };
        let split = setting("max_split_size_mb:64", 1000 << 20, 16);
        let expandable = |mib: u64| setting(EXPANDABLE, mib << 20, 0);
        let advised = |found: &[Setting]| best(found.to_vec()).map(|found| found.setting);
        assert_eq!(advised(&[split, expandable(1005)]), Some(EXPANDABLE));
        assert_eq!(advised(&[split, expandable(1100)]), Some("max_split_size_mb:64"));
        assert_eq!(advised(&[]), None);
    }

    #[test]
    fn every_setting_that_is_tried_is_one_of_pytorchs() {
        for setting in SETTINGS {
            assert!(setting.parse::<CachingOptions>().is_ok(), "{setting}");
        }
    }
}
