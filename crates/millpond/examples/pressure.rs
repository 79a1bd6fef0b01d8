//! What happens when memory runs out: the program's own cache is asked to give way, and the error explains.

use std::sync::{Arc, Mutex};

use millpond::{Budget, Buffer, Context, Error, Pool, Result};

const MIB: usize = 1 << 20;

fn main() -> Result<()> {
    let device = Context::host()?;
    let budget = Budget::bytes(64 << 20);
    let pool = Pool::builder(&device).name("model").budget(&budget).build()?;
    let stream = device.create_stream()?;

    // A cache that may be emptied at any time. The pool asks it last, after everything that it can do itself.
    let cache = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..4 {
        let entry = Buffer::<u8>::new(&pool, 12 * MIB, &stream)?;
        cache.lock().expect("no thread panicked with the cache").push(entry);
    }
    let callback = pool.on_reclaim({
        let cache = Arc::downgrade(&cache);
        move |wanted| {
            println!("asked for {wanted} bytes: emptying the cache");
            let Some(cache) = cache.upgrade() else { return false };
            let Ok(mut cache) = cache.lock() else { return false };
            let gave = !cache.is_empty();
            cache.clear();
            gave
        }
    });
    let weights = Buffer::<u8>::new(&pool, 40 * MIB, &stream)?;
    println!("{} bytes allocated after {} retries", weights.byte_len(), pool.stats().retries);

    // Nothing is left to give: the error says where the memory is and what would help.
    match Buffer::<u8>::new(&pool, 40 * MIB, &stream) {
        Err(error @ Error::OutOfMemory(_)) => println!("{error}"),
        Err(other) => return Err(other),
        Ok(_) => unreachable!("the budget has no 80 MiB"),
    }
    pool.remove_reclaim(callback);
    Ok(())
}
