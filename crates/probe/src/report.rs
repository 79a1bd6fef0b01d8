//! One HTML file that shows a probe's figures, works offline and fetches nothing. Its frame is that of `millpond bench`.

use std::io::{self, Write};

use millpond::HumanBytes;
use millpond_bench::Machine;
use millpond_bench::report::{escaped, frame};
use serde_json::{Value, json};

use crate::{Facts, Row, Section};

/// Writes the report.
///
/// # Errors
/// Where it cannot be written.
pub fn write(
    machine: &Machine,
    facts: &Facts,
    rows: &[Row],
    left_out: &[String],
    out: &mut dyn Write,
) -> io::Result<()> {
    frame("Millpond probe", out, |out| {
        writeln!(out, "<h1>What the memory of this machine does</h1>")?;
        let machine = machine.to_string();
        let told = facts.all.iter().map(|fact| format!("{}: {} ({})", fact.name, fact.shown(), fact.from));
        let lines: Vec<_> = machine.lines().map(str::to_owned).chain(told).collect();
        writeln!(out, "<p class=note>{}</p>", escaped(&lines.join("\n")).replace('\n', "<br>"))?;
        for section in Section::ALL {
            let of_section: Vec<_> = rows.iter().filter(|row| row.section == section.name()).collect();
            if !of_section.is_empty() {
                write_section(section, &of_section, out)?;
            }
        }
        for what in left_out {
            writeln!(out, "<p class=note>{}</p>", escaped(what))?;
        }
        Ok(())
    })
}

fn write_section(section: Section, rows: &[&Row], out: &mut dyn Write) -> io::Result<()> {
    let name = section.name();
    writeln!(out, "<section><h2>{name}</h2><p>{}</p>", escaped(section.about()))?;
    writeln!(out, "<div class=\"chart\" id=\"{name}\"></div>")?;
    // No text in it can end the script.
    let plot = chart(section, rows).to_string().replace('<', "\\u003c");
    writeln!(out, "<script>draw(\"{name}\", {plot})</script>")?;
    figures(rows, out)?;
    writeln!(out, "</section>")
}

/// Lines over the size, or bars.
fn chart(section: Section, rows: &[&Row]) -> Value {
    let unit = rows.first().map_or("", |row| row.unit.symbol());
    let data = if section.is_by_size() {
        kinds(rows).into_iter().map(|kind| line(kind, rows.iter().filter(|row| row.what == kind))).collect()
    } else if section == Section::Latency {
        // One line through all caches: the names of places are its labels.
        let mut line = line("working set", rows.iter().filter(|row| row.bytes.is_some()));
        line["text"] = rows.iter().filter(|row| row.bytes.is_some()).map(|row| row.what.clone()).collect();
        vec![line]
    } else {
        let (x, y): (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.what.clone(), row.median)).unzip();
        vec![json!({ "type": "bar", "x": x, "y": y })]
    };
    let mut data: Vec<Value> = data;
    if let Some(peak) = rows.iter().find_map(|row| row.peak) {
        data.push(at_most(peak, &data));
    }
    let sizes = section.is_by_size() || section == Section::Latency;
    let x = if sizes { bytes_axis(rows) } else { json!({}) };
    let mut y = json!({ "title": { "text": unit }, "rangemode": "tozero" });
    if (sizes && section != Section::Pool) || section == Section::Calls {
        y["type"] = "log".into();
    }
    if section == Section::Calls {
        // From 1 ns: a bar that began elsewhere would make small differences look large.
        let most = rows.iter().map(|row| row.median).fold(10.0, f64::max);
        y["range"] = json!([0.0, most.log10() * 1.02]);
    }
    json!({ "data": data, "layout": { "xaxis": x, "yaxis": y } })
}

fn line<'a>(name: &str, rows: impl Iterator<Item = &'a &'a Row>) -> Value {
    let (x, y): (Vec<_>, Vec<_>) = rows.map(|row| (row.bytes, row.median)).unzip();
    json!({ "type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y })
}

/// A level line, as long as the others.
fn at_most(peak: f64, data: &[Value]) -> Value {
    let x = data.first().map(|first| first["x"].clone()).unwrap_or_default();
    let y = vec![peak; x.as_array().map_or(0, Vec::len)];
    json!({ "type": "scatter", "mode": "lines", "name": "at most", "x": x, "y": y, "line": { "dash": "dot" } })
}

/// Sizes in binary units.
fn bytes_axis(rows: &[&Row]) -> Value {
    let mut sizes: Vec<u64> = rows.iter().filter_map(|row| row.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let names: Vec<_> = sizes.iter().map(|bytes| HumanBytes(*bytes).to_string()).collect();
    json!({ "type": "log", "tickvals": sizes, "ticktext": names })
}

fn kinds<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut kinds: Vec<&str> = Vec::new();
    for row in rows {
        if !kinds.contains(&row.what.as_str()) {
            kinds.push(&row.what);
        }
    }
    kinds
}

fn figures(rows: &[&Row], out: &mut dyn Write) -> io::Result<()> {
    write!(out, "<details><summary>Figures</summary><div class=\"wide\"><table><tr>")?;
    for title in ["", "size", "median", "", "least", "most", "samples", "of what is possible"] {
        write!(out, "<th>{title}")?;
    }
    writeln!(out, "</tr>")?;
    for row in rows {
        let Row { what, median, least, most, samples, .. } = row;
        let size = row.bytes.map_or_else(String::new, |bytes| HumanBytes(bytes).to_string());
        let share = row.peak.map_or_else(String::new, |peak| format!("{:.0} %", median / peak * 100.0));
        write!(out, "<tr><td>{}<td>{size}<td>{median}<td>{}", escaped(what), row.unit.symbol())?;
        writeln!(out, "<td>{least}<td>{most}<td>{samples}<td>{share}</tr>")?;
    }
    writeln!(out, "</table></div></details>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unit;

    fn row(section: Section, what: &str, bytes: Option<u64>) -> Row {
        let (section, what, unit) = (section.name(), what.to_owned(), Unit::GigabytesPerSecond);
        Row { section, what, bytes, unit, median: 2.5, least: 1.0, most: 3.0, samples: 3, peak: Some(5.0) }
    }

    #[test]
    fn the_page_has_a_chart_for_each_section_and_fetches_nothing() {
        let rows = [
            row(Section::Copies, "pinned, to the <GPU>", Some(4096)),
            row(Section::Latency, "L1", Some(4096)),
            row(Section::Reads, "stride 2", None),
        ];
        let machine = Machine {
            version: "0.1.0",
            processor: "a <fast> one".to_owned(),
            cores: 2,
            device: "cuda:0 (a GPU)".to_owned(),
            driver: None,
            date: "2026-11-23T00:00:00Z".to_owned(),
            command: "millpond probe".to_owned(),
        };
        let mut page = Vec::new();
        write(&machine, &Facts::of_cpu(), &rows, &["managed: left out".to_owned()], &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        for part in [
            "<title>Millpond probe</title>",
            "a &lt;fast&gt; one, 2 cores",
            "id=\"copies\"",
            "id=\"latency\"",
            "id=\"reads\"",
            "<td>pinned, to the &lt;GPU&gt;<td>4.00 KiB<td>2.5<td>GB/s<td>1<td>3<td>3<td>50 %",
            "managed: left out",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("id=\"pool\"") && !page.contains("<script src"), "only what was measured");
        assert!(page.trim_end().ends_with("</html>"));
    }
}
