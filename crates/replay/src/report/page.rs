//! The page: its frame, and the sections in it.

use std::io::{self, Write};

use millpond::HumanBytes;

use super::section::Section;
use super::text::{escaped, prose};
use super::{charts, map, tables};
use crate::deciding::Deciding;
use crate::export::flame;

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
        write_section(section, number, out)?;
    }
    if sections.iter().any(|section| section.flame.is_some()) {
        writeln!(out, "<script>{}</script>", flame::SCRIPT)?;
    }
    out.write_all(tail.as_bytes())
}

fn write_section(section: &Section, number: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "<section id=trace-{number}><h2>{}</h2>", escaped(&section.name))?;
    for fact in &section.facts {
        writeln!(out, "<p class=note>{}</p>", prose(fact))?;
    }
    section.write_out_of_memory(out)?;
    for line in &section.verdict {
        writeln!(out, "<p class=verdict>{}</p>", prose(line))?;
    }
    tables::write_live("Live when most is requested", &section.at_peak, out)?;
    if let Some(flame) = &section.flame {
        writeln!(
            out,
            "<h3>Live when most is requested, by call stack</h3><p class=note>Callers above what they call, each as wide as \
             what it holds. Tags are blue, the program's own functions orange. A click widens a part; the first row \
             shows all again.</p><div>{flame}</div>"
        )?;
    }
    section.write_grown(out)?;
    section.write_needs(out)?;
    writeln!(out, "<h3>Memory over time</h3>")?;
    let chart = charts::over_time(&section.allocators, section.wall_us, section.is_idle, section.ran);
    writeln!(
        out,
        "<div class=chart id=time-{number}></div><script>draw(\"time-{number}\", {chart})</script>"
    )?;
    write_holders(section, number, out)?;
    section.write_phases(out)?;
    section.write_waste(out)?;
    write_maps(section, number, out)?;
    section.write_calls(out)?;
    tables::write_live("Live at the end", &section.at_end, out)?;
    writeln!(out, "</section>")
}

fn write_holders(section: &Section, number: usize, out: &mut dyn Write) -> io::Result<()> {
    for (what, id, holders) in [("tag", "tags", &section.by_tag), ("call site", "sites", &section.by_site)] {
        let Some(holders) = holders else { continue };
        let chart = charts::stacked(holders, section.wall_us, section.is_idle);
        writeln!(
            out,
            "<h3>Requested over time, by {what}</h3><div class=chart id={id}-{number}></div><script>draw(\"{id}-{number}\", \
             {chart})</script>"
        )?;
    }
    Ok(())
}

fn write_maps(section: &Section, number: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "<h3>What lies where at the request that decides what is needed</h3><p class=\"note key\"><span class=live></span>live \
         <span class=hole></span>free, on a page or segment with live blocks <span class=free></span>free \
         pages and segments</p>"
    )?;
    for (at, shown) in section.allocators.iter().enumerate() {
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
