//! The tables of `millpond bench`: one a suite, allocators side by side, ratios beside the figures.

use millpond::HumanBytes;
use millpond_bench::{Row, Suite, times, times_mark};

use crate::screen::table;

/// The table of a suite.
pub(crate) fn of_suite(suite: Suite, rows: &[Row], mark: &Row) -> String {
    let titles =
        [suite.name(), "p50 ns", "p99", "p99.9", "mean", "min", "M/s", "x millpond", "x malloc 512 B"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for (at, row) in rows.iter().enumerate() {
        if rows[..at].iter().any(|before| before.same_case(row)) {
            continue;
        }
        lines.push(vec![case(row)]);
        let ours = rows.iter().find(|other| other.same_case(row) && other.is_ours());
        let case = rows.iter().filter(|other| other.same_case(row));
        lines.extend(case.map(|row| line(row, ours, mark)));
    }
    table(&lines)
}

fn case(row: &Row) -> String {
    let threads = if row.threads == 1 { String::new() } else { format!(", {} threads", row.threads) };
    let bytes = HumanBytes(row.bytes);
    format!("{}, {bytes}{threads}", row.mode)
}

fn line(row: &Row, ours: Option<&Row>, mark: &Row) -> Vec<String> {
    let figures = [row.p50_ns, row.p99_ns, row.p999_ns, row.mean_ns, row.min_ns].map(nanoseconds);
    let mut line = vec![format!("  {}", row.allocator)];
    line.extend(figures);
    line.push(format!("{:.2}", row.pairs_per_s / 1e6));
    line.push(ratio(ours.and_then(|ours| times(row, ours))));
    line.push(ratio(times_mark(row, mark)));
    line
}

fn ratio(times: Option<f64>) -> String {
    times.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}"))
}

fn nanoseconds(ns: f64) -> String {
    if ns < 1000.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}
