//! How a thread ends: everything is given back, on a device that works.

use std::time::Duration;

use crate::finding::{Finding, Verdict};
use crate::leaving::{evict, restore, wake};
use crate::pools::drop_graph;
use crate::setup::SLOTS;
use crate::thread::{Presence, ProgramThread};

/// Tries of a pool to come back while other processes have the memory.
const TRIES: usize = 200;

/// Gives everything back, on a device that works.
pub(crate) fn finish(mut thread: ProgramThread<'_>) -> Verdict {
    thread.refuse = 0;
    while !thread.graphs.is_empty() {
        if !drop_graph(&mut thread, 0)? {
            return Err(Finding::wrong("a stream could not be synchronised at the end"));
        }
    }
    // What came back early leaves again: another may need the memory.
    for tag in 0..SLOTS {
        if thread.presence[tag] == Presence::Evicted {
            evict(&mut thread, tag, 0)?;
        }
    }
    // Together they may hold more than there is. So what is here goes before another comes back.
    for pool in 0..SLOTS {
        if thread.presence[pool] == Presence::Evicted && ends_evicted(&thread, pool) {
            continue;
        }
        if thread.presence[pool] != Presence::Here {
            free_what_is_here(&mut thread)?;
            bring_back(&mut thread, pool)?;
        }
    }
    thread.free_all()
}

/// Whether a tag is left evicted, as in half of the programs: unless it holds a page that could not leave, which was mapped twice.
fn ends_evicted(thread: &ProgramThread<'_>, tag: usize) -> bool {
    let holds_nothing = thread.stage.pools[tag].read().pool.reserved().current == 0;
    holds_nothing && thread.stage.setup.seed.is_multiple_of(2)
}

/// Frees the blocks whose memory is here, and gives it back.
fn free_what_is_here(thread: &mut ProgramThread<'_>) -> Verdict {
    let blocks = std::mem::take(&mut thread.blocks);
    let (away, here) = blocks.into_iter().partition(|block| block.is_away);
    thread.blocks = here;
    thread.free_all()?;
    thread.blocks = away;
    thread.synchronize_device()?;
    for slot in &thread.stage.pools {
        thread.stage.allow("a trim", slot.read().pool.trim_to(0))?;
    }
    Ok(())
}

fn bring_back(thread: &mut ProgramThread<'_>, pool: usize) -> Verdict {
    // What other processes hold of a budget they give back when they are asked, or killed.
    let tries = if thread.stage.setup.has_named_budget() { TRIES } else { 1 };
    for tried in 0..tries {
        if tried > 0 {
            std::thread::sleep(Duration::from_millis(100));
        }
        match thread.presence[pool] {
            Presence::Here => return Ok(()),
            Presence::Asleep => wake(thread, pool)?,
            Presence::Evicted => restore(thread, pool, 0)?,
        };
    }
    if thread.presence[pool] == Presence::Here {
        return Ok(());
    }
    Err(Finding::wrong(format!("pool {pool} did not come back at the end")))
}
