//! Who requested memory, over time: the bytes of each tag, or of each call site.

use std::collections::BTreeMap;

use crate::owners::{Owner, Owners};
use crate::replay::Program;
use crate::trace::Trace;

/// Stretches of time that are drawn, each at the moment at which most is requested.
const STRETCHES: usize = 300;

/// Holders with an area of their own. The others share one.
const MOST: usize = 6;

/// A moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldAt {
    pub(super) event: usize,
    pub(super) time_us: u64,
    /// As many as there are names.
    pub(super) bytes: Vec<u64>,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Holders {
    /// The one that holds most first; at last the others.
    pub(super) names: Vec<String>,
    pub(super) points: Vec<HeldAt>,
}

/// By tag; nothing where there are none.
pub(super) fn by_tag((trace, program): (&Trace, &Program), owners: &Owners) -> Option<Holders> {
    by(trace, program, owners, |owner| Some(owner.tag.clone().unwrap_or_else(|| "no tag".to_owned())))
}

/// By call site; nothing where no call stacks were recorded.
pub(super) fn by_site((trace, program): (&Trace, &Program), owners: &Owners) -> Option<Holders> {
    by(trace, program, owners, Owner::site)
}

fn by(
    trace: &Trace,
    program: &Program,
    owners: &Owners,
    key: impl Fn(&Owner) -> Option<String>,
) -> Option<Holders> {
    let mut numbers = BTreeMap::new();
    let of_owner: Vec<usize> = owners
        .all
        .iter()
        .map(|owner| {
            let next = numbers.len();
            *numbers.entry(key(owner).unwrap_or_else(|| "no call stack".to_owned())).or_insert(next)
        })
        .collect();
    if numbers.len() < 2 {
        return None;
    }
    let mut names: Vec<String> = vec![String::new(); numbers.len()];
    numbers.into_iter().for_each(|(name, number)| names[number] = name);
    let holder = |block: u32| of_owner[owners.of_block[block as usize] as usize];
    let peak = peak(program, &holder, names.len());
    let mut largest: Vec<usize> = (0..names.len()).collect();
    largest.sort_by_key(|number| std::cmp::Reverse(peak[*number]));
    let rest = largest.split_off(MOST.min(largest.len()));
    let mut shown = vec![largest.len(); names.len()];
    largest.iter().enumerate().for_each(|(place, number)| shown[*number] = place);
    let mut named: Vec<String> = largest.into_iter().map(|number| names[number].clone()).collect();
    if !rest.is_empty() {
        named.push("others".to_owned());
    }
    let points = points(trace, program, |block| shown[holder(block)], named.len());
    Some(Holders { names: named, points })
}

/// Who holds how much when most is requested.
fn peak(program: &Program, holder: &impl Fn(u32) -> usize, count: usize) -> Vec<u64> {
    let mut held = vec![0; count];
    for step in program.steps.iter().take(program.peak_requested().1 + 1) {
        add(&mut held[holder(step.block)], step.alloc, step.size);
    }
    held
}

fn add(held: &mut u64, alloc: bool, bytes: u64) {
    *held = if alloc { *held + bytes } else { *held - bytes };
}

fn points(trace: &Trace, program: &Program, holder: impl Fn(u32) -> usize, count: usize) -> Vec<HeldAt> {
    let length = program.steps.len().div_ceil(STRETCHES).max(1);
    let mut times = program.times(trace);
    let (mut now, mut all) = (vec![0; count], 0);
    let mut points = Vec::new();
    for (stretch, steps) in program.steps.chunks(length).enumerate() {
        let mut most: Option<(u64, HeldAt)> = None;
        for (at, step) in steps.iter().enumerate() {
            add(&mut now[holder(step.block)], step.alloc, step.size);
            add(&mut all, step.alloc, step.size);
            let time_us = times.next().unwrap_or(trace.wall_us);
            if most.as_ref().is_none_or(|(most, _)| all > *most) {
                let event = stretch * length + at;
                most = Some((all, HeldAt { event, time_us, bytes: now.clone() }));
            }
        }
        points.extend(most.map(|(_, point)| point));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{GNN, recorded};
    use crate::replay::FreeWhen;

    #[test]
    fn holders_sum_to_what_is_requested_at_the_peak() {
        let trace = recorded(GNN);
        let program = Program::new(&trace, FreeWhen::Completed);
        let owners = Owners::of(&trace);
        assert!(by_tag((&trace, &program), &owners).is_none(), "it has no tags");
        let Holders { names, points } = by_site((&trace, &program), &owners).unwrap();
        assert!((2..=MOST + 1).contains(&names.len()) && names[0].contains("t3.py"), "{names:?}");
        let (most, event) = program.peak_requested();
        let at_peak = points.iter().find(|point| point.event == event).expect("no peak is left out");
        assert_eq!(at_peak.bytes.iter().sum::<u64>(), most);
        assert!(at_peak.bytes[..MOST.min(names.len())].is_sorted_by(|one, next| one >= next));
        assert!(points.len() <= STRETCHES && points.is_sorted_by_key(|point| point.event));
    }
}
