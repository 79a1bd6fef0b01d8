//! The tables of `millpond probe`, one a section, in 80 columns.

use millpond::HumanBytes;
use millpond_probe::{Facts, Row, Section};

use crate::terminal::{table, thousands, wrapped};

/// Columns of figures beside each other at most.
const MOST_COLUMNS: usize = 6;

/// What the device says of itself.
pub(crate) fn of_facts(facts: &Facts) -> String {
    let line = |fact: &millpond_probe::Fact| format!("{}: {} ({})", fact.name, fact.shown(), fact.from);
    facts.all.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The table of a section.
pub(crate) fn of_section(section: Section, rows: &[Row]) -> String {
    let mut parts = vec![wrapped(&format!("{}: {}", section.name(), section.about()), 80)];
    if section.is_by_size() {
        parts.extend(by_size(rows));
    } else {
        parts.push(list(rows));
    }
    if let Some((peak, unit)) = rows.iter().find_map(|row| Some((row.peak?, row.unit))) {
        parts.push(format!("The device's own properties allow at most {} {}.", figure(peak), unit.symbol()));
    }
    parts.join("\n")
}

/// A line for each size, and a column for each kind.
fn by_size(rows: &[Row]) -> Vec<String> {
    let (sizes, kinds) = (distinct(rows, |row| row.bytes), distinct(rows, |row| row.what.as_str()));
    let unit = rows.first().map_or("", |row| row.unit.symbol());
    let table_of = |kinds: &[&str]| {
        let (upper, lower): (Vec<_>, Vec<_>) =
            kinds.iter().map(|kind| kind.split_once(", ").unwrap_or((kind, ""))).unzip();
        let title = |first: &str, names: Vec<&str>| {
            [first].into_iter().chain(names).map(str::to_owned).collect::<Vec<_>>()
        };
        let mut lines = vec![title(unit, upper)];
        if lower.iter().any(|name| !name.is_empty()) {
            lines.push(title("", lower));
        }
        for &bytes in &sizes {
            let cell = |kind: &&str| {
                let row = rows.iter().find(|row| row.bytes == bytes && row.what == **kind);
                row.map_or_else(|| "-".to_owned(), |row| figure(row.median))
            };
            lines.push([size(bytes)].into_iter().chain(kinds.iter().map(cell)).collect());
        }
        table(&lines)
    };
    kinds.chunks(MOST_COLUMNS).map(table_of).collect()
}

/// A line for each figure, with its spread.
fn list(rows: &[Row]) -> String {
    let unit = rows.first().map_or("", |row| row.unit.symbol());
    let titles = ["", unit, "least", "most"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        let name = match row.bytes {
            Some(_) => format!("{:>8}  {}", size(row.bytes), row.what),
            None => row.what.clone(),
        };
        [row.median, row.least, row.most].map(figure).into_iter().fold(vec![name], |mut line, cell| {
            line.push(cell);
            line
        })
    }));
    table(&lines)
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| HumanBytes(bytes).to_string())
}

/// Three digits, or all those before the point.
fn figure(figure: f64) -> String {
    match figure {
        ..10.0 => format!("{figure:.2}"),
        ..100.0 => format!("{figure:.1}"),
        _ => thousands(figure.round() as u64),
    }
}

/// What the rows have, each once, in their order.
fn distinct<'a, T: PartialEq>(rows: &'a [Row], of: impl Fn(&'a Row) -> T) -> Vec<T> {
    let mut seen = Vec::new();
    for row in rows {
        let value = of(row);
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use millpond_probe::Unit;

    use super::*;

    fn row(section: Section, what: &str, bytes: Option<u64>, median: f64) -> Row {
        let unit = Unit::GigabytesPerSecond;
        let (section, what) = (section.name(), what.to_owned());
        Row { section, what, bytes, unit, median, least: 1.0, most: 1234.5, samples: 3, peak: Some(63.0) }
    }

    #[test]
    fn sizes_are_lines_and_kinds_are_columns() {
        let rows = [
            row(Section::Copies, "pinned, to the GPU", Some(4096), 1.5),
            row(Section::Copies, "pinned, to the GPU", Some(1 << 20), 55.25),
            row(Section::Copies, "pinned, from the GPU", Some(1 << 20), 155.0),
        ];
        let shown = of_section(Section::Copies, &rows);
        let (_, table) = shown.split_once("done.\n").unwrap();
        assert_eq!(
            table,
            "\
GB/s          pinned        pinned
          to the GPU  from the GPU
4.00 KiB        1.50             -
1.00 MiB        55.2           155
The device's own properties allow at most 63.0 GB/s."
        );
    }

    #[test]
    fn a_list_has_the_spread() {
        let rows =
            [row(Section::Latency, "L1", Some(4096), 0.9), row(Section::Latency, "shared", None, 12.0)];
        let shown = of_section(Section::Latency, &rows);
        assert!(shown.contains("4.00 KiB  L1  0.90   1.00  1,235"), "{shown}");
        assert!(shown.contains("\nshared        12.0   1.00  1,235"), "{shown}");
    }
}
