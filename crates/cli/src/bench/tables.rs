//! The tables of `millpond bench`: one a suite, allocators side by side, ratios beside the figures.

use millpond::HumanBytes;
use millpond_bench::report::millions;
use millpond_bench::{MIMALLOC, Row, Suite, times, times_reference};

use crate::terminal::{table, wrapped};

/// The table of a suite, in 80 columns. Its titles are in the same columns in all tables.
pub(crate) fn of_suite(suite: Suite, rows: &[Row], reference: &Row) -> String {
    let mut lines = vec![
        wrapped(&format!("{}: {}", suite.name(), suite.about()), 80),
        format!("{:16} {:^32} {:>9}  {:>19}", "", "nanoseconds", "million", "times as long as"),
        cells(["allocator", "median", "99 % below", "99.9 % below", "a second", "millpond", "malloc"]),
    ];
    for (at, row) in rows.iter().enumerate() {
        if rows[..at].iter().any(|before| before.same_case(row)) {
            continue;
        }
        lines.push(case(row));
        let ours = rows.iter().find(|other| other.same_case(row) && other.is_ours());
        let case = rows.iter().filter(|other| other.same_case(row));
        lines.extend(case.map(|row| line(row, ours, reference)));
    }
    if rows.iter().any(|row| row.known_percentiles().contains(&None)) {
        lines.push("(-: too few samples to say; single calls took long)".to_owned());
    }
    lines.join("\n")
}

/// A line for each suite: what a pair takes, beside malloc and the fastest of the others.
pub(crate) fn summary(rows: &[Row], reference: &Row) -> String {
    let titles = ["suite", "", "ns", "times malloc", "fastest other"].map(str::to_owned);
    let mut lines = vec![titles.to_vec()];
    for suite in Suite::ALL {
        let of_suite: Vec<&Row> = rows.iter().filter(|row| row.suite == suite.name()).collect();
        lines.extend(summed_up(suite, &of_suite, reference));
    }
    let ours = rows.iter().any(Row::is_ours);
    let whose = if ours { "by millpond's pool" } else { "by the fastest allocator" };
    format!("Summary: a pair {whose}, median, and how many times as long others take\n{}", columns(&lines))
}

/// The case of a suite that stands for it: the last that most allocators have. Of `latency` that is a pair, not a call alone.
fn summed_up(suite: Suite, rows: &[&Row], reference: &Row) -> Option<Vec<String>> {
    let stands = |row: &&&Row| suite != Suite::Latency || (row.mode == "pair" && row.bytes == 1 << 20);
    let count = |row: &Row| rows.iter().filter(|other| other.same_case(row)).count();
    let of = rows.iter().filter(stands).max_by_key(|row| count(row))?;
    let case: Vec<&Row> = rows.iter().copied().filter(|row| row.same_case(of)).collect();
    let fastest = |rows: &mut dyn Iterator<Item = &Row>, than: &Row| {
        let known = rows.filter_map(|row| Some((times(row, than)?, row.allocator)));
        known.min_by(|one, other| one.0.total_cmp(&other.0))
    };
    let first = *case.first()?;
    let quickest = fastest(&mut case.iter().copied().filter(|row| row.allocator != MIMALLOC), first);
    let lead = case.iter().find(|row| row.is_ours()).or_else(|| {
        let (_, name) = quickest?;
        case.iter().find(|row| row.allocator == name)
    })?;
    let others = case.iter().copied().filter(|row| ![MIMALLOC, lead.allocator].contains(&row.allocator));
    let next = fastest(&mut others.into_iter(), lead);
    Some(vec![
        suite.name().to_owned(),
        self::case(lead),
        nanoseconds(lead.p50_ns),
        times_reference(lead, reference).map_or_else(|| "-".to_owned(), |times| format!("{times:.1}")),
        next.map_or_else(|| "-".to_owned(), |(times, name)| format!("{name} {times:.1}")),
    ])
}

/// The first two columns to the left, the others to the right.
fn columns(lines: &[Vec<String>]) -> String {
    let joined = |line: &Vec<String>, width: usize| {
        let mut line = line.clone();
        let case = line.remove(1);
        line[0] = format!("{:width$}  {case}", line[0]);
        line
    };
    let width = lines.iter().map(|line| line[0].chars().count()).max().unwrap_or_default();
    table(&lines.iter().map(|line| joined(line, width)).collect::<Vec<_>>())
}

fn case(row: &Row) -> String {
    let threads = if row.threads == 1 { String::new() } else { format!(", {} threads", row.threads) };
    let bytes = HumanBytes(row.bytes);
    format!("{}, {bytes}{threads}", row.work())
}

fn line(row: &Row, ours: Option<&Row>, reference: &Row) -> String {
    let [p99, p999] = row.known_percentiles().map(|ns| ns.map_or_else(|| "-".to_owned(), nanoseconds));
    let (median, rate) = (nanoseconds(row.p50_ns), millions(row.pairs_per_s));
    let [ours, reference] =
        [ours.and_then(|ours| times(row, ours)), times_reference(row, reference)].map(ratio);
    cells([&format!("  {}", row.allocator), &median, &p99, &p999, &rate, &ours, &reference])
}

fn cells([name, median, p99, p999, rate, ours, reference]: [&str; 7]) -> String {
    format!("{name:16} {median:>8} {p99:>10} {p999:>12} {rate:>9}  {ours:>9} {reference:>9}")
}

fn ratio(times: Option<f64>) -> String {
    times.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}"))
}

fn nanoseconds(ns: f64) -> String {
    if ns < 1000.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}
