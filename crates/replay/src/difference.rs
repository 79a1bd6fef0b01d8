//! What differs between two moments: of one recording, or of two.
//!
//! Each row is a call site under its tags. The rows sum to the difference of what is requested, to the byte; and with what is
//! held and not requested, to the difference of what is held.
//!
//! **Which call sites are the same.** Those of one recording are known by tag, functions, files and lines. Two recordings may
//! be of two versions of a program, whose lines moved. So call sites of the same tag, functions and files are laid side by
//! side, by rising lines: where both recordings have as many, the first is the first, and so on. Where one has more, those of it
//! are new (or gone) without which the others are most alike: in what they hold, then in their lines. Their order stays.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::moment::Moment;
use crate::owners::{Owner, Owners, Who, named};
use crate::replay::{FreeWhen, Program};
use crate::sites::{Place, ops_of, waiting_after};
use crate::trace::Trace;

/// What became of a call site's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    /// It held nothing before.
    Came,
    /// It holds nothing now.
    Went,
    /// It holds more.
    Grew,
    /// It holds less.
    Shrank,
}

/// What one call site under one tag holds at both moments. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What became of it.
    pub became: Became,
    /// The tags, outermost first, with `/` between; `None` outside of any.
    pub tag: Option<String>,
    /// The call site in the second recording, or in the only one that has it.
    pub site: Option<String>,
    /// The call site in the first recording, where its lines were others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site_before: Option<String>,
    /// The power of two that the blocks' sizes are not below, where neither call stacks nor tags were recorded.
    pub size: Option<u64>,
    /// `after` less `before`.
    pub change: i64,
    /// At the first moment.
    pub before: u64,
    /// At the second one.
    pub after: u64,
    /// Blocks at the first moment.
    pub blocks_before: u64,
    /// Blocks at the second one.
    pub blocks_after: u64,
}

impl Change {
    /// Tag and call site in one line, or the sizes.
    pub fn name(&self) -> String {
        named(self.tag.as_deref(), self.site.as_deref(), self.size)
    }
}

/// One of the two moments. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// The recording.
    pub trace: String,
    /// The moment, in words.
    pub moment: String,
    /// Microseconds since the recording began.
    pub time_us: u64,
    /// Requested, in live blocks.
    pub requested: u64,
    /// In how many blocks.
    pub blocks: u64,
    /// What the recorded allocator held; `None` where that was not recorded.
    pub held: Option<u64>,
}

/// What differs between two moments. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The first moment.
    pub from: Side,
    /// The second one.
    pub to: Side,
    /// How much more is requested: the sum of all changes.
    pub requested: i64,
    /// How much more is held and not requested, so cached, pending or rounded up; `None` where what is held was not recorded.
    pub not_requested: Option<i64>,
    /// How much more is held: the sum of the two before.
    pub held: Option<i64>,
    /// By tag and call site, the largest first; those that hold the same are left out.
    pub changes: Vec<Change>,
    /// The same by tag alone; empty where there are no tags.
    pub tags: Vec<Change>,
}

/// What one owner holds: bytes and blocks.
type Sum = (u64, u64);

/// A recording at one moment.
#[derive(Debug)]
pub struct At<'a> {
    trace: &'a Trace,
    side: Side,
    owners: Owners,
    sums: Vec<Sum>,
}

impl<'a> At<'a> {
    /// After so many steps of the program, which is the moment.
    pub fn new(trace: &'a Trace, program: &Program, moment: &Moment, steps: usize) -> Self {
        let mut owners = Owners::of(trace);
        owners.all.push(Owner { tag: None, who: Who::Waiting });
        let mut sums = vec![(0, 0); owners.all.len()];
        for step in &program.steps[..steps] {
            let (bytes, blocks): &mut Sum = &mut sums[owners.of_block[step.block as usize] as usize];
            if step.alloc {
                (*bytes, *blocks) = (*bytes + step.size, *blocks + 1);
            } else {
                (*bytes, *blocks) = (*bytes - step.size, *blocks - 1);
            }
        }
        // What comes behind the last step is a part of the end.
        let ops = match *moment {
            Moment::End => trace.ops.len(),
            _ => ops_of(trace, program, steps),
        };
        if program.free == FreeWhen::Completed {
            for block in waiting_after(trace, ops) {
                let (bytes, owner) =
                    (trace.blocks[block as usize].size, owners.of_block[block as usize] as usize);
                sums[owner] = (sums[owner].0 - bytes, sums[owner].1 - 1);
                let waiting = &mut sums[owners.all.len() - 1];
                *waiting = plus(*waiting, (bytes, 1));
            }
        }
        let side = Side {
            trace: trace.name.clone(),
            moment: moment.words(),
            time_us: program.times(trace).take(steps).last().unwrap_or_default(),
            requested: sums.iter().map(|(bytes, _)| bytes).sum(),
            blocks: sums.iter().map(|(_, blocks)| blocks).sum(),
            held: trace.segments.held_after(ops),
        };
        Self { trace, side, owners, sums }
    }
}

impl Difference {
    /// What is different at the second moment.
    pub fn of(from: &At<'_>, to: &At<'_>) -> Self {
        let rows = if std::ptr::eq(from.trace, to.trace) {
            (0..to.sums.len())
                .map(|owner| {
                    Pair::of(&from.owners.all[owner], &to.owners.all[owner], from.sums[owner], to.sums[owner])
                })
                .collect()
        } else {
            matched(from, to)
        };
        let requested = less(from.side.requested, to.side.requested);
        let held = from.side.held.zip(to.side.held).map(|(before, after)| less(before, after));
        let mut tags: BTreeMap<Option<String>, (Sum, Sum)> = BTreeMap::new();
        for row in &rows {
            let (before, after) = tags.entry(row.tag.clone()).or_default();
            (*before, *after) = (plus(*before, row.before), plus(*after, row.after));
        }
        let has_tags = tags.keys().any(Option::is_some);
        let by_tag = tags.into_iter().filter(|_| has_tags).map(|(tag, (before, after))| {
            let site = if tag.is_none() { Some("(no tag)".to_owned()) } else { None };
            Pair { tag, site, site_before: None, size: None, before, after }
        });
        Self {
            from: from.side.clone(),
            to: to.side.clone(),
            requested,
            not_requested: held.map(|held| held - requested),
            held,
            tags: changes(by_tag),
            changes: changes(rows.into_iter()),
        }
    }
}

/// `after` less `before`: no recording has as much as 2⁶⁰ bytes live.
fn less(before: u64, after: u64) -> i64 {
    after as i64 - before as i64
}

fn plus(one: Sum, other: Sum) -> Sum {
    (one.0 + other.0, one.1 + other.1)
}

/// A row, changed or not.
#[derive(Debug)]
struct Pair {
    tag: Option<String>,
    site: Option<String>,
    site_before: Option<String>,
    size: Option<u64>,
    before: Sum,
    after: Sum,
}

impl Pair {
    fn of(one: &Owner, other: &Owner, before: Sum, after: Sum) -> Self {
        let (was, site) = (one.site(), other.site());
        let site_before = if was == site { None } else { was };
        Self { tag: other.tag.clone(), site, site_before, size: other.size(), before, after }
    }
}

/// The rows that changed, the largest change first.
fn changes(rows: impl Iterator<Item = Pair>) -> Vec<Change> {
    let rows = rows.filter_map(|Pair { tag, site, site_before, size, before, after }| {
        let became = match (before, after) {
            (before, after) if before == after => return None,
            ((_, 0), _) => Became::Came,
            (_, (_, 0)) => Became::Went,
            (before, after) if after < before => Became::Shrank,
            _ => Became::Grew,
        };
        let change = less(before.0, after.0);
        let ((before, blocks_before), (after, blocks_after)) = (before, after);
        Some(Change {
            became,
            tag,
            site,
            site_before,
            size,
            change,
            before,
            after,
            blocks_before,
            blocks_after,
        })
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_cached_key(|row| (std::cmp::Reverse(row.change.unsigned_abs()), row.name()));
    rows
}

/// An owner without its lines, by which it is known in another recording.
fn without_lines(owner: &Owner) -> Owner {
    let who = match &owner.who {
        Who::Site(places) => {
            Who::Site(places.iter().map(|place| Place { line: 0, ..place.clone() }).collect())
        }
        // What is live before a recording in one run may be allocated in it in the other.
        Who::NoStack { .. } if owner.tag.is_some() => Who::NoStack { before: false },
        other => other.clone(),
    };
    Owner { tag: owner.tag.clone(), who }
}

/// The owners of two recordings, side by side.
fn matched(from: &At<'_>, to: &At<'_>) -> Vec<Pair> {
    let mut groups: BTreeMap<Owner, [Vec<usize>; 2]> = BTreeMap::new();
    for (side, at) in [from, to].into_iter().enumerate() {
        for (number, owner) in at.owners.all.iter().enumerate() {
            groups.entry(without_lines(owner)).or_default()[side].push(number);
        }
    }
    let mut rows = Vec::new();
    for (key, [mut ones, mut others]) in groups {
        ones.sort_by_key(|&one| &from.owners.all[one]);
        others.sort_by_key(|&other| &to.owners.all[other]);
        if ones.len() == others.len() {
            let pairs = ones.into_iter().zip(others);
            rows.extend(pairs.map(|(one, other)| {
                let (was, is) = (&from.owners.all[one], &to.owners.all[other]);
                Pair::of(was, is, from.sums[one], to.sums[other])
            }));
        } else if ones.is_empty() || others.is_empty() {
            let gone = ones.iter().map(|&one| (&from.owners.all[one], from.sums[one], Sum::default()));
            let come = others.iter().map(|&other| (&to.owners.all[other], Sum::default(), to.sums[other]));
            rows.extend(gone.chain(come).map(|(owner, before, after)| Pair::of(owner, owner, before, after)));
        } else if ones.len().max(others.len()) > MOST_ALIGNED {
            let sum = |sums: &[Sum], of: &[usize]| of.iter().map(|&at| sums[at]).fold(Sum::default(), plus);
            rows.push(Pair::of(&key, &key, sum(&from.sums, &ones), sum(&to.sums, &others)));
        } else {
            let off = |one: usize, other: usize| {
                let (one, other) = (ones[one], others[other]);
                let holds_else = from.sums[one] != to.sums[other];
                2 * u32::from(holds_else) + u32::from(from.owners.all[one] != to.owners.all[other])
            };
            rows.extend(aligned(ones.len(), others.len(), &off).into_iter().map(|pair| match pair {
                (Some(one), Some(other)) => {
                    let (one, other) = (ones[one], others[other]);
                    let (was, is) = (&from.owners.all[one], &to.owners.all[other]);
                    Pair::of(was, is, from.sums[one], to.sums[other])
                }
                (Some(one), None) => {
                    let owner = &from.owners.all[ones[one]];
                    Pair::of(owner, owner, from.sums[ones[one]], Sum::default())
                }
                (None, other) => {
                    let other = others[other.unwrap_or_default()];
                    let owner = &to.owners.all[other];
                    Pair::of(owner, owner, Sum::default(), to.sums[other])
                }
            }));
        }
    }
    rows
}

/// Call sites of a function that are laid side by side where one recording has more of them.
const MOST_ALIGNED: usize = 512;

/// Lays two rows of things side by side, in their order: all of the shorter one have a partner, such that the sum of `off` is least.
fn aligned(
    ones: usize,
    others: usize,
    off: &dyn Fn(usize, usize) -> u32,
) -> Vec<(Option<usize>, Option<usize>)> {
    if ones > others {
        let turned = aligned(others, ones, &|other, one| off(one, other));
        return turned.into_iter().map(|(other, one)| (one, other)).collect();
    }
    // What the first so many of the shorter row cost at least, with partners among the first so many of the longer.
    const NONE: u32 = u32::MAX;
    let mut least = vec![vec![NONE; others + 1]; ones + 1];
    least[0].fill(0);
    for one in 1..=ones {
        for other in one..=others {
            let paired = least[one - 1][other - 1].saturating_add(off(one - 1, other - 1));
            least[one][other] = paired.min(least[one][other - 1]);
        }
    }
    let (mut one, mut pairs) = (ones, Vec::with_capacity(others));
    for other in (1..=others).rev() {
        let is_alone = one == 0 || (other > one && least[one][other] == least[one][other - 1]);
        if !is_alone {
            one -= 1;
        }
        pairs.push((if is_alone { None } else { Some(one) }, Some(other - 1)));
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, Frame, StackId};
    use crate::trace::TraceBuilder;

    /// A recording in which these functions, each with its line, hold so many bytes at the end.
    fn holding(held: &[(&str, u32, u64)]) -> Trace {
        let mut builder = TraceBuilder::default();
        for (address, &(name, line, size)) in (64u64..).zip(held) {
            let frame = builder.stacks.add_frame(Frame { name: name.into(), file: "/src/a.py".into(), line });
            let stack = builder.stacks.add_stack(&[frame]);
            let (kind, time_us) = (EventKind::Alloc, address);
            builder.push(Event { kind, device: 0, stream: 0, time_us, address, size, stack }).unwrap();
        }
        builder
            .push(Event {
                kind: EventKind::Alloc,
                device: 0,
                stream: 0,
                time_us: 900,
                address: 9,
                size: 0,
                stack: StackId::NONE,
            })
            .unwrap();
        builder.finish("t").remove(0)
    }

    fn at_end(trace: &Trace) -> At<'_> {
        let program = Program::new(trace, FreeWhen::Completed);
        At::new(trace, &program, &Moment::End, program.steps.len())
    }

    fn told(one: &[(&str, u32, u64)], other: &[(&str, u32, u64)]) -> Vec<(Became, String, i64)> {
        let (one, other) = (holding(one), holding(other));
        let difference = Difference::of(&at_end(&one), &at_end(&other));
        let sum: i64 = difference.changes.iter().map(|change| change.change).sum();
        assert_eq!(sum, difference.requested);
        difference.changes.iter().map(|change| (change.became, change.name(), change.change)).collect()
    }

    #[test]
    fn call_sites_whose_lines_moved_are_the_same() {
        let rows =
            told(&[("f", 10, 100), ("f", 11, 7), ("g", 5, 1)], &[("f", 11, 160), ("f", 12, 7), ("g", 9, 1)]);
        assert_eq!(rows, [(Became::Grew, "f (a.py:11)".to_owned(), 60)]);
    }

    #[test]
    fn a_new_line_of_a_function_is_a_row_of_its_own() {
        let (old, new) = ([("f", 10, 100), ("f", 20, 7)], [("f", 10, 80), ("f", 15, 30), ("f", 21, 7)]);
        let row = |became, line: u32, change| (became, format!("f (a.py:{line})"), change);
        assert_eq!(told(&old, &new), [row(Became::Came, 15, 30), row(Became::Shrank, 10, -20)]);
        assert_eq!(told(&new, &old), [row(Became::Went, 15, -30), row(Became::Grew, 10, 20)]);
        // Where what they hold tells nothing, their lines do.
        let same = [("f", 10, 5), ("f", 20, 5), ("f", 30, 5)];
        assert_eq!(told(&same, &same[1..]), [row(Became::Went, 10, -5)]);
    }

    #[test]
    fn the_order_of_what_is_aligned_stays() {
        let off = |one: usize, other: usize| u32::from([7, 8][one] != [7, 9, 8, 7][other]);
        let pairs = aligned(2, 4, &off);
        assert_eq!(pairs, [(Some(0), Some(0)), (None, Some(1)), (Some(1), Some(2)), (None, Some(3))]);
        assert_eq!(aligned(0, 1, &|_, _| 0), [(None, Some(0))]);
    }

    #[test]
    fn what_only_one_recording_has_came_or_went() {
        let rows = told(&[("old", 1, 50), ("f", 2, 9)], &[("new", 1, 70), ("f", 2, 4)]);
        let names: Vec<_> =
            rows.iter().map(|(became, name, change)| (*became, name.as_str(), *change)).collect();
        let expected = [
            (Became::Came, "new (a.py:1)", 70),
            (Became::Went, "old (a.py:1)", -50),
            (Became::Shrank, "f (a.py:2)", -5),
        ];
        assert_eq!(names, expected);
    }
}
