//! The tables of a report.

use std::io::{self, Write};

use millpond::HumanBytes;

use super::section::{Section, Shown};
use super::text::{escaped, prose, thousands, time};
use crate::deciding::Deciding;
use crate::fit::{Card, Need};
use crate::possible::Possible;
use crate::replay::Outcome;
use crate::sites::Live;
use crate::steps::StepBy;

/// The name of an allocator of which nobody knows what it needs.
fn in_parentheses(name: String, is_most: bool) -> String {
    if is_most { format!("({name})") } else { name }
}

impl Section {
    /// The request that found no memory, and whose blocks kept what was free.
    pub(super) fn write_out_of_memory(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(found) = &self.out_of_memory else { return Ok(()) };
        for line in found.lines() {
            writeln!(out, "<p class=verdict>{}</p>", prose(&line))?;
        }
        let beside = &found.holes.beside;
        if beside.is_empty() {
            return Ok(());
        }
        let all: u64 = found.holes.by_size.values().sum();
        writeln!(out, "<h3>Whose blocks kept it from being used</h3><div class=\"names held\">")?;
        let rows = beside.iter().map(|beside| {
            let mut row = share(beside.bytes, all).to_vec();
            row.extend([thousands(beside.holes), breakable(&beside.site)]);
            row
        });
        table(&["free beside", "", "holes", "call site"], rows, out)?;
        writeln!(out, "</div>")
    }

    /// What each allocator needs, held and did, and on which cards it would fit; or, where one capacity was asked
    /// about and so that was not looked for, whether it fitted there.
    pub(super) fn write_needs(&self, out: &mut dyn Write) -> io::Result<()> {
        let is_known = self.allocators.iter().any(|shown| shown.need.is_some());
        let has_failed = self.allocators.iter().any(|shown| shown.outcome.oom.is_some());
        writeln!(out, "<h3>What each allocator needs and holds</h3>")?;
        // The answer first: what is to the right may have to be scrolled to.
        let judges = is_known && !has_failed;
        let mut titles = vec!["allocator".to_owned()];
        titles.extend(is_known.then(|| "needs".to_owned()));
        titles.extend(judges.then(|| "runs on".to_owned()));
        titles.push("held".to_owned());
        titles.extend(is_known.then(|| "retries".to_owned()));
        titles.push("ratio".to_owned());
        if judges {
            titles.extend(self.cards.iter().map(|card| escaped(&card.name)));
        }
        let fits = |need: &Need, card: &Card| card.fits(need.most(), self.context);
        let row = |shown: &Shown| {
            let Outcome { allocator, peak_reserved, ratio, oom, .. } = &shown.outcome;
            let mut row = vec![escaped(allocator)];
            let known = |what: fn(Need) -> String| shown.need.map_or_else(unknown, what);
            if is_known {
                row.push(known(|need| need.said().replace(" to ", "<br>")));
            }
            if judges {
                let cards =
                    shown.need.iter().flat_map(|need| self.cards.iter().filter(|card| fits(need, card)));
                let least = cards.min_by_key(|card| card.bytes);
                row.push(match least {
                    None if shown.need.is_none() => unknown(),
                    None => "<span class=no>none</span>".to_owned(),
                    Some(_) if !self.is_whole => unknown(),
                    Some(card) => escaped(&card.name),
                });
            }
            row.push(HumanBytes(*peak_reserved).to_string());
            if is_known {
                row.push(known(|need| thousands(need.retries)));
            }
            row.push(format!("{ratio:.3}"));
            if let Some(oom) = oom {
                row.push(format!("out of memory at event {}", thousands(oom.event as u64)));
            } else if judges {
                let mark = |fits| match fits {
                    true if !self.is_whole => "?",
                    true => "<span class=yes>yes</span>",
                    false => "<span class=no>no</span>",
                };
                let marks = shown.need.iter().flat_map(|need| self.cards.iter().map(|card| fits(need, card)));
                row.extend(marks.map(|fits| mark(fits).to_owned()));
            }
            row
        };
        let columns = titles.len();
        let possible = self.possible.map(|possible| {
            let name = if possible.planned.is_some() { "(possible)" } else { "(at least)" };
            let mut row = vec![name.to_owned()];
            row.extend(is_known.then(unknown));
            row.extend(judges.then(unknown));
            row.push(HumanBytes(possible.reserved).to_string());
            row.extend(is_known.then(unknown));
            row.push(format!("{:.3}", possible.ratio));
            row.resize(columns, String::new());
            row
        });
        table(&titles, self.allocators.iter().map(row).chain(possible), out)?;
        if let Some(possible) = self.possible {
            writeln!(out, "<p class=note>{}</p>", prose(&about_possible(possible)))?;
        }
        if is_known {
            let in_gib = self.cards.iter().any(Card::is_a_size);
            writeln!(
                out,
                "<p class=note>Needs: the smallest device on which the job runs, with so many retries; two figures are a range, which the \
                 driver's addresses move. Runs on: the smallest \
                 card. Cards{} have {} less, for the driver's context and libraries. Held: the most at once, without a limit.</p>",
                if in_gib { ", in GiB," } else { "" },
                HumanBytes(self.context)
            )?;
        }
        Ok(())
    }

    /// What was held more and more of.
    pub(super) fn write_grown(&self, out: &mut dyn Write) -> io::Result<()> {
        let growth = &self.growth;
        if growth.grown.is_empty() {
            return writeln!(out, "<h3>Grew from step to step: nothing</h3>");
        }
        writeln!(out, "<h3>Grew from step to step</h3><div class=\"names grown\">")?;
        let rows = growth.grown.iter().map(|grown| {
            let (from, to) = grown.from_to();
            let each = format!("+{}", HumanBytes(grown.bytes_a_step.round() as u64));
            let [from, to] = [from, to].map(|bytes| HumanBytes(bytes).to_string());
            vec![each, from, to, format!("{:.3}", grown.r2), breakable(&grown.name())]
        });
        let each = if growth.step_by == StepBy::Part { "a part" } else { "a step" };
        table(&[each, "from", "to", "R²", "call site"], rows, out)?;
        writeln!(
            out,
            "</div><p class=note>{} looked at: {}. From and to: the least that is held within the second and the last. R² \
             is 1 where each step adds as much.</p>",
            format_args!("{} {}s", thousands(growth.steps as u64), each.trim_start_matches("a ")),
            escaped(&growth.steps_are()),
        )
    }

    /// Where the bytes are that nobody asked for.
    pub(super) fn write_waste(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "<h3>Reserved and not requested, at the request that decides what is needed</h3>")?;
        let titles = [
            "allocator",
            "reserved",
            "requested",
            "rounding",
            "holes",
            "caches",
            "other streams",
            "asks for",
            "at event",
        ];
        let row = |Shown { outcome, deciding: Deciding { waste, is_most, .. }, .. }: &Shown| {
            let parts = [
                waste.reserved,
                waste.requested,
                waste.rounding,
                waste.holes,
                waste.caches,
                waste.other_streams,
                waste.asked,
            ];
            let mut row = vec![in_parentheses(escaped(&outcome.allocator), *is_most)];
            row.extend(parts.map(|bytes| HumanBytes(bytes).to_string()));
            row.push(thousands(waste.event as u64));
            row
        };
        table(&titles, self.allocators.iter().map(row), out)?;
        for Shown { outcome, holes, .. } in &self.allocators {
            let Some((from, to, bytes)) = holes.largest_class() else { continue };
            let beside = holes
                .beside
                .first()
                .map(|beside| format!(" Beside {}, there are {}.", beside.site, HumanBytes(beside.bytes)));
            let said = format!(
                "{}: holes of {} to {} have most, {}.{}",
                outcome.allocator,
                HumanBytes(from),
                HumanBytes(to),
                HumanBytes(bytes),
                beside.unwrap_or_default()
            );
            writeln!(out, "<p class=note>{}</p>", prose(&said))?;
        }
        writeln!(
            out,
            "<p class=note>Holes are free beside live blocks. Caches have no live block beside them. Other streams used \
             the rest last.{}</p>",
            match self.allocators.iter().any(|shown| shown.deciding.is_most) {
                true =>
                    " In parentheses: when most is held without a limit, since nobody knows what is needed.",
                false => "",
            }
        )
    }

    /// The device's calls, of those kinds that any allocator made.
    pub(super) fn write_calls(&self, out: &mut dyn Write) -> io::Result<()> {
        let counts: Vec<_> =
            self.allocators.iter().map(|shown| shown.outcome.device_calls.by_kind()).collect();
        let Some(first) = counts.first() else { return Ok(()) };
        let kinds: Vec<usize> =
            (0..first.len()).filter(|&kind| counts.iter().any(|counts| counts[kind].1 > 0)).collect();
        let titles = ["allocator", "all", "take", "of the job's time"].into_iter();
        let titles: Vec<_> = titles.chain(kinds.iter().map(|&kind| first[kind].0)).collect();
        writeln!(out, "<h3>Device calls by kind</h3>")?;
        let rows = self.allocators.iter().zip(&counts).map(|(Shown { outcome, .. }, counts)| {
            let share = outcome.device_share().map(|share| format!("{:.2} %", share * 100.0));
            let mut row = vec![
                escaped(&outcome.allocator),
                thousands(outcome.device_calls.total()),
                outcome.device_us.map_or_else(unknown, time),
                share.unwrap_or_else(unknown),
            ];
            row.extend(kinds.iter().map(|&kind| thousands(counts[kind].1)));
            row
        });
        table(&titles, rows, out)
    }

    /// What happened in the phases that the program named.
    pub(super) fn write_phases(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.phases.is_empty() {
            return Ok(());
        }
        writeln!(out, "<h3>Phases</h3>")?;
        let titles = ["phase", "times", "time", "requested at most", "allocated", "allocated less freed"];
        let rows = self.phases.iter().take(MOST_PHASES).map(|sum| {
            let sign = if sum.kept < 0 { "−" } else { "" };
            vec![
                escaped(&sum.name),
                thousands(sum.times),
                time(sum.wall_us as f64),
                HumanBytes(sum.peak_requested).to_string(),
                HumanBytes(sum.allocated).to_string(),
                format!("{sign}{}", HumanBytes(sum.kept.unsigned_abs())),
            ]
        });
        table(&titles, rows, out)
    }
}

/// What the row of what is possible means.
fn about_possible(possible: Possible) -> String {
    let bound = HumanBytes(possible.bound);
    if possible.is_least() {
        "(possible): what an allocator that knows the future would have held. Nothing less is possible."
            .to_owned()
    } else if possible.planned.is_some() {
        format!(
            "(possible): the best plan found by one who knows the future. No allocator holds less than {bound}."
        )
    } else {
        "(at least): no allocator holds less. The recording is too large to be planned.".to_owned()
    }
}

/// Names of phases that are listed.
const MOST_PHASES: usize = 30;

/// Who holds what is live at a moment, and in blocks of which size that is.
pub(super) fn write_live(when: &str, live: &Live, out: &mut dyn Write) -> io::Result<()> {
    if live.blocks == 0 {
        return writeln!(out, "<h3>{when}: nothing</h3>");
    }
    let (bytes, blocks) = (HumanBytes(live.bytes), thousands(live.blocks));
    let many = if live.blocks == 1 { "block" } else { "blocks" };
    let refused = match live.refused {
        0 => String::new(),
        bytes => format!(", of which {} were refused", HumanBytes(bytes)),
    };
    let title = prose(&format!("{when}: {bytes} in {blocks} {many}{refused}"));
    writeln!(out, "<h3>{title}</h3><div class=beside>")?;
    write_tags(live, out)?;
    if live.sites.is_empty() {
        writeln!(out, "<p class=note>No tags or call stacks were recorded to say whose.</p>")?;
    } else {
        let rows = live.sites.iter().map(|site| {
            let mut row = share(site.bytes, live.bytes).to_vec();
            row.extend([thousands(site.blocks), breakable(&site.name())]);
            row
        });
        writeln!(out, "<div class=\"names held\">")?;
        table(&["bytes", "", "blocks", "call site"], rows, out)?;
        writeln!(out, "</div>")?;
    }
    let mut by_size: Vec<_> = live.by_size.iter().collect();
    by_size.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
    let rows = by_size.into_iter().map(|(&from, &bytes)| {
        let mut row = share(bytes, live.bytes).to_vec();
        row.push(sizes(from));
        row
    });
    writeln!(out, "<div class=sizes>")?;
    table(&["bytes", "", "in blocks of"], rows, out)?;
    writeln!(out, "</div></div>")
}

fn write_tags(live: &Live, out: &mut dyn Write) -> io::Result<()> {
    if live.tags.is_empty() {
        return Ok(());
    }
    let rows = live.tags.iter().map(|tag| {
        let mut row = share(tag.bytes, live.bytes).to_vec();
        row.extend([thousands(tag.blocks), tag.tag.as_deref().map_or("(no tag)".to_owned(), breakable)]);
        row
    });
    writeln!(out, "<div class=\"names held tags\">")?;
    table(&["bytes", "", "blocks", "tag"], rows, out)?;
    writeln!(out, "</div>")
}

/// From this power of two to the next.
fn sizes(from: u64) -> String {
    format!("{} to {}", HumanBytes(from), HumanBytes(from.saturating_mul(2)))
}

/// Text as HTML in which a line may also end behind the parts of a path.
fn breakable(text: &str) -> String {
    escaped(text).replace('/', "/<wbr>").replace('_', "_<wbr>").replace("::", "::<wbr>")
}

fn unknown() -> String {
    "–".to_owned()
}

/// Bytes, and beside them a bar as long as their share.
fn share(bytes: u64, all: u64) -> [String; 2] {
    let share = bytes as f64 * 100.0 / all.max(1) as f64;
    [
        HumanBytes(bytes).to_string(),
        format!("<span class=bar style=\"--share:{share:.1}%\">{share:.0} %</span>"),
    ]
}

/// A table of cells that are HTML already.
fn table<T: std::fmt::Display>(
    titles: &[T],
    rows: impl Iterator<Item = Vec<String>>,
    out: &mut dyn Write,
) -> io::Result<()> {
    write!(out, "<div class=wide><table><thead><tr>")?;
    titles.iter().try_for_each(|title| write!(out, "<th>{title}"))?;
    writeln!(out, "</thead>")?;
    for row in rows {
        write!(out, "<tr>")?;
        row.iter().try_for_each(|cell| write!(out, "<td>{cell}"))?;
        writeln!(out)?;
    }
    writeln!(out, "</table></div>")
}
