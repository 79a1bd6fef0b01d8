//! One HTML file that shows a run's figures, works offline and fetches nothing.
//!
//! Charts are drawn by plotly.js from its [JSON](https://plotly.com/javascript/reference/);
//! `page.html` is the frame around them.

use std::io::{self, Write};

use millpond::HumanBytes;
use serde_json::{Value, json};

use crate::ratio::{times, times_reference};
use crate::row::work_of;
use crate::{Drift, Machine, Row, Suite};

/// Writes the report of rows, which are in the order in which they were measured.
///
/// # Errors
/// Where it cannot be written.
pub fn write(machine: &Machine, rows: &[Row], drift: &Drift, out: &mut dyn Write) -> io::Result<()> {
    frame("Millpond bench", out, |out| sections(machine, rows, drift, out))
}

/// Writes the page around what `sections` writes: styles, the charts' script, and `draw(id, plot)`, which draws a chart.
///
/// # Errors
/// Where it cannot be written.
pub fn frame(
    title: &str,
    out: &mut dyn Write,
    sections: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let (head, tail) = include_str!("page.html").split_once("{{sections}}").unwrap_or_default();
    let (before_script, after_script) = head.split_once("{{plotly}}").unwrap_or_default();
    write!(out, "{}", before_script.replace("{{title}}", &escaped(title)))?;
    millpond_charts::write_script(out)?;
    write!(out, "{after_script}")?;
    sections(out)?;
    out.write_all(tail.as_bytes())
}

fn sections(machine: &Machine, rows: &[Row], drift: &Drift, out: &mut dyn Write) -> io::Result<()> {
    let reference = drift.reference();
    writeln!(out, "<h1>What an allocation and its free cost</h1>")?;
    writeln!(out, "<p class=note>{}</p>", lines(&machine.to_string()))?;
    writeln!(
        out,
        "<p>The reference is mimalloc: a pair of 512 B, an allocation and its free, takes {:.1} ns. {}</p>",
        reference.p50_ns,
        escaped(&drift.sentence())
    )?;
    for suite in Suite::ALL {
        let of_suite: Vec<&Row> = rows.iter().filter(|row| row.suite == suite.name()).collect();
        if !of_suite.is_empty() {
            section(suite, &of_suite, reference, out)?;
        }
    }
    Ok(())
}

fn section(suite: Suite, rows: &[&Row], reference: &Row, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "<section><h2>{}</h2><p>{}</p>", suite.name(), escaped(suite.about()))?;
    for (number, (title, plot)) in charts(suite, rows).into_iter().enumerate() {
        let id = format!("{}-{number}", suite.name());
        writeln!(out, "<h3>{}</h3><div class=\"chart\" id=\"{id}\"></div>", escaped(&title))?;
        // No text in it can end the script.
        writeln!(out, "<script>draw(\"{id}\", {})</script>", plot.to_string().replace('<', "\\u003c"))?;
    }
    figures(rows, reference, out)?;
    writeln!(out, "</section>")
}

/// Several threads as lines over their number; one thread as bars, on a logarithmic axis.
fn charts(suite: Suite, rows: &[&Row]) -> Vec<(String, Value)> {
    let modes = distinct(rows, |row| row.mode.clone());
    let of_mode = |mode: &str| rows.iter().copied().filter(|row| row.mode == mode).collect::<Vec<_>>();
    match suite {
        Suite::Latency => modes
            .iter()
            .map(|mode| {
                (
                    format!("{}, median", work_of(mode)),
                    bars(&of_mode(mode), |row| HumanBytes(row.bytes).to_string()),
                )
            })
            .collect(),
        Suite::Threads | Suite::HandOver => {
            modes.iter().map(|mode| (mode.clone(), by_threads(&of_mode(mode)))).collect()
        }
        _ => vec![("median".to_owned(), bars(rows, |row| row.mode.clone()))],
    }
}

fn bars(rows: &[&Row], label: impl Fn(&Row) -> String) -> Value {
    let bars = by_allocator(rows, |allocator, of| {
        let (x, y): (Vec<_>, Vec<_>) = of.iter().map(|row| (label(row), row.p50_ns)).unzip();
        json!({ "type": "bar", "name": allocator, "x": x, "y": y })
    });
    // From 1 ns: a bar that began elsewhere would make small differences look large.
    let most = rows.iter().map(|row| row.p50_ns).fold(10.0, f64::max);
    let mut axis = logarithmic("nanoseconds");
    axis["range"] = json!([0.0, most.log10() * 1.02]);
    json!({ "data": bars, "layout": { "yaxis": axis } })
}

fn by_threads(rows: &[&Row]) -> Value {
    let lines = by_allocator(rows, |allocator, of| {
        let (x, y): (Vec<_>, Vec<_>) = of.iter().map(|row| (row.threads, row.pairs_per_s / 1e6)).unzip();
        json!({ "type": "scatter", "mode": "lines+markers", "name": allocator, "x": x, "y": y })
    });
    let (x, y) = (logarithmic("threads"), logarithmic("million pairs a second"));
    json!({ "data": lines, "layout": { "xaxis": x, "yaxis": y } })
}

fn by_allocator(rows: &[&Row], draw: impl Fn(&str, &[&Row]) -> Value) -> Vec<Value> {
    let of = |allocator| rows.iter().copied().filter(|row| row.allocator == allocator).collect::<Vec<_>>();
    distinct(rows, |row| row.allocator).into_iter().map(|allocator| draw(allocator, &of(allocator))).collect()
}

fn logarithmic(title: &str) -> Value {
    json!({ "type": "log", "title": { "text": title } })
}

fn figures(rows: &[&Row], reference: &Row, out: &mut dyn Write) -> io::Result<()> {
    let titles = [
        "",
        "size",
        "threads",
        "allocator",
        "median, ns",
        "99 % below",
        "99.9 % below",
        "mean",
        "least",
        "million a second",
    ];
    write!(out, "<details><summary>Figures</summary><div class=\"wide\"><table><tr>")?;
    for title in titles.into_iter().chain(["times millpond", "times malloc of 512 B"]) {
        write!(out, "<th>{title}")?;
    }
    writeln!(out, "</tr>")?;
    for row in rows {
        let ours = rows.iter().find(|other| row.same_case(other) && other.is_ours());
        let Row { threads, allocator, p50_ns, mean_ns, min_ns, .. } = row;
        let [p99, p999] =
            row.known_percentiles().map(|ns| ns.map_or("–".to_owned(), |ns| format!("{ns:.1}")));
        write!(
            out,
            "<tr><td>{}<td>{}<td>{threads}<td>{allocator}",
            escaped(row.work()),
            HumanBytes(row.bytes)
        )?;
        write!(out, "<td>{p50_ns:.1}<td>{p99}<td>{p999}<td>{mean_ns:.1}<td>{min_ns:.1}")?;
        let ours = ours.and_then(|ours| times(row, ours));
        let [ours, references] = [ours, times_reference(row, reference)].map(|ratio| match ratio {
            Some(ratio) => format!("{ratio:.2}"),
            None => "–".to_owned(),
        });
        writeln!(out, "<td>{}<td>{ours}<td>{references}</tr>", millions(row.pairs_per_s))?;
    }
    writeln!(out, "</table></div></details>")
}

/// Millions, with two places, and more where these would be zeros.
pub fn millions(number: f64) -> String {
    match number / 1e6 {
        few if few > 0.0 && few < 0.01 => format!("{few:.6}"),
        many => format!("{many:.2}"),
    }
}

/// What the rows have, each once, in their order.
fn distinct<T: PartialEq>(rows: &[&Row], of: impl Fn(&Row) -> T) -> Vec<T> {
    let mut seen = Vec::new();
    for row in rows {
        let value = of(row);
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

fn lines(text: &str) -> String {
    escaped(text).replace('\n', "<br>")
}

/// Text as HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(suite: Suite, allocator: &'static str, threads: usize) -> Row {
        let mode = "1MiB".to_owned();
        Row::for_test(suite, &mode, allocator, threads)
    }

    #[test]
    fn what_few_samples_do_not_say_is_not_said() {
        let few = Row { samples: 99, ..row(Suite::Churn, "mimalloc", 1) };
        assert_eq!(few.known_percentiles(), [None, None]);
        assert_eq!(Row { samples: 100, ..few.clone() }.known_percentiles(), [Some(20.0), None]);
        assert_eq!(Row { samples: 1000, ..few }.known_percentiles(), [Some(20.0), Some(40.0)]);
        assert_eq!(
            [0.0, 106.0, 9_999.0, 10_000.0, 26_440_000.0].map(millions),
            ["0.00", "0.000106", "0.009999", "0.01", "26.44"]
        );
    }

    #[test]
    fn the_page_has_machine_and_charts_and_fetches_nothing() {
        let rows = [
            row(Suite::Latency, "millpond", 1),
            row(Suite::Threads, "millpond", 4),
            row(Suite::Threads, "binned", 4),
        ];
        let machine = Machine {
            version: "0.1.0",
            processor: "a <fast> one".to_owned(),
            cores: 2,
            device: "sim (simulated)".to_owned(),
            driver: None,
            date: "2026-11-21T00:00:00Z".to_owned(),
            command: "millpond bench".to_owned(),
        };
        let mut page = Vec::new();
        let drift = Drift::of_test(&[5.0, 10.0]);
        write(&machine, &rows, &drift, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        for part in [
            "a &lt;fast&gt; one, 2 cores",
            "id=\"latency-0\"",
            "id=\"threads-0\"",
            "<td>binned",
            "took 5.0 to 10.0 ns",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("id=\"churn-0\""), "only what was measured");
        assert!(!page.contains("<script src"), "nothing is fetched");
        assert!(page.trim_end().ends_with("</html>"));
    }
}
