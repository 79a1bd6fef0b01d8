//! What a pool says at its end of what is live.

use std::fmt::Write;

use super::live::{LiveBlock, holders};
use crate::figures::stats::HumanBytes;

/// Call stacks that are listed.
const MOST: usize = 20;

/// The report of a pool that ends with these live blocks.
pub(super) fn report(pool: &str, live: &[LiveBlock], is_sampled: bool) -> String {
    let holders = holders(live);
    if holders.is_empty() {
        return format!("millpond: nothing tracked is live at the end of pool '{pool}'");
    }
    let (mut bytes, mut blocks) = (0, 0);
    for holder in &holders {
        (bytes, blocks) = (bytes + holder.bytes, blocks + holder.blocks);
    }
    let about = if is_sampled { "about " } else { "" };
    let s = if blocks == 1 { "" } else { "s" };
    let mut text = format!(
        "millpond: live at the end of pool '{pool}': {about}{} in {blocks} block{s}",
        HumanBytes(bytes)
    );
    for holder in holders.iter().take(MOST) {
        let holder = holder.to_string().replace('\n', "\n  ");
        write!(text, "\n  {holder}").expect("a text takes what is written");
    }
    if let Some(rest) = holders.get(MOST..).filter(|rest| !rest.is_empty()) {
        let bytes = HumanBytes(rest.iter().map(|holder| holder.bytes).sum());
        write!(text, "\n  and {bytes} by {} more call stacks", rest.len())
            .expect("a text takes what is written");
    }
    text
}
