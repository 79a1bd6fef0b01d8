//! The tables of `millpond bench`: one a suite, allocators side by side, ratios beside the figures.

use millpond::HumanBytes;
use millpond_baselines::NAMES;
use millpond_bench::{Row, Suite};

use crate::screen::table;

/// The table of a suite.
pub(crate) fn of_suite(suite: Suite, rows: &[Row], mark: &Row) -> String {
    let titles =
        [suite.name(), "p50 ns", "p99", "p99.9", "mean", "min", "M/s", "x millpond", "x malloc 512 B"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for (at, row) in rows.iter().enumerate() {
        if rows[..at].iter().any(|before| same_case(before, row)) {
            continue;
        }
        lines.push(vec![case(row)]);
        let ours = rows.iter().find(|other| same_case(other, row) && other.allocator == NAMES[0]);
        let case = rows.iter().filter(|other| same_case(other, row));
        lines.extend(case.map(|row| line(row, ours, mark)));
    }
    table(&lines)
}

fn same_case(one: &Row, other: &Row) -> bool {
    (&one.mode, one.bytes, one.threads) == (&other.mode, other.bytes, other.threads)
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
    line.push(ours.map_or_else(|| "-".to_owned(), |ours| times(row, ours)));
    line.push(times(row, mark));
    line
}

/// How many times as long `row` takes; with several threads, by what they do together.
fn times(row: &Row, other: &Row) -> String {
    let ratio = if row.threads > 1 && other.threads > 1 {
        other.pairs_per_s / row.pairs_per_s
    } else {
        row.p50_ns / other.p50_ns
    };
    if ratio.is_finite() { format!("{ratio:.2}") } else { "-".to_owned() }
}

fn nanoseconds(ns: f64) -> String {
    if ns < 1000.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}
