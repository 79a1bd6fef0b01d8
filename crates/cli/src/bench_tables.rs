//! The tables of `millpond bench`: one a suite, allocators side by side, ratios beside the figures.

use millpond::HumanBytes;
use millpond_bench::{Row, Suite, times, times_reference};

use crate::screen::wrapped;

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
    lines.join("\n")
}

fn case(row: &Row) -> String {
    let threads = if row.threads == 1 { String::new() } else { format!(", {} threads", row.threads) };
    let bytes = HumanBytes(row.bytes);
    format!("{}, {bytes}{threads}", row.work())
}

fn line(row: &Row, ours: Option<&Row>, reference: &Row) -> String {
    let [median, p99, p999] = [row.p50_ns, row.p99_ns, row.p999_ns].map(nanoseconds);
    let rate = format!("{:.2}", row.pairs_per_s / 1e6);
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
