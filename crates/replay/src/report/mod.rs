//! `report/`: one HTML file that shows replays, works offline and fetches nothing.
//!
//! Uses `trace`, `replay`, `fit`, `deciding`, `phases`, `sites`, `growth`, `holes`, `possible` and `export`'s flame graph. [`Section::of`] and [`Section::add`]
//! keep what is shown of a trace and of each allocator. `charts.rs` makes the chart over time, which plotly.js draws.
//! `map.rs` draws what lies where, and `moments.rs` when. `holders.rs` says who requested it. `tables.rs` has everything
//! else, and `page.html` is the frame around them. Everything from the trace is escaped: a function's name may be anything.

mod charts;
mod holders;
mod map;
mod moments;
mod tables;
#[cfg(test)]
mod tests;
mod timeline;

use std::io::{self, Write};

use millpond::HumanBytes;
use millpond_baselines::MILLPOND;

use crate::choice::ran;
use crate::deciding::Deciding;
use crate::export::flame;
use crate::fit::{Card, Need};
use crate::growth::Growth;
use crate::holes::Holes;
use crate::out_of_memory::OutOfMemory;
use crate::owners::Owners;
use crate::phases::{PhaseSum, sums};
use crate::possible::Possible;
use crate::replay::{Choose, FreeWhen, Outcome, Program, ReplayError};
use crate::sites::Live;
use crate::steps::Steps;
use crate::trace::Trace;
use holders::Holders;
use moments::Moments;
use tables::{escaped, prose, time};
use timeline::{Point, is_idle, timeline};

/// What a report says of itself, so that whoever gets it knows where it comes from.
#[derive(Debug, Clone)]
pub struct About {
    /// When it was made.
    pub date: String,
    /// The version of Millpond.
    pub version: String,
    /// The command line that made it.
    pub command: String,
}

/// One trace in a report.
#[derive(Debug)]
pub struct Section {
    name: String,
    /// What was recorded, in a few sentences.
    facts: Vec<String>,
    wall_us: u64,
    is_idle: bool,
    /// The allocator that ran when the trace was recorded, as far as it is known.
    ran: &'static str,
    allocators: Vec<Shown>,
    at_peak: Live,
    at_end: Live,
    /// What is live at the peak by call stack, as a picture; nothing where no stacks were recorded.
    flame: Option<String>,
    growth: Growth,
    owners: Owners,
    by_tag: Option<Holders>,
    by_site: Option<Holders>,
    phases: Vec<PhaseSum>,
    verdict: Vec<String>,
    out_of_memory: Option<OutOfMemory>,
    /// Whether the recording has all of the job's history.
    is_whole: bool,
    possible: Option<Possible>,
    cards: Vec<Card>,
    /// Bytes of each card that the driver's context takes.
    context: u64,
}

/// One allocator in a section.
#[derive(Debug)]
struct Shown {
    outcome: Outcome,
    need: Option<Need>,
    deciding: Deciding,
    holes: Holes,
    /// Of the pool and of the allocator that ran.
    moments: Option<Moments>,
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
        let owners = Owners::of(trace);
        let holds = Program::new(trace, FreeWhen::Requested);
        Self {
            by_tag: holders::by_tag((trace, program), &owners),
            by_site: holders::by_site((trace, program), &owners),
            owners,
            name: trace.name.clone(),
            facts: facts(trace, program),
            wall_us: trace.wall_us,
            is_idle: is_idle(trace),
            ran: ran(trace),
            allocators: Vec::new(),
            at_peak: Live::at_peak(trace, program),
            at_end: Live::at_end(trace, program),
            flame: if trace.stacks.is_empty() { None } else { flame::svg(trace, program) },
            growth: Growth::of(trace, &holds, Steps::found(trace, &holds)),
            phases: sums(trace, program),
            verdict,
            out_of_memory: None,
            is_whole: trace.lacks.is_none(),
            possible: None,
            cards,
            context,
        }
    }

    /// Begins with the request that found no memory.
    pub fn set_out_of_memory(&mut self, found: OutOfMemory) {
        self.out_of_memory = Some(found);
    }

    /// The first sentence of the answer.
    fn first(&self) -> String {
        let died = self.out_of_memory.as_ref().and_then(|found| found.lines().into_iter().next());
        died.or_else(|| self.verdict.first().cloned()).unwrap_or_default()
    }

    /// Shows what is possible beside the allocators.
    pub fn set_possible(&mut self, possible: Possible) {
        self.possible = Some(possible);
    }

    /// Adds an allocator, from what its replay gave and what it needs, where that was looked for.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn add(
        &mut self,
        (trace, program): (&Trace, &Program),
        choose: &Choose<'_>,
        outcome: Outcome,
        need: Option<Need>,
    ) -> Result<(), ReplayError> {
        let most = need.map_or(u64::MAX, |need| need.unlimited);
        let deciding = Deciding::of(program, choose, need, most)?;
        let points = timeline(trace, program, choose)?;
        let is_main = outcome.allocator == MILLPOND || outcome.allocator == self.ran;
        let moments = (is_main && !deciding.map.backing.is_empty())
            .then(|| Moments::of((trace, program), &self.owners, choose, &deciding))
            .transpose()?;
        let holes = Holes::of(trace, &deciding.map);
        self.allocators.push(Shown { outcome, need, deciding, holes, moments, points });
        Ok(())
    }

    fn write(&self, number: usize, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "<section id=trace-{number}><h2>{}</h2>", escaped(&self.name))?;
        for fact in &self.facts {
            writeln!(out, "<p class=note>{}</p>", prose(fact))?;
        }
        self.write_out_of_memory(out)?;
        for line in &self.verdict {
            writeln!(out, "<p class=verdict>{}</p>", prose(line))?;
        }
        tables::write_live("Live when most is requested", &self.at_peak, out)?;
        if let Some(flame) = &self.flame {
            writeln!(
                out,
                "<h3>Live when most is requested, by call stack</h3><p class=note>Callers above what they call, each as wide as \
                 what it holds. Tags are blue, the program's own functions orange. A click widens a part; the first row \
                 shows all again.</p><div>{flame}</div>"
            )?;
        }
        self.write_grown(out)?;
        self.write_needs(out)?;
        writeln!(out, "<h3>Memory over time</h3>")?;
        let chart = charts::over_time(&self.allocators, self.wall_us, self.is_idle, self.ran);
        writeln!(
            out,
            "<div class=chart id=time-{number}></div><script>draw(\"time-{number}\", {chart})</script>"
        )?;
        self.write_holders(number, out)?;
        self.write_phases(out)?;
        self.write_waste(out)?;
        self.write_maps(number, out)?;
        self.write_calls(out)?;
        tables::write_live("Live at the end", &self.at_end, out)?;
        writeln!(out, "</section>")
    }

    fn write_holders(&self, number: usize, out: &mut dyn Write) -> io::Result<()> {
        for (what, id, holders) in [("tag", "tags", &self.by_tag), ("call site", "sites", &self.by_site)] {
            let Some(holders) = holders else { continue };
            let chart = charts::stacked(holders, self.wall_us, self.is_idle);
            writeln!(
                out,
                "<h3>Requested over time, by {what}</h3><div class=chart id={id}-{number}></div><script>draw(\"{id}-{number}\", \
                 {chart})</script>"
            )?;
        }
        Ok(())
    }

    fn write_maps(&self, number: usize, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "<h3>What lies where at the request that decides what is needed</h3><p class=\"note key\"><span class=live></span>live \
             <span class=hole></span>free, on a page or segment with live blocks <span class=free></span>free \
             pages and segments</p>"
        )?;
        for (at, shown) in self.allocators.iter().enumerate() {
            let Deciding { map, waste, is_most, .. } = &shown.deciding;
            let when = if *is_most { ", when it holds the most" } else { "" };
            if map.backing.is_empty() {
                writeln!(
                    out,
                    "<figure><figcaption>{}: {}{when}. No map: {}.</figcaption></figure>",
                    escaped(&shown.outcome.allocator),
                    HumanBytes(waste.reserved),
                    if waste.reserved == 0 {
                        "it held nothing"
                    } else {
                        "the driver's own pool does not say where its memory lies"
                    }
                )?;
                continue;
            }
            let pages = map.backing.len();
            writeln!(
                out,
                "<figure id=map-{number}-{at}><figcaption>{}: {} in {pages} {}{when}. A cell is {}, rows by rising address.</figcaption>{}",
                escaped(&shown.outcome.allocator),
                HumanBytes(waste.reserved),
                if pages == 1 { "page or segment" } else { "pages or segments" },
                HumanBytes(map::cell_bytes(map)),
                map::svg(map),
            )?;
            if let Some(moments) = &shown.moments {
                writeln!(
                    out,
                    "<label class=moment>Moment <input type=range min=0 max={} value={}></label><p class=\"note told\">\
                     </p><p class=\"note named\">Point at the map to see whose a block is.</p><script>\
                     mapped(\"map-{number}-{at}\", {})</script>",
                    moments.count().saturating_sub(1),
                    moments.first(),
                    moments.script()
                )?;
            }
            writeln!(out, "</figure>")?;
        }
        Ok(())
    }
}

/// What was recorded.
fn facts(trace: &Trace, program: &Program) -> Vec<String> {
    let many = |number: usize, what: &str| {
        format!("{} {what}{}", tables::thousands(number as u64), if number == 1 { "" } else { "s" })
    };
    let mut recorded = format!(
        "Recorded: {}, {}, {}, {}. Requested at most {}",
        many(program.blocks, "block"),
        many(program.steps.len(), "event"),
        many(program.streams, "stream"),
        time(trace.wall_us as f64),
        HumanBytes(program.peak_requested().0),
    );
    if let Some(reserved) = trace.recorded_reserved {
        recorded += &format!(", reserved by the recorded run {}", HumanBytes(reserved));
    }
    let lacks = trace.lacks.iter().map(|lacks| {
        let first: String = lacks.chars().take(1).flat_map(char::to_uppercase).collect();
        let rest: String = lacks.chars().skip(1).collect();
        format!("{first}{rest}. So the job may need more than what follows says, and no card is promised.")
    });
    let mut facts: Vec<String> = lacks.chain([recorded + "."]).collect();
    if !trace.settings.is_empty() {
        facts.push(format!("Recorded with PYTORCH_CUDA_ALLOC_CONF={}.", trace.settings));
    }
    facts.extend(trace.remarks.iter().map(|remark| format!("{remark}.")));
    facts
}

/// Writes the report.
///
/// # Errors
/// Where it cannot be written.
pub fn write(about: &About, sections: &[Section], out: &mut dyn Write) -> io::Result<()> {
    let (head, tail) = include_str!("page.html").split_once("{{sections}}").unwrap_or_default();
    let (before_script, after_script) = head.split_once("{{plotly}}").unwrap_or_default();
    let (light, dark) = (
        format!("{}\n", flame::STYLE),
        format!("@media screen and (prefers-color-scheme: dark) {{ {} }}\n", flame::DARK),
    );
    out.write_all(before_script.replacen("</style>", &format!("{light}{dark}</style>"), 1).as_bytes())?;
    millpond_charts::write_script(out)?;
    out.write_all(after_script.as_bytes())?;
    let About { date, version, command } = about;
    writeln!(
        out,
        "<header><h1>Memory replay</h1><p class=note>{}, millpond {}</p><p class=note><code>{}</code></p></header>",
        escaped(date),
        escaped(version),
        escaped(command)
    )?;
    if sections.len() > 1 {
        writeln!(out, "<nav><h2>Traces</h2><ol>")?;
        for (number, section) in sections.iter().enumerate() {
            let (name, first) = (escaped(&section.name), prose(&section.first()));
            writeln!(out, "<li><a href=\"#trace-{number}\">{name}</a> <span class=no>{first}</span></li>")?;
        }
        writeln!(out, "</ol></nav>")?;
    }
    for (number, section) in sections.iter().enumerate() {
        section.write(number, out)?;
    }
    if sections.iter().any(|section| section.flame.is_some()) {
        writeln!(out, "<script>{}</script>", flame::SCRIPT)?;
    }
    out.write_all(tail.as_bytes())
}
