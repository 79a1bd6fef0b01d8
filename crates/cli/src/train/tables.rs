//! What the allocators did in a training, for people.

use millpond::{DeviceCalls, HumanBytes, Stats};
use millpond_baselines::Usage;
use millpond_mlp::Epoch;

use super::outcome::{Outcome, Times};
use super::progress::duration;
use super::ranks::RankMemory;
use crate::terminal::{count, table, thousands, wrapped};

/// The account of the pool.
pub(crate) fn of_pool(stats: &Stats, pinned: Option<&Stats>, epochs: &[Epoch]) -> String {
    let requests = stats.allocations + stats.frees;
    let later: u64 = epochs.iter().skip(1).map(|epoch| epoch.device_calls).sum();
    let calls = stats.calls.memory();
    let mut rows = vec![
        row(
            "requested at most",
            HumanBytes(stats.requested.high).to_string(),
            "what training asked for, at its peak",
        ),
        row(
            "allocated at most",
            HumanBytes(stats.allocated.high).to_string(),
            "the same, as the pool rounds it up",
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
                "{:.3} % found memory ready, {} did not",
                percent(stats.hits, stats.allocations),
                thousands(stats.misses)
            ),
        ),
        row(
            "device calls",
            thousands(calls),
            &format!("{}; {} after the first epoch", by_kind(&stats.calls), thousands(later)),
        ),
        row("calls saved", thousands(requests.saturating_sub(calls)), "of one for each allocation and free"),
    ];
    let pressure = [
        (stats.retries, "retried requests"),
        (stats.pages_remapped, "remapped pages"),
        (stats.stream_waits, "waits between streams"),
        (stats.out_of_memory, "requests without memory"),
    ];
    rows.extend(
        pressure
            .into_iter()
            .filter(|(times, _)| *times > 0)
            .map(|(times, what)| row(what, thousands(times), "")),
    );
    rows.extend(of_pinned(pinned));
    format!("\nwhat the pool did:\n{}", figures(&rows))
}

/// The account of another allocator.
pub(crate) fn of_baseline(name: &str, usage: &Usage, pinned: Option<&Stats>) -> String {
    let mut rows = vec![
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
    rows.extend(of_pinned(pinned));
    format!("\nwhat {name} did:\n{}", figures(&rows))
}

/// The memory of each rank.
pub(crate) fn of_ranks(ranks: &[RankMemory]) -> String {
    let titles = ["rank", "device", "requested", "reserved"].map(str::to_owned).to_vec();
    let row = |rank: &RankMemory| {
        let place = format!("{} of {}", rank.device, rank.host);
        let [requested, reserved] =
            [rank.peak_requested, rank.peak_reserved].map(|bytes| HumanBytes(bytes).to_string());
        vec![format!("  {}", rank.rank), place, requested, reserved]
    };
    let rows: Vec<_> = std::iter::once(titles).chain(ranks.iter().map(row)).collect();
    format!("\nmemory of each rank, at most:\n{}", table(&rows))
}

/// What the batches on their way to the device took of the host, where there was pinned memory for them.
fn of_pinned(stats: Option<&Stats>) -> Option<[String; 3]> {
    let stats = stats.filter(|stats| stats.allocations > 0)?;
    let requested = HumanBytes(stats.requested.high);
    let meaning = format!("of the host, for batches; {requested} requested");
    Some(row("pinned memory", HumanBytes(stats.reserved.high).to_string(), &meaning))
}

/// Several allocators' trainings, which took turns: a table, and what may be read from it.
pub(crate) fn comparison(outcomes: &[Outcome]) -> String {
    let lines: Vec<_> = outcomes.iter().map(line).collect();
    let titles = format!(
        "{:14} {:>27}  {:>21} {:>11}\n{}",
        "",
        "time of an epoch",
        "device calls in",
        "reserved",
        cells(["allocator", "least", "median", "most", "epoch 1", "any later", "at most"])
    );
    format!("{titles}\n{}\n\n{}", lines.join("\n"), wrapped(&conclusion(outcomes), 80))
}

/// The row of an allocator.
fn line(outcome: &Outcome) -> String {
    let unknown = || "-".to_owned();
    let calls = |epoch: Option<&Epoch>| epoch.map_or_else(unknown, |epoch| thousands(epoch.device_calls));
    let later = outcome.epochs.iter().skip(1).max_by_key(|epoch| epoch.device_calls);
    let times = Times::of(&outcome.epochs);
    let [least, median, most] = match &times {
        Some(times) => [times.least, times.median, times.most].map(duration),
        None => [unknown(), unknown(), unknown()],
    };
    let reserved = HumanBytes(outcome.peak_reserved).to_string();
    cells([
        &outcome.allocator,
        &least,
        &median,
        &most,
        &calls(outcome.epochs.first()),
        &calls(later),
        &reserved,
    ])
}

/// In 80 columns.
fn cells([name, least, median, most, first, later, reserved]: [&str; 7]) -> String {
    format!("{name:14} {least:>8} {median:>9} {most:>8}  {first:>10} {later:>10} {reserved:>11}")
}

/// What follows from the table.
fn conclusion(outcomes: &[Outcome]) -> String {
    let losses = |outcome: &Outcome| -> Vec<_> {
        outcome.epochs.iter().map(|epoch| (epoch.train_loss.to_bits(), epoch.val_loss.to_bits())).collect()
    };
    // A run that was stopped has fewer epochs.
    let agree =
        |pair: &[Outcome]| losses(&pair[0]).iter().zip(losses(&pair[1])).all(|(one, other)| *one == other);
    let agreement = if outcomes.windows(2).all(agree) {
        "All trained alike: their losses are equal to the last bit."
    } else {
        "Their losses differ: not all of them computed the same."
    };
    let requested = outcomes.iter().map(|outcome| outcome.peak_requested).max().unwrap_or(0);
    let requested = HumanBytes(requested);
    format!("{agreement} Training asked for {requested} at most. {}", order_of(outcomes))
}

/// Which allocator is the fastest, and which differ from it by more than its own epochs do.
fn order_of(outcomes: &[Outcome]) -> String {
    let timed =
        outcomes.iter().filter_map(|outcome| Some((&*outcome.allocator, Times::of(&outcome.epochs)?)));
    let timed: Vec<_> = timed.collect();
    let Some((name, fastest)) = timed.iter().min_by(|one, other| one.1.median.total_cmp(&other.1.median))
    else {
        return String::new();
    };
    if fastest.epochs < 2 {
        return "One epoch does not tell which is the fastest: raise --epochs.".to_owned();
    }
    let slower =
        |(_, times): &&(&str, Times)| times.median - fastest.median > times.spread().max(fastest.spread());
    let by = |(name, times): &(&str, Times)| {
        format!("{name} (+{:.0} %)", (times.median / fastest.median - 1.0) * 100.0)
    };
    let slower: Vec<_> = timed.iter().filter(slower).map(by).collect();
    let alike = match timed.len() - 1 - slower.len() {
        0 => String::new(),
        others => format!(
            " {} differ{} from it by less than the epochs of one allocator do: there is no order among them.",
            count(others as u64, "other"),
            if others == 1 { "s" } else { "" },
        ),
    };
    let slower = if slower.is_empty() { String::new() } else { format!(" Slower: {}.", slower.join(", ")) };
    format!("The least median is that of {name}.{alike}{slower}")
}

fn row(name: &str, figure: String, meaning: &str) -> [String; 3] {
    [name.to_owned(), figure, meaning.to_owned()]
}

/// Names, figures and what they mean, in 80 columns.
fn figures(rows: &[[String; 3]]) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|[name, figure, _]| vec![format!("  {name}"), figure.clone()]).collect();
    let left = table(&cells);
    let indent = left.lines().next().map_or(0, |line| line.chars().count()) + 2;
    let lines = left.lines().zip(rows).map(|(line, [_, _, meaning])| {
        let meaning = wrapped(meaning, 80 - indent).replace('\n', &format!("\n{:indent$}", ""));
        format!("{line}  {meaning}").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
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

    fn outcome(allocator: &str, val_loss: f64) -> Outcome {
        let epoch = |epoch, device_calls| Epoch {
            epoch,
            train_loss: 0.5,
            val_loss,
            val_accuracy: 1.0,
            wall_ms: 123_456.0,
            device_calls,
        };
        let epochs = vec![epoch(1, 1_234_567), epoch(2, 12_345_678)];
        let (peak_reserved, peak_requested) = (1023 << 30, 1000 << 30);
        Outcome { epochs, peak_reserved, peak_requested, ..Outcome::new("host", allocator) }
    }

    #[test]
    fn pressure_is_told_only_where_there_was_some() {
        let mut stats = Stats::default();
        assert!(!of_pool(&stats, None, &[]).contains("retried"));
        (stats.retries, stats.pages_remapped) = (1, 1200);
        let account = of_pool(&stats, None, &[]);
        let lines: Vec<_> = account.lines().rev().take(2).collect();
        assert_eq!(lines, ["  remapped pages     1,200", "  retried requests       1"], "{account}");
    }

    #[test]
    fn large_figures_fit_80_columns() {
        let mut stats = Stats::default();
        (stats.allocations, stats.frees, stats.hits) = (1 << 40, 1 << 40, 1 << 39);
        stats.reserved.high = 1023 << 30;
        let calls = &mut stats.calls;
        (calls.create, calls.map, calls.unmap, calls.release) = (1_234_567, 1_234_567, 1_234_567, 1_234_567);
        let one = outcome("stream-ordered", 0.5);
        let text = of_pool(&stats, Some(&stats), &one.epochs) + "\n" + &comparison(&[one, outcome("x", 0.5)]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn allocators_that_trained_alike_are_said_to() {
        let alike = comparison(&[outcome("a", 0.5), outcome("b", 0.5)]);
        assert!(alike.contains("equal to the last bit"), "{alike}");
        let different = comparison(&[outcome("a", 0.5), outcome("b", 0.25)]);
        assert!(different.contains("losses differ"), "{different}");
    }

    #[test]
    fn an_order_is_told_only_beyond_the_spread() {
        let timed = |allocator: &str, times: &[f64]| {
            let mut of = outcome(allocator, 0.5);
            let epoch = of.epochs[0].clone();
            of.epochs = times.iter().map(|wall_ms| Epoch { wall_ms: *wall_ms, ..epoch.clone() }).collect();
            of
        };
        // The first epoch warms up.
        let fast = timed("fast", &[900.0, 100.0, 110.0, 104.0]);
        let told = order_of(&[
            timed("near", &[1.0, 108.0, 109.0, 110.0]),
            fast,
            timed("far", &[1.0, 208.0, 208.0, 208.0]),
        ]);
        let expected = "The least median is that of fast. 1 other differs from it by less than the epochs of one \
                        allocator do: there is no order among them. Slower: far (+100 %).";
        assert_eq!(told, expected);
        let told = order_of(&[timed("one", &[1.0, 100.0]), timed("other", &[1.0, 300.0])]);
        assert_eq!(told, "One epoch does not tell which is the fastest: raise --epochs.");
    }
}
