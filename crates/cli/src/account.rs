//! What an allocator did in a run, for people.

use millpond::{DeviceCalls, HumanBytes, Stats};
use millpond_baselines::Usage;
use millpond_mlp::Epoch;
use serde::Serialize;

use crate::screen::{count, table, thousands};

/// What one allocator gave, as `--json` has it.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    /// The device by the name that `--device` takes.
    pub(crate) device: String,
    /// The allocator's name.
    pub(crate) allocator: String,
    /// Epoch by epoch.
    pub(crate) epochs: Vec<Epoch>,
    /// Physical bytes held at most.
    pub(crate) peak_reserved: u64,
    /// Bytes in live blocks at most.
    pub(crate) peak_requested: u64,
}

/// The account of the pool.
pub(crate) fn of_pool(stats: &Stats, epochs: &[Epoch]) -> String {
    let requests = stats.allocations + stats.frees;
    let later: u64 = epochs.iter().skip(1).map(|epoch| epoch.device_calls).sum();
    let calls = stats.calls.memory();
    let rows = [
        row(
            "requested at most",
            HumanBytes(stats.requested.high).to_string(),
            "what training asked for, at its peak",
        ),
        row(
            "allocated at most",
            HumanBytes(stats.allocated.high).to_string(),
            "the same, rounded to the alignment",
        ),
        row(
            "reserved at most",
            HumanBytes(stats.reserved.high).to_string(),
            &format!(
                "held from the device; fragmentation {:.1} %",
                fragmentation(stats.requested.high, stats.reserved.high)
            ),
        ),
        row(
            "allocations",
            thousands(stats.allocations),
            &format!(
                "{} found memory ready ({:.3} %), {} had to map some",
                thousands(stats.hits),
                percent(stats.hits, stats.allocations),
                thousands(stats.misses)
            ),
        ),
        row(
            "device calls",
            thousands(calls),
            &format!("{}; {} after the first epoch", by_kind(&stats.calls), thousands(later)),
        ),
        row(
            "calls saved",
            thousands(requests.saturating_sub(calls)),
            &format!(
                "a driver allocation and free each time would have made {}, each free waiting for the device",
                thousands(requests)
            ),
        ),
        row(
            "under pressure",
            thousands(stats.retries),
            &format!(
                "{}; {} remapped, {} between streams, {} out of memory",
                if stats.retries == 1 { "retry" } else { "retries" },
                count(stats.pages_remapped, "page"),
                count(stats.stream_waits, "wait"),
                thousands(stats.out_of_memory)
            ),
        ),
    ];
    format!("what the pool did:\n{}", figures(&rows))
}

/// The account of another allocator.
pub(crate) fn of_baseline(usage: &Usage) -> String {
    let rows = [
        row(
            "requested at most",
            HumanBytes(usage.requested.high).to_string(),
            "what training asked for, at its peak",
        ),
        row(
            "reserved at most",
            HumanBytes(usage.reserved.high).to_string(),
            &format!(
                "held from the device; fragmentation {:.1} %",
                fragmentation(usage.requested.high, usage.reserved.high)
            ),
        ),
        row("device calls", thousands(usage.calls.memory()), &by_kind(&usage.calls)),
    ];
    format!("what it did:\n{}", figures(&rows))
}

/// The table that ends `--allocator all`.
pub(crate) fn comparison(outcomes: &[Outcome]) -> String {
    let header = [
        "allocator",
        "epoch time",
        "device calls, first epoch",
        "later epochs",
        "peak reserved",
        "peak requested",
    ];
    let rows = outcomes.iter().map(|outcome| {
        let later = outcome.epochs.get(1..).unwrap_or_default();
        vec![
            outcome.allocator.clone(),
            format!("{:.0} ms", usual_time(&outcome.epochs)),
            outcome.epochs.first().map_or_else(String::new, |first| thousands(first.device_calls)),
            most_calls(later),
            HumanBytes(outcome.peak_reserved).to_string(),
            HumanBytes(outcome.peak_requested).to_string(),
        ]
    });
    table(&std::iter::once(header.map(str::to_owned).to_vec()).chain(rows).collect::<Vec<_>>())
}

/// The median time of the epochs, in milliseconds: the first one, which warms up, and hiccups count little.
fn usual_time(epochs: &[Epoch]) -> f64 {
    let mut times: Vec<f64> = epochs.iter().map(|epoch| epoch.wall_ms).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Device calls of an epoch after the first, where there is one.
fn most_calls(later: &[Epoch]) -> String {
    later.iter().map(|epoch| epoch.device_calls).max().map_or_else(|| "–".to_owned(), thousands)
}

fn row(name: &str, figure: String, meaning: &str) -> [String; 3] {
    [name.to_owned(), figure, meaning.to_owned()]
}

fn figures(rows: &[[String; 3]]) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|[name, figure, _]| vec![format!("  {name}"), figure.clone()]).collect();
    let left = table(&cells);
    left.lines()
        .zip(rows)
        .map(|(line, [_, _, meaning])| format!("{line}  {meaning}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The kinds that moved memory, and how often.
fn by_kind(calls: &DeviceCalls) -> String {
    let kinds = [
        (calls.create, "create"),
        (calls.map, "map"),
        (calls.unmap, "unmap"),
        (calls.release, "release"),
        (calls.alloc, "allocate"),
        (calls.free, "free"),
    ];
    let shown = kinds.iter().filter(|(count, _)| *count > 0);
    shown.map(|(count, kind)| format!("{} {kind}", thousands(*count))).collect::<Vec<_>>().join(", ")
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 100.0 } else { part as f64 / whole as f64 * 100.0 }
}

/// 1 − requested/reserved, both at their peaks, in percent.
fn fragmentation(requested: u64, reserved: u64) -> f64 {
    (100.0 - percent(requested, reserved)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_and_one_wait_are_not_many() {
        let mut stats = Stats::default();
        (stats.retries, stats.pages_remapped, stats.stream_waits) = (1, 1, 1);
        let account = of_pool(&stats, &[]);
        assert!(
            account.ends_with("1  retry; 1 page remapped, 1 wait between streams, 0 out of memory"),
            "{account}"
        );
    }
}
