//! Tables of what each allocator did, at most 80 columns wide.

use millpond::HumanBytes;
use millpond_replay::deciding::Deciding;
use millpond_replay::evictions::MovedTag;
use millpond_replay::fit::Card;
use millpond_replay::growth::Growth;
use millpond_replay::holes::Beside;
use millpond_replay::out_of_memory::OutOfMemory;
use millpond_replay::possible::Possible;

use super::compute::AllocatorRow;
use crate::terminal::{WIDTH, columns, count, table, thousands};
use crate::traces::{MOST_HELD, cut, grew_by, wrapped};

/// The row of the best plan, and of the bound where there is no plan.
const POSSIBLE: &str = "(possible)";
const AT_LEAST: &str = "(at least)";

/// What each allocator needs, held and did, and what a perfect one would have held.
pub(crate) fn summary(rows: &[AllocatorRow], possible: Option<Possible>) -> String {
    let is_known = rows.iter().any(|row| row.need.is_some());
    let has_times = rows.iter().any(|row| row.outcome.device_share().is_some());
    let mut titles = vec!["allocator"];
    titles.extend(is_known.then_some(["needs", "retries"]).into_iter().flatten());
    titles.extend(["reserved", "ratio", "device calls", if has_times { "of time" } else { "time" }]);
    let mut lines = vec![titles.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for AllocatorRow { outcome, need, .. } in rows {
        let mut line = vec![outcome.allocator.clone()];
        if is_known {
            line.push(need.map_or_else(unknown, |need| need.said()));
            line.push(need.map_or_else(unknown, |need| thousands(need.retries)));
        }
        let share = outcome.device_share().map(|share| format!("{:.2} %", share * 100.0));
        let time = outcome.device_us.map(|us| format!("{:.1} ms", us / 1e3));
        line.extend([
            HumanBytes(outcome.peak_reserved).to_string(),
            format!("{:.3}", outcome.ratio),
            thousands(outcome.device_calls.total()),
            if has_times { share } else { time }.unwrap_or_else(unknown),
        ]);
        lines.push(line);
    }
    if let Some(possible) = possible {
        let held = HumanBytes(possible.reserved).to_string();
        let mut line = vec![if possible.planned.is_some() { POSSIBLE } else { AT_LEAST }.to_owned()];
        line.extend(is_known.then(|| [unknown(), unknown()]).into_iter().flatten());
        line.extend([held, format!("{:.3}", possible.ratio), unknown(), unknown()]);
        lines.push(line);
    }
    let mut text = fitted(&lines);
    if let Some(possible) = possible.filter(|possible| !possible.is_least()) {
        let bound = HumanBytes(possible.bound);
        text += "\n";
        text += &wrapped(&match possible.planned {
            Some(_) => format!("({POSSIBLE}: the best plan found; no allocator holds less than {bound})"),
            None => {
                format!("({AT_LEAST}: the recording is too large to be planned; no allocator holds less)")
            }
        });
    }
    for AllocatorRow { outcome, .. } in rows {
        if let Some(oom) = outcome.oom {
            let (event, bytes) = (thousands(oom.event as u64), HumanBytes(oom.bytes));
            text += &format!("\n{}: out of memory at event {event}, asking for {bytes}", outcome.allocator);
        }
    }
    text
}

fn unknown() -> String {
    "-".to_owned()
}

/// The device's calls by kind, of those kinds that any allocator made.
pub(crate) fn calls(rows: &[AllocatorRow]) -> String {
    let counts: Vec<_> = rows.iter().map(|row| row.outcome.device_calls.by_kind()).collect();
    let Some(first) = counts.first() else { return String::new() };
    let kinds: Vec<usize> =
        (0..first.len()).filter(|&kind| counts.iter().any(|counts| counts[kind].1 > 0)).collect();
    let mut titles = vec!["allocator".to_owned()];
    titles.extend(kinds.iter().map(|&kind| first[kind].0.to_owned()));
    let mut lines = vec![titles];
    for (row, counts) in rows.iter().zip(&counts) {
        let mut line = vec![row.outcome.allocator.clone()];
        line.extend(kinds.iter().map(|&kind| thousands(counts[kind].1)));
        lines.push(line);
    }
    fitted(&lines)
}

/// Where the bytes are that nobody asked for.
pub(crate) fn wasted(rows: &[AllocatorRow]) -> String {
    let titles = ["allocator", "at event", "rounding", "holes", "caches", "other streams"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for AllocatorRow { outcome, deciding, .. } in rows {
        let Some(Deciding { waste, is_most, .. }) = deciding else { continue };
        let parts = [waste.rounding, waste.holes, waste.caches, waste.other_streams];
        let name = &outcome.allocator;
        let name = if *is_most { format!("({name})") } else { name.clone() };
        let mut line = vec![name, thousands(waste.event as u64)];
        line.extend(parts.map(|bytes| HumanBytes(bytes).to_string()));
        lines.push(line);
    }
    let is_any_most = rows.iter().filter_map(|row| row.deciding.as_ref()).any(|deciding| deciding.is_most);
    match is_any_most {
        true => format!("{}\n{}", fitted(&lines), wrapped(NOT_DECIDED)),
        false => fitted(&lines),
    }
}

/// What is said of a row in parentheses.
const NOT_DECIDED: &str =
    "(in parentheses: when it holds the most without a limit, since what it needs was not looked for)";

/// What left of each tag, and came back.
pub(crate) fn evicted(tags: &[MovedTag]) -> String {
    let titles = ["tag", "left", "bytes", "came back", "bytes", "away"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for MovedTag { tag, left, bytes_left, came_back, bytes_back, away_us, .. } in tags {
        lines.push(vec![
            tag.clone(),
            count(*left, "time"),
            HumanBytes(*bytes_left).to_string(),
            count(*came_back, "time"),
            HumanBytes(*bytes_back).to_string(),
            format!("{:.1} s", *away_us as f64 / 1e6),
        ]);
    }
    fitted(&lines)
}

/// What moves between the host and the card, for each allocator of managed memory.
pub(crate) fn moved(rows: &[AllocatorRow]) -> String {
    let titles = ["allocator", "page faults", "to the card", "to the host", "kernels wait"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for AllocatorRow { outcome, moves, .. } in rows {
        let Some(moves) = moves else { continue };
        let [to_card, to_host] =
            [moves.bytes_to_card, moves.bytes_to_host].map(|bytes| HumanBytes(bytes).to_string());
        let waits = format!("{:.1} ms", moves.waited_us / 1000.0);
        lines.push(vec![outcome.allocator.clone(), thousands(moves.page_faults), to_card, to_host, waits]);
    }
    let note =
        "(a kernel uses each block once, when it is allocated; a job that uses blocks again moves more)";
    format!("{}\n{}", fitted(&lines), wrapped(note))
}

/// Which cards would do, for each allocator. Where the recording does not have all of the job, none is promised.
pub(crate) fn which_cards(rows: &[&AllocatorRow], cards: &[Card], context: u64, is_whole: bool) -> String {
    let sizes = cards.iter().any(Card::is_a_size);
    let note = format!(
        "({}{} of each are left to the driver's context and libraries; --context sets that)",
        if sizes { "cards by the GiB that they are sold with; " } else { "" },
        HumanBytes(context)
    );
    let mut titles = vec!["allocator".to_owned()];
    titles.extend(cards.iter().map(|card| card.name.clone()));
    let mut lines = vec![titles];
    for &AllocatorRow { outcome, need, .. } in rows {
        let mut line = vec![outcome.allocator.clone()];
        let fits = |card: &Card| need.is_some_and(|need| card.fits(need.most(), context));
        let told = |fits| match fits {
            true if !is_whole => "?",
            true => "yes",
            false => "no",
        };
        line.extend(cards.iter().map(|card| told(fits(card)).to_owned()));
        lines.push(line);
    }
    format!("{}\n{}", fitted(&lines), wrapped(&note))
}

/// A table; where it is wider than a terminal, several with the same first column.
fn fitted(lines: &[Vec<String>]) -> String {
    let wide = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        2 + cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut width = WIDTH + 1;
    for column in 1..lines.first().map_or(0, Vec::len) {
        width += wide(column);
        if width > WIDTH {
            width = wide(0) - 2 + wide(column);
            parts.push(vec![0]);
        }
        parts.last_mut().into_iter().for_each(|part| part.push(column));
    }
    let part = |columns: &Vec<usize>| {
        let line =
            |line: &Vec<String>| columns.iter().filter_map(|&column| line.get(column).cloned()).collect();
        table(&lines.iter().map(line).collect::<Vec<_>>())
    };
    parts.iter().map(part).collect::<Vec<_>>().join("\n\n")
}

/// Whose blocks kept free memory from being used when a request found none.
pub(crate) fn kept(found: &OutOfMemory) -> String {
    let beside = &found.holes.beside;
    let all: u64 = found.holes.by_size.values().sum();
    if beside.is_empty() {
        return String::new();
    }
    let mut text = "Whose blocks kept it from being used\n   free beside    holes  who".to_owned();
    let shown = &beside[..beside.len().min(MOST_HELD)];
    for Beside { site, bytes, holes } in shown {
        let share = format!("{:.0} %", *bytes as f64 * 100.0 / all.max(1) as f64);
        let holes = thousands(*holes);
        let line = format!("\n{:>11} {share:>5} {holes:>5}  ", HumanBytes(*bytes).to_string());
        let room = columns().saturating_add(1) - line.chars().count();
        text += &(line + &cut(site, room));
    }
    if shown.len() < beside.len() {
        text += &format!("\nand {} more", count((beside.len() - shown.len()) as u64, "call site"));
    }
    text
}

/// What grew from step to step: the first few.
pub(crate) fn grew(growth: &Growth) -> String {
    if growth.grown.is_empty() {
        return "Grew from step to step: nothing".to_owned();
    }
    let shown = &growth.grown[..growth.grown.len().min(MOST_GROWN)];
    let mut text = format!("Grew from step to step\n{}", grew_by(growth, shown));
    if growth.grew > shown.len() {
        text += &format!("\nand {} more: millpond leaks lists them", growth.grew - shown.len());
    }
    text
}

/// What grew, as much as is shown.
const MOST_GROWN: usize = 5;

/// Who fits in the capacity asked for.
pub(crate) fn room(rows: &[AllocatorRow], capacity: u64, context: u64) -> String {
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
    let context = match context {
        0 => String::new(),
        bytes => format!(", {} of it for the context", HumanBytes(bytes)),
    };
    format!("in {}{context}: {who}", HumanBytes(capacity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_is_several_with_the_same_names() {
        let line =
            |name: &str| [name].into_iter().chain(["x".repeat(30).as_str(); 4]).map(str::to_owned).collect();
        let text = fitted(&[line("one"), line("two")]);
        let parts: Vec<_> = text.split("\n\n").collect();
        assert_eq!(parts.len(), 2);
        assert!(parts.iter().all(|part| part.lines().count() == 2 && part.starts_with("one  x")), "{text}");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
    }
}
