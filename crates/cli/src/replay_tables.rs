//! What `millpond replay` tells people: tables of what each allocator did, at most 80 columns wide.

use millpond::HumanBytes;
use millpond_replay::deciding::Deciding;
use millpond_replay::fit::{Card, Need};
use millpond_replay::growth::{Grown, Growth};
use millpond_replay::holes::{Beside, Holes};
use millpond_replay::out_of_memory::OutOfMemory;
use millpond_replay::possible::Possible;
use millpond_replay::replay::{Moves, Outcome};
use millpond_replay::sites::{Live, WAITING};
use millpond_replay::steps::StepBy;

use crate::screen::{self, columns, count, table, thousands};

/// Columns of a terminal.
pub(crate) const WIDTH: usize = 80;

/// The row of the best plan, and of the bound where there is no plan.
const POSSIBLE: &str = "(possible)";
const AT_LEAST: &str = "(at least)";

/// One trace with one allocator.
pub(crate) struct Row {
    pub(crate) outcome: Outcome,
    /// Where it was looked for, and the trace ran to its end.
    pub(crate) need: Option<Need>,
    /// What is held when what is needed is decided, where that was looked for.
    pub(crate) deciding: Option<Deciding>,
    /// The holes then.
    pub(crate) holes: Holes,
    /// In managed memory of the simulated device.
    pub(crate) moves: Option<Moves>,
}

impl Row {
    /// Of which nothing else is known.
    pub(crate) fn of(outcome: Outcome) -> Self {
        Self { outcome, need: None, deciding: None, holes: Holes::default(), moves: None }
    }
}

/// What each allocator needs, held and did, and what a perfect one would have held.
pub(crate) fn account(rows: &[Row], possible: Option<Possible>) -> String {
    let is_known = rows.iter().any(|row| row.need.is_some());
    let has_times = rows.iter().any(|row| row.outcome.device_share().is_some());
    let mut titles = vec!["allocator"];
    titles.extend(is_known.then_some(["needs", "retries"]).into_iter().flatten());
    titles.extend(["reserved", "ratio", "device calls", if has_times { "of time" } else { "time" }]);
    let mut lines = vec![titles.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for Row { outcome, need, .. } in rows {
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
    for Row { outcome, .. } in rows {
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
pub(crate) fn calls(rows: &[Row]) -> String {
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
pub(crate) fn wasted(rows: &[Row]) -> String {
    let titles = ["allocator", "at event", "rounding", "holes", "caches", "other streams"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for Row { outcome, deciding, .. } in rows {
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

/// What moves between the host and the card, for each allocator of managed memory.
pub(crate) fn moved(rows: &[Row]) -> String {
    let titles = ["allocator", "page faults", "to the card", "to the host", "kernels wait"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for Row { outcome, moves, .. } in rows {
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
pub(crate) fn which_cards(rows: &[&Row], cards: &[Card], context: u64, is_whole: bool) -> String {
    let sizes = cards.iter().any(Card::is_a_size);
    let note = format!(
        "({}{} of each are left to the driver's context and libraries; --context sets that)",
        if sizes { "cards by the GiB that they are sold with; " } else { "" },
        HumanBytes(context)
    );
    let mut titles = vec!["allocator".to_owned()];
    titles.extend(cards.iter().map(|card| card.name.clone()));
    let mut lines = vec![titles];
    for &Row { outcome, need, .. } in rows {
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

/// Who holds what is live at a moment: by tag, by call site, and by size.
pub(crate) fn held(when: &str, live: &Live) -> String {
    if live.blocks == 0 {
        return format!("{when}: nothing");
    }
    let mut text = format!("{when}: {} in {}", HumanBytes(live.bytes), count(live.blocks, "block"));
    if live.refused > 0 {
        text += &format!(", of which {} were refused", HumanBytes(live.refused));
    }
    let line = |bytes: u64, blocks: Option<u64>, name: &str| {
        let share = format!("{:.0} %", bytes as f64 * 100.0 / live.bytes.max(1) as f64);
        let blocks = blocks.map_or_else(String::new, thousands);
        let line = format!("\n{:>11} {share:>5} {blocks:>8}  ", HumanBytes(bytes).to_string());
        let room = columns().saturating_add(1) - line.chars().count();
        line + &cut(name, room)
    };
    for tag in live.tags.iter().take(MOST_TAGS) {
        text += &line(tag.bytes, Some(tag.blocks), tag.tag.as_deref().unwrap_or("(no tag)"));
    }
    if !live.tags.is_empty() {
        text += "\nby call site";
    }
    if live.sites.is_empty() {
        text += "\n(no tags or call stacks were recorded to say whose; by size of block)";
        let mut sizes: Vec<_> = live.by_size.iter().map(|(&from, &bytes)| (bytes, from)).collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        if live.waiting > 0 {
            text += &line(live.waiting, Some(live.waiting_blocks), WAITING);
        }
        for (bytes, from) in sizes.into_iter().take(MOST_HELD) {
            text += &line(bytes, None, &of_sizes(from));
        }
        return text;
    }
    let shown = &live.sites[..live.sites.len().min(MOST_HELD)];
    shown.iter().for_each(|site| text += &line(site.bytes, Some(site.blocks), &site.name()));
    let named: u64 = shown.iter().map(|site| site.blocks).sum();
    if named < live.blocks {
        text += &format!("\nand {} of other call sites", count(live.blocks - named, "block"));
    }
    text
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

/// A line for each that grew.
pub(crate) fn grew_by(growth: &Growth, grown: &[Grown]) -> String {
    let each = if growth.step_by == StepBy::Part { "a part" } else { "a step" };
    let mut text = format!("{each:>11} {:>6} {:>11} {:>11}  who", "R²", "from", "to");
    for grown in grown {
        let (from, to) = grown.from_to();
        let each = format!("+{}", HumanBytes(grown.bytes_a_step.round() as u64));
        let [from, to] = [from, to].map(|bytes| HumanBytes(bytes).to_string());
        text += "\n";
        text += &whole(&format!("{each:>11} {:>6.3} {from:>11} {to:>11}  ", grown.r2), &grown.name());
    }
    text
}

/// Blocks of sizes from this power of two on.
fn of_sizes(from: u64) -> String {
    format!("blocks of {} to {}", HumanBytes(from), HumanBytes(from.saturating_mul(2)))
}

/// Tags, call sites and what grew, as many as are shown.
const MOST_TAGS: usize = 6;
const MOST_HELD: usize = 8;
const MOST_GROWN: usize = 5;

/// A name without its end where it is too long: what stands first says most. Of a call site whose function has a long name the
/// file and line stay.
pub(crate) fn cut(name: &str, room: usize) -> String {
    let short = |text: &str, room: usize| {
        let is_long = text.chars().count() > room;
        if is_long {
            format!("{}…", text.chars().take(room.saturating_sub(1)).collect::<String>())
        } else {
            text.to_owned()
        }
    };
    let innermost = name.split(" < ").next().unwrap_or(name);
    match innermost.rsplit_once(" (") {
        Some((function, place)) if innermost.chars().count() > room && place.chars().count() + 8 < room => {
            let place = format!(" ({place}");
            short(function, room - place.chars().count()) + &place
        }
        _ => short(name, room),
    }
}

/// Columns before what goes on in the next line.
const CONTINUED: usize = 6;

/// A row with all of its name, which goes on in lines of its own where the terminal ends.
pub(crate) fn whole(row: &str, name: &str) -> String {
    let mut lines = row.to_owned();
    let (mut column, mut is_first) = (row.chars().count(), true);
    for word in name.split(' ') {
        let word = cut(word, columns() - CONTINUED);
        let length = word.chars().count();
        let space = usize::from(!is_first);
        if column + space + length > WIDTH {
            lines.truncate(lines.trim_end().len());
            lines += &format!("\n{}", " ".repeat(CONTINUED));
            column = CONTINUED;
        } else {
            lines += &" ".repeat(space);
            column += space;
        }
        lines += &word;
        (column, is_first) = (column + length, false);
    }
    lines
}

/// Who fits in the capacity asked for.
pub(crate) fn room(rows: &[Row], capacity: u64, context: u64) -> String {
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

/// A paragraph in lines of [`WIDTH`].
pub(crate) fn wrapped(paragraph: &str) -> String {
    screen::wrapped(paragraph, WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_loses_its_end() {
        assert_eq!(cut("convert (t3.py:67)", 10), "convert (…");
        assert_eq!(cut("short", 10), "short");
        assert_eq!(
            cut("step/cache: a_long_name (t3.py:67) < main (t3.py:1)", 24),
            "step/cache: … (t3.py:67)"
        );
        assert_eq!(cut("step: a_long_name (t3.py:67) < main (t3.py:1)", 24), "step: a_long… (t3.py:67)");
    }

    #[test]
    fn a_row_has_all_of_its_name_in_lines_that_fit() {
        let row = format!("{:>11}  ", "+1.00 MiB");
        assert_eq!(whole(&row, "train (a.py:1)"), format!("{row}train (a.py:1)"));
        let name = (1..9).map(|at| format!("function_{at} (file.py:{at})")).collect::<Vec<_>>().join(" < ");
        let told = whole(&row, &name);
        assert!(told.lines().count() > 2 && told.lines().all(|line| line.chars().count() <= WIDTH), "{told}");
        let words: Vec<_> = told.split_whitespace().skip(2).collect();
        assert_eq!(words.join(" "), name);
    }

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
