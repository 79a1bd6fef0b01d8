//! `report/`: one HTML file that shows replays, works offline and fetches nothing.
//!
//! Uses `trace`, `replay` and `fit`. [`Section::of`] replays a trace once more with each allocator and keeps
//! what is drawn; `charts.rs` makes the charts with plotly, whose script comes with its crate; `page.html` is
//! the frame around them. Everything from the trace is escaped: a function's name may be anything.

mod charts;
mod sites;
#[cfg(test)]
mod tests;
mod timeline;

use std::io::{self, Write};

use millpond::HumanBytes;

use crate::fit::{self, CARDS_GIB};
use crate::replay::{Choose, Map, Outcome, Program, ReplayError, Waste, map_at_peak};
use crate::trace::Trace;
use sites::Sites;
use timeline::{Point, timeline};

/// One trace in a report.
#[derive(Debug)]
pub struct Section {
    name: String,
    allocators: Vec<Shown>,
    sites: Sites,
    verdict: Vec<String>,
    /// Bytes of each card that the driver's context takes.
    context: u64,
}

/// One allocator in a section.
#[derive(Debug)]
struct Shown {
    outcome: Outcome,
    smallest: Option<u64>,
    waste: Waste,
    map: Map,
    points: Vec<Point>,
}

impl Section {
    /// A section about a trace, with its verdict; cards have `context` bytes less than their name says.
    pub fn of(trace: &Trace, program: &Program, verdict: Vec<String>, context: u64) -> Self {
        let sites = Sites::at_peak(trace, program);
        Self { name: trace.name.clone(), allocators: Vec::new(), sites, verdict, context }
    }

    /// Adds an allocator, from what its replay gave and the smallest capacity that fits.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn add(
        &mut self,
        (trace, program): (&Trace, &Program),
        choose: &Choose<'_>,
        outcome: Outcome,
        smallest: Option<u64>,
    ) -> Result<(), ReplayError> {
        let (waste, map) = map_at_peak(program, choose)?;
        let points = timeline(trace, program, choose)?;
        self.allocators.push(Shown { outcome, smallest, waste, map, points });
        Ok(())
    }
}

/// Writes the report.
///
/// # Errors
/// Where it cannot be written.
pub fn write(sections: &[Section], out: &mut dyn Write) -> io::Result<()> {
    let (head, tail) = include_str!("page.html").split_once("{{sections}}").unwrap_or_default();
    let (before_script, after_script) = head.split_once("{{plotly}}").unwrap_or_default();
    out.write_all(before_script.as_bytes())?;
    out.write_all(charts::script().as_bytes())?;
    out.write_all(after_script.as_bytes())?;
    for (number, section) in sections.iter().enumerate() {
        section.write(number, out)?;
    }
    out.write_all(tail.as_bytes())
}

impl Section {
    fn write(&self, number: usize, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "<section><h1>{}</h1>", escaped(&self.name))?;
        for line in &self.verdict {
            writeln!(out, "<p>{}</p>", escaped(line))?;
        }
        self.write_table(out)?;
        let mut chart = |what: &str, title: &str, json: String| {
            let id = format!("{what}-{number}");
            writeln!(out, "<h2>{title}</h2><div class=\"chart\" id=\"{id}\"></div>")?;
            writeln!(out, "<script>draw(\"{id}\", {json})</script>")
        };
        chart("time", "Memory over time", charts::over_time(&self.allocators))?;
        for (at, shown) in self.allocators.iter().filter(|shown| !shown.map.backing.is_empty()).enumerate() {
            let title = format!(
                "What lies where when {} holds the most: {} in {} pages or segments",
                escaped(&shown.outcome.allocator),
                HumanBytes(shown.waste.reserved),
                shown.map.backing.len()
            );
            chart(&format!("map-{at}"), &title, charts::map(&shown.map))?;
        }
        if let Some(json) = charts::by_site(&self.sites) {
            chart("site", "Live bytes by call site, when most is requested", json)?;
        }
        chart("size", "Live bytes by block size, when most is requested", charts::by_size(&self.sites))?;
        writeln!(out, "</section>")
    }

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "<div class=\"wide\"><table><tr><th>allocator<th>reserved<th>ratio<th>needs")?;
        for gib in CARDS_GIB {
            write!(out, "<th>{gib}")?;
        }
        writeln!(out, "</tr>")?;
        for Shown { outcome, smallest, .. } in &self.allocators {
            let needs = smallest.map_or_else(|| "–".to_owned(), |bytes| HumanBytes(bytes).to_string());
            write!(
                out,
                "<tr><td>{}<td>{}<td>{:.3}<td>{needs}",
                escaped(&outcome.allocator),
                HumanBytes(outcome.peak_reserved),
                outcome.ratio
            )?;
            for gib in CARDS_GIB {
                let fits = smallest.is_some_and(|bytes| fit::fits(bytes, gib, self.context));
                write!(out, "{}", if fits { "<td class=yes>yes" } else { "<td class=no>no" })?;
            }
            writeln!(out, "</tr>")?;
        }
        writeln!(
            out,
            "</table></div><p class=note>Cards in GiB, less {} for the driver's context and libraries.</p>",
            HumanBytes(self.context)
        )
    }
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
