//! The tables of a report.

use std::io::{self, Write};

use millpond::HumanBytes;

use super::{Section, Shown};
use crate::fit::Need;
use crate::replay::Outcome;
use crate::sites::Live;

impl Section {
    /// What each allocator needs, held and did, and on which cards it would fit; or, where one capacity was asked
    /// about and so that was not looked for, whether it fitted there.
    pub(super) fn write_needs(&self, out: &mut dyn Write) -> io::Result<()> {
        let is_known = self.allocators.iter().any(|shown| shown.need.is_some());
        let has_failed = self.allocators.iter().any(|shown| shown.outcome.oom.is_some());
        let mut titles = vec!["allocator".to_owned()];
        if is_known {
            titles.extend(["needs", "retries"].map(str::to_owned));
        }
        titles.extend(["reserved", "ratio"].map(str::to_owned));
        if is_known && !has_failed {
            titles.extend(self.cards.iter().map(|card| escaped(&card.name)));
        }
        let row = |shown: &Shown| {
            let Outcome { allocator, peak_reserved, ratio, oom, .. } = &shown.outcome;
            let mut row = vec![escaped(allocator)];
            if is_known {
                let known = |what: fn(Need) -> String| shown.need.map_or_else(unknown, what);
                row.push(known(|need| HumanBytes(need.bytes).to_string()));
                row.push(known(|need| thousands(need.retries)));
            }
            row.extend([HumanBytes(*peak_reserved).to_string(), format!("{ratio:.3}")]);
            if let Some(oom) = oom {
                row.push(format!("out of memory at event {}", thousands(oom.event as u64)));
            } else if is_known && !has_failed {
                let fits =
                    |need: Need| self.cards.iter().map(move |card| card.fits(need.bytes, self.context));
                let mark =
                    |fits| if fits { "<span class=yes>yes</span>" } else { "<span class=no>no</span>" };
                row.extend(shown.need.into_iter().flat_map(fits).map(|fits| mark(fits).to_owned()));
            }
            row
        };
        table(&titles, self.allocators.iter().map(row), out)?;
        if is_known {
            let in_gib = self.cards.iter().any(|card| card.name == card.gib.to_string());
            writeln!(
                out,
                "<p class=note>Needs: the smallest device on which the job runs, with so many retries. Cards{} have {} \
                 less, for the driver's context and libraries.</p>",
                if in_gib { ", in GiB," } else { "" },
                HumanBytes(self.context)
            )?;
        }
        Ok(())
    }

    /// Where the bytes are that nobody asked for.
    pub(super) fn write_waste(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "<h3>Reserved and not requested, when each allocator first holds the most</h3>")?;
        let titles = [
            "allocator",
            "reserved",
            "requested",
            "rounding",
            "holes",
            "caches",
            "other streams",
            "at event",
        ];
        let row = |Shown { outcome, waste, .. }: &Shown| {
            let parts = [
                waste.reserved,
                waste.requested,
                waste.rounding,
                waste.holes,
                waste.caches,
                waste.other_streams,
            ];
            let mut row = vec![escaped(&outcome.allocator)];
            row.extend(parts.map(|bytes| HumanBytes(bytes).to_string()));
            row.push(thousands(waste.event as u64));
            row
        };
        table(&titles, self.allocators.iter().map(row), out)?;
        writeln!(
            out,
            "<p class=note>Holes are free beside live blocks. Caches have no live block beside them. Other streams used \
             the rest last.</p>"
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

/// Names of phases that are listed.
const MOST_PHASES: usize = 30;

/// Who holds what is live at a moment.
pub(super) fn write_live(when: &str, live: &Live, out: &mut dyn Write) -> io::Result<()> {
    if live.blocks == 0 {
        return writeln!(out, "<h3>Live {when}: nothing</h3>");
    }
    let (bytes, blocks) = (HumanBytes(live.bytes), thousands(live.blocks));
    let many = if live.blocks == 1 { "block" } else { "blocks" };
    writeln!(out, "<h3>Live {when}: {bytes} in {blocks} {many}</h3>")?;
    if live.sites.is_empty() {
        return writeln!(out, "<p class=note>No tags or call stacks were recorded to say whose.</p>");
    }
    let has_tags = live.sites.iter().any(|site| site.tag.is_some());
    let titles: &[&str] =
        if has_tags { &["bytes", "blocks", "tag", "call site"] } else { &["bytes", "blocks", "call site"] };
    let rows = live.sites.iter().map(|site| {
        let mut row = vec![bar(site.bytes, live.bytes), thousands(site.blocks)];
        if has_tags {
            row.push(escaped(site.tag.as_deref().unwrap_or_default()));
        }
        row.push(escaped(&site.site));
        row
    });
    writeln!(out, "<div class=names>")?;
    table(titles, rows, out)?;
    writeln!(out, "</div>")
}

/// In blocks of which size that is.
pub(super) fn write_sizes(live: &Live, out: &mut dyn Write) -> io::Result<()> {
    let rows = live.by_size.iter().rev().map(|(&from, &bytes)| {
        vec![bar(bytes, live.bytes), format!("{} to {}", HumanBytes(from), HumanBytes(2 * from))]
    });
    table(&["bytes", "in blocks of"], rows, out)
}

fn unknown() -> String {
    "–".to_owned()
}

/// Bytes, over a bar as long as their share.
fn bar(bytes: u64, all: u64) -> String {
    let share = bytes as f64 * 100.0 / all.max(1) as f64;
    format!("<span class=bar style=\"--share:{share:.1}%\">{}</span>", HumanBytes(bytes))
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

/// Microseconds in a unit that suits them.
pub(super) fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us if us < 600e6 => format!("{:.1} s", us / 1e6),
        us if us < 36000e6 => format!("{:.1} min", us / 60e6),
        us => format!("{:.1} h", us / 3600e6),
    }
}

/// A number with its thousands apart.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Text as HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
