//! What libraries are told that register memory by its pages.

use std::collections::BTreeMap;
use std::sync::Mutex;

use millpond::bindings::{Mapping, backed, watch_mappings};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Keep, Pool};

use crate::processes::alone;

static MAPPED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn tell(Mapping { at, bytes, is_mapped, .. }: Mapping<'_>) {
    let mut mapped = MAPPED.lock().unwrap();
    if is_mapped {
        assert_eq!(mapped.insert(at.raw(), bytes), None, "nothing was mapped there");
    } else {
        assert_eq!(mapped.remove(&at.raw()), Some(bytes), "just this was mapped there");
    }
}

fn holds_all_that_is_backed(pool: &Pool) -> bool {
    let mapped = MAPPED.lock().unwrap();
    let is_mapped =
        |at: u64| mapped.range(..=at).next_back().is_some_and(|(start, bytes)| at < start + bytes);
    backed(pool)
        .iter()
        .all(|range| (range.start.raw()..range.start.raw() + range.bytes).step_by(2 << 20).all(is_mapped))
}

#[test]
fn a_watcher_knows_at_any_time_what_is_mapped() {
    // A watcher is told of all pools of the process.
    alone("a_watcher_knows_at_any_time_what_is_mapped", || watch().unwrap());
}

fn watch() -> millpond::Result<()> {
    assert!(watch_mappings(tell));
    assert!(!watch_mappings(tell), "there can be one");
    let device = Context::new(SimDevice::new(SimOptions::default().capacity(256 << 20))?);
    let pool = Pool::builder(&device).page_sizes(2 << 20, 2 << 20).build()?;
    let stream = device.create_stream()?;
    let mut blocks = Vec::new();
    for step in 1..1000_u64 {
        blocks.push(pool.alloc(step * 7919 % 9_000_000 + 1, &stream)?);
        if step % 3 != 0 {
            let block = blocks.swap_remove((step * 31) as usize % blocks.len());
            // SAFETY: it is live, and nothing uses it.
            unsafe { pool.free(block, &stream) }?;
        }
        if blocks.len() > 20 {
            // SAFETY: likewise.
            blocks.drain(..10).try_for_each(|block| unsafe { pool.free(block, &stream) })?;
        }
        assert!(holds_all_that_is_backed(&pool), "step {step}");
        // Twice only what moved in the last miss: at most nine pages.
        let (told, held) = (MAPPED.lock().unwrap().values().sum::<u64>(), pool.stats().reserved.current);
        assert!(told <= held + 9 * (2 << 20), "step {step}: {told} of {held} bytes");
    }
    assert!(pool.stats().pages_remapped > 20, "{:?}", pool.stats());
    pool.sleep(Keep::Nothing)?;
    assert!(MAPPED.lock().unwrap().is_empty());
    pool.wake()?;
    assert!(holds_all_that_is_backed(&pool));
    // SAFETY: as above.
    blocks.drain(..).try_for_each(|block| unsafe { pool.free(block, &stream) })?;
    device.synchronize()?;
    pool.trim_to(0)?;
    assert!(MAPPED.lock().unwrap().is_empty());
    Ok(())
}
