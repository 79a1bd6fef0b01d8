//! Tables about recordings: who holds memory, and what grew, at most 80 columns wide.

use millpond::HumanBytes;
use millpond_replay::growth::{Grown, Growth};
use millpond_replay::sites::{Live, WAITING};
use millpond_replay::steps::StepBy;

use crate::terminal::{self, WIDTH, columns, count, thousands};

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

/// Tags and call sites, as many as are shown.
const MOST_TAGS: usize = 6;
pub(crate) const MOST_HELD: usize = 8;

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

/// A paragraph in lines of [`WIDTH`].
pub(crate) fn wrapped(paragraph: &str) -> String {
    terminal::wrapped(paragraph, WIDTH)
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
}
