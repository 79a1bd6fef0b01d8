//! `report/`: one HTML file that shows replays, works offline and fetches nothing.
//!
//! Uses `trace`, `replay` and `fit`. [`Section::of`] replays a trace once more with each allocator and keeps
//! what is drawn; `charts.rs` makes the charts, which plotly.js draws; `page.html` is
//! the frame around them. Everything from the trace is escaped: a function's name may be anything.

mod charts;
#[cfg(test)]
mod tests;
mod timeline;

use std::io::{self, Write};

use millpond::HumanBytes;

use crate::fit::Card;
use crate::replay::{Choose, Map, Outcome, Program, ReplayError, Waste, map_at_peak};
use crate::sites::Sites;
use crate::trace::Trace;
use timeline::{Point, timeline};

/// One trace in a report.
#[derive(Debug)]
pub struct Section {
    name: String,
    allocators: Vec<Shown>,
    sites: Sites,
    verdict: Vec<String>,
    cards: Vec<Card>,
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
    pub fn of(
        trace: &Trace,
        program: &Program,
        verdict: Vec<String>,
        (cards, context): (Vec<Card>, u64),
    ) -> Self {
        let sites = Sites::at_peak(trace, program);
        Self { name: trace.name.clone(), allocators: Vec::new(), sites, verdict, cards, context }
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
    millpond_charts::write_script(out)?;
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
        let (over_time, events) = charts::over_time(&self.allocators);
        writeln!(out, "<h2>Memory over time</h2>")?;
        chart(out, &format!("time-{number}"), "", &format!("{over_time}, {events}"))?;
        self.write_maps(number, out)?;
        if let Some(json) = charts::by_site(&self.sites) {
            writeln!(out, "<h2>Live bytes by call site, when most is requested</h2>")?;
            chart(out, &format!("site-{number}"), "", &json)?;
        }
        writeln!(out, "<h2>Live bytes by block size, when most is requested</h2>")?;
        chart(out, &format!("size-{number}"), "", &charts::by_size(&self.sites))?;
        writeln!(out, "</section>")
    }

    fn write_maps(&self, number: usize, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "<h2>What lies where when each allocator holds the most</h2><p class=note><span class=live></span>live \
             <span class=hole></span>free, on a page or segment with live blocks <span class=free></span>free \
             pages and segments</p>"
        )?;
        for (at, shown) in self.allocators.iter().filter(|shown| !shown.map.backing.is_empty()).enumerate() {
            writeln!(
                out,
                "<h3>{}: {} in {} {}</h3>",
                escaped(&shown.outcome.allocator),
                HumanBytes(shown.waste.reserved),
                shown.map.backing.len(),
                if shown.map.backing.len() == 1 { "page or segment" } else { "pages or segments" }
            )?;
            chart(out, &format!("map-{at}-{number}"), " map", &charts::map(&shown.map))?;
        }
        Ok(())
    }

    /// What each allocator held, and on which cards it would fit, or, where one capacity was asked about and so that
    /// was not looked for, whether it fitted there.
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let looked = self.allocators.iter().any(|shown| shown.smallest.is_some());
        write!(out, "<div class=\"wide\"><table><tr><th>allocator<th>reserved<th>ratio")?;
        if looked {
            write!(out, "<th>needs")?;
            self.cards.iter().try_for_each(|card| write!(out, "<th>{}", escaped(&card.name)))?;
        }
        writeln!(out, "</tr>")?;
        for shown in &self.allocators {
            let Outcome { allocator, peak_reserved, ratio, .. } = &shown.outcome;
            write!(out, "<tr><td>{}<td>{}<td>{ratio:.3}", escaped(allocator), HumanBytes(*peak_reserved))?;
            if looked {
                self.write_cards(shown.smallest, out)?;
            } else if let Some(oom) = shown.outcome.oom {
                write!(out, "<td class=no>out of memory at event {}", oom.event)?;
            }
            writeln!(out, "</tr>")?;
        }
        writeln!(out, "</table></div>")?;
        if looked {
            let context = HumanBytes(self.context);
            let note = format!("Cards in GiB, less {context} for the driver's context and libraries.");
            writeln!(out, "<p class=note>{note}</p>")?;
        }
        Ok(())
    }

    fn write_cards(&self, smallest: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
        let Some(bytes) = smallest else {
            return (0..=self.cards.len()).try_for_each(|_| write!(out, "<td>–"));
        };
        write!(out, "<td>{}", HumanBytes(bytes))?;
        self.cards.iter().try_for_each(|card| {
            let fits = card.fits(bytes, self.context);
            write!(out, "{}", if fits { "<td class=yes>yes" } else { "<td class=no>no" })
        })
    }
}

/// A place for a chart, and the call that draws it.
fn chart(out: &mut dyn Write, id: &str, class: &str, arguments: &str) -> io::Result<()> {
    writeln!(
        out,
        "<div class=\"chart{class}\" id=\"{id}\"></div><script>draw(\"{id}\", {arguments})</script>"
    )
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
