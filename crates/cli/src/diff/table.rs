//! The rows of a difference: who holds more, and who holds less.

use millpond::HumanBytes;
use millpond_replay::difference::{Became, Change, Difference, Side};

use crate::terminal::{count, say};
use crate::traces::{whole, wrapped};

/// Rows that are shown.
const MOST_ROWS: usize = 16;

/// Says what differs.
pub(crate) fn show(difference: &Difference) {
    let Difference { from, to, requested, not_requested, held, changes, tags } = difference;
    say(&wrapped(&format!("from  {}", side(from))));
    say(&wrapped(&format!("to    {}", side(to))));
    say(&format!("\n{}", line(["", "change", "before", "after"], "who")));
    if !tags.is_empty() {
        rows(tags);
        say("by call site");
    }
    rows(changes);
    let sum = |change: i64, before: u64, after: u64, who: &str| {
        say(&line(["", &signed(change), &human(before), &human(after)], who));
    };
    sum(*requested, from.requested, to.requested, "requested, in all");
    if let (Some(not_requested), Some(held), Some(before), Some(after)) =
        (not_requested, held, from.held, to.held)
    {
        let rest = |held: u64, requested: u64| held.saturating_sub(requested);
        sum(
            *not_requested,
            rest(before, from.requested),
            rest(after, to.requested),
            "cached, rounded up or pending",
        );
        sum(*held, before, after, "held, in all");
    }
    say("");
}

fn side(side: &Side) -> String {
    let Side { trace, moment, time_us, requested, blocks, held } = side;
    let held = held.map_or_else(String::new, |held| format!(", {} held", HumanBytes(held)));
    format!(
        "{trace} {moment} ({:.3} s): {} requested in {}{held}",
        *time_us as f64 / 1e6,
        HumanBytes(*requested),
        count(*blocks, "block")
    )
}

/// The largest changes, and the others as one.
fn rows(changes: &[Change]) {
    let (shown, others) = changes.split_at(changes.len().min(MOST_ROWS));
    for change in shown {
        let became = match change.became {
            Became::Came => "came",
            Became::Went => "went",
            Became::Grew => "grew",
            Became::Shrank => "shrank",
        };
        say(&line(
            [became, &signed(change.change), &human(change.before), &human(change.after)],
            &change.name(),
        ));
    }
    if !others.is_empty() {
        let sum = |of: fn(&Change) -> u64| human(others.iter().map(of).sum());
        let change = signed(others.iter().map(|other| other.change).sum());
        let (before, after) = (sum(|other| other.before), sum(|other| other.after));
        say(&line(["", &change, &before, &after], &format!("{} more", others.len())));
    }
    if changes.is_empty() {
        say("nothing changed");
    }
}

fn line([became, change, before, after]: [&str; 4], who: &str) -> String {
    whole(&format!("{became:<6} {change:>12} {before:>11} {after:>11}  "), who)
}

fn human(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

fn signed(bytes: i64) -> String {
    let sign = match bytes {
        ..0 => "-",
        0 => "",
        1.. => "+",
    };
    format!("{sign}{}", HumanBytes(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_its_sign() {
        assert_eq!([-2048, 0, 3 << 20].map(signed), ["-2.00 KiB", "0 B", "+3.00 MiB"]);
    }
}
