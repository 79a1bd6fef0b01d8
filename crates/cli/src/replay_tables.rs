//! What `millpond replay` tells people: tables of what each allocator did.

use millpond::HumanBytes;
use millpond_replay::fit::Card;
use millpond_replay::replay::{Outcome, Waste};
use millpond_replay::sites::Site;

use crate::screen::{table, thousands};

/// One trace with one allocator.
pub(crate) struct Row {
    pub(crate) outcome: Outcome,
    /// The smallest capacity in bytes that fits, where it was looked for and there is one.
    pub(crate) smallest: Option<u64>,
    /// Where memory is wasted at the peak, where that was looked for.
    pub(crate) waste: Option<Waste>,
}

/// What each allocator reserved and did.
pub(crate) fn account(rows: &[Row]) -> String {
    let titles = ["allocator", "reserved", "ratio", "device calls", "their time", "of wall", "events/s", ""];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for Row { outcome, .. } in rows {
        let share =
            outcome.device_share().map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", share * 100.0));
        let time = outcome.device_us.map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us / 1e3));
        let oom = outcome.oom.map(|oom| {
            format!(
                "out of memory at event {}, asking for {}",
                thousands(oom.event as u64),
                HumanBytes(oom.bytes)
            )
        });
        lines.push(vec![
            outcome.allocator.clone(),
            HumanBytes(outcome.peak_reserved).to_string(),
            format!("{:.3}", outcome.ratio),
            thousands(outcome.device_calls.total()),
            time,
            share,
            thousands((outcome.events as f64 / outcome.replay_s.max(1e-9)) as u64),
            oom.unwrap_or_default(),
        ]);
    }
    table(&lines)
}

/// The device's calls by kind, of those kinds that any allocator made.
pub(crate) fn calls(rows: &[Row]) -> String {
    let counts: Vec<_> = rows.iter().map(|row| row.outcome.device_calls.by_kind()).collect();
    let kinds: Vec<usize> = (0..9).filter(|&kind| counts.iter().any(|counts| counts[kind].1 > 0)).collect();
    let Some(first) = counts.first() else { return String::new() };
    let mut titles = vec!["allocator".to_owned()];
    titles.extend(kinds.iter().map(|&kind| first[kind].0.to_owned()));
    let mut lines = vec![titles];
    for (row, counts) in rows.iter().zip(&counts) {
        let mut line = vec![row.outcome.allocator.clone()];
        line.extend(kinds.iter().map(|&kind| thousands(counts[kind].1)));
        lines.push(line);
    }
    table(&lines)
}

/// Where the bytes are that nobody asked for.
pub(crate) fn wasted(rows: &[Row]) -> String {
    let titles = ["allocator", "wasted", "rounding", "holes", "caches", "other streams", "at event"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for Row { outcome, waste, .. } in rows {
        let Some(waste) = waste else { continue };
        let parts = [waste.rounding, waste.holes, waste.caches, waste.other_streams];
        let bytes = [parts.iter().sum()].into_iter().chain(parts).map(|bytes| HumanBytes(bytes).to_string());
        let mut line = vec![outcome.allocator.clone()];
        line.extend(bytes.chain([thousands(waste.event as u64)]));
        lines.push(line);
    }
    table(&lines)
}

/// Which cards would do, for each allocator.
pub(crate) fn which_cards(rows: &[Row], cards: &[Card], context: u64) -> String {
    let mut titles = vec!["allocator".to_owned(), "needs".to_owned()];
    titles.extend(cards.iter().map(|card| card.name.clone()));
    let mut lines = vec![titles];
    for Row { outcome, smallest, .. } in rows {
        let mut line = vec![outcome.allocator.clone()];
        line.push(smallest.map_or_else(|| "-".to_owned(), |bytes| HumanBytes(bytes).to_string()));
        let fits = |card: &Card| smallest.is_some_and(|bytes| card.fits(bytes, context));
        line.extend(cards.iter().map(|card| if fits(card) { "yes" } else { "no" }.to_owned()));
        lines.push(line);
    }
    format!(
        "{}\n({}{} of each are left to the driver's context and libraries: --context says how much)",
        table(&lines),
        if cards.iter().any(|card| card.name == card.gib.to_string()) { "cards in GiB; " } else { "" },
        HumanBytes(context)
    )
}

/// Call sites of what is live at the end.
pub(crate) fn kept(sites: &[Site]) -> String {
    let mut lines = vec![["bytes", "blocks", "call site"].map(str::to_owned).to_vec()];
    for Site { name, bytes, blocks } in sites.iter().take(MOST_KEPT) {
        lines.push(vec![HumanBytes(*bytes).to_string(), thousands(*blocks), name.clone()]);
    }
    table(&lines)
}

/// Call sites that are shown of what is live at the end.
const MOST_KEPT: usize = 8;

/// Who fits in the capacity asked for.
pub(crate) fn room(rows: &[Row], capacity: u64) -> String {
    let named = |fits: bool| {
        let names = rows.iter().filter(|row| row.outcome.oom.is_none() == fits);
        names.map(|row| row.outcome.allocator.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (fits, does_not) = (named(true), named(false));
    let who = match (fits.as_str(), does_not.as_str()) {
        ("", _) => format!("does not fit with {does_not}"),
        (_, "") => format!("fits with {fits}"),
        _ => format!("fits with {fits}; not with {does_not}"),
    };
    format!("in {}: {who}", HumanBytes(capacity))
}
