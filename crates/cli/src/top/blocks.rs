//! What the live blocks of a pool are, as lines of text.

use std::cmp::Reverse;
use std::time::Duration;

use millpond::HumanBytes;
use millpond::live::{SeenHolder, SeenPool, SeenProcess, SeenSizes, SizeRow};

use crate::live::{PATIENCE, Sight};

/// How long each pool's answer is waited for where nobody sits at a terminal. The first that has call stacks reads the program's
/// debug information.
pub(super) const PATIENCE_FOR_ALL: Duration = PATIENCE.saturating_mul(8);

/// What the process says of a pool's live blocks; an error's sentence where it does not.
pub(super) fn ask(process: &SeenProcess, pool: &SeenPool, patience: Duration) -> Result<SeenSizes, String> {
    process.sizes(pool.number, patience).map_err(|error| error.to_string())
}

/// A line for each size, that of which most is live first.
pub(super) fn by_size(sizes: &SeenSizes) -> Vec<String> {
    let mut largest: Vec<_> = sizes.rows.iter().collect();
    largest.sort_by_key(|row| Reverse(row.bytes));
    let line = |row: &SizeRow| {
        let [bytes, from] = [row.bytes, row.from].map(|bytes| HumanBytes(bytes).to_string());
        format!("{bytes:>12}  in {} of {from} or more", row.blocks)
    };
    largest.into_iter().map(line).collect()
}

/// Lines for each tag and call stack, those that hold most first.
pub(super) fn by_holder(sizes: &SeenSizes) -> Vec<String> {
    let lines = |holder: &SeenHolder| {
        let tag = if holder.tag.is_empty() { "(no tag)" } else { &holder.tag };
        let (bytes, age) = (HumanBytes(holder.bytes).to_string(), holder.oldest.as_secs_f64());
        let head = format!("{bytes:>12}  in {}, for {age:.1} s: {tag}", holder.blocks);
        std::iter::once(head)
            .chain(holder.stack.iter().map(|line| format!("{:14}{line}", "")))
            .collect::<Vec<_>>()
    };
    sizes.holders.iter().flat_map(lines).collect()
}

/// All pools' blocks.
pub(super) fn text(sight: &Sight) -> String {
    let pools =
        sight.processes.iter().flat_map(|process| process.pools.iter().map(move |pool| (process, pool)));
    let part = |(process, pool): (&SeenProcess, &SeenPool)| {
        let mut lines = vec![format!("live blocks of {} of {} {}", pool.name, process.pid, process.program)];
        match ask(process, pool, PATIENCE_FOR_ALL) {
            Ok(sizes) => lines.extend([by_holder(&sizes), by_size(&sizes)].concat()),
            Err(why) => lines.push(format!("  {why}")),
        }
        lines.join("\n")
    };
    pools.map(part).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_which_nothing_is_known_says_why() {
        // Nobody answers for it.
        let mut process = SeenProcess::default();
        process.pools.push(SeenPool::default());
        let sight = Sight::of(vec![process], Err("none".to_owned()));
        assert!(text(&sight).ends_with("\n  the process is gone"), "{}", text(&sight));
    }
}
