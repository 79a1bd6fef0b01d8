//! Tags that are evicted and restored on a GPU. `evict.rs` has more of the same, without a GPU.
//!
//! `cargo test -p millpond --test integration cuda_evict:: -- --ignored --test-threads=1 --nocapture`.

use std::time::{Duration, Instant};

use millpond::Buffer;

use crate::cuda_sleep::Rig;
use crate::shared::{Freeing, MIB};
use crate::sleep::Model;

#[test]
#[ignore = "needs a CUDA GPU"]
fn bytes_come_back_to_their_addresses_while_others_use_the_memory() {
    let Rig { context, pool, stream } = Rig::new();
    let tag = pool.tagged("optimizer").unwrap();
    let mut model = Model::new();
    model.fill(&tag, &stream);
    (0..3).for_each(|_| model.add(&tag, 90 * MIB, &stream));
    for cycle in 0..100_u64 {
        let (addresses, held) = (model.addresses(), tag.reserved().current);
        assert_eq!(tag.evict(&stream), Ok(held));
        // Without a wait: the GPU writes over the pages behind the copies.
        let other = (!cycle.is_multiple_of(4))
            .then(|| Buffer::<u8>::zeroed(&pool, held as usize - (16 << 20), &stream).unwrap());
        if cycle.is_multiple_of(2) {
            drop(other);
            tag.restore_ahead().unwrap();
        }
        tag.restore(&stream).unwrap();
        assert_eq!(model.addresses(), addresses);
        model.assert_intact();
        [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
    }
    drop((model, context));
}

fn fastest(mut timed: impl FnMut() -> Duration) -> Duration {
    (0..5).map(|_| timed()).min().unwrap()
}

/// What evictions, restores and both at once take, beside plain pinned copies in the same run.
#[test]
#[ignore = "needs a CUDA GPU"]
fn evictions_and_restores_are_timed_against_plain_copies() {
    const BYTES: u64 = 4 << 30;
    let Rig { context, pool, stream } = Rig::new();
    let gigabytes = |took: Duration| BYTES as f64 / took.as_secs_f64() / 1e9;
    let timed = |call: &mut dyn FnMut()| {
        context.synchronize().unwrap();
        let start = Instant::now();
        call();
        let called = start.elapsed();
        // Without the pool, which would remove old mappings now.
        context.device().synchronize().unwrap();
        let took = start.elapsed();
        context.synchronize().unwrap();
        (called, took, start.elapsed() - took)
    };
    let plain = {
        let staging = context.pinned().unwrap().build().unwrap();
        let mut pinned = Buffer::<u8>::new(&staging, BYTES as usize, &stream).unwrap();
        let mut on_gpu = Buffer::<u8>::zeroed(&pool, BYTES as usize, &stream).unwrap();
        let out = fastest(|| timed(&mut || on_gpu.copy_to_pinned(&mut pinned).unwrap()).1);
        let back = fastest(|| timed(&mut || on_gpu.copy_from_pinned(&pinned).unwrap()).1);
        let other = context.create_stream().unwrap();
        let from = Buffer::<u8>::new(&staging, BYTES as usize, &other).unwrap();
        let mut there = Buffer::<u8>::zeroed(&pool, BYTES as usize, &other).unwrap();
        let both = fastest(|| {
            let copies = || {
                on_gpu.copy_to_pinned(&mut pinned).unwrap();
                there.copy_from_pinned(&from).unwrap();
            };
            timed(&mut { copies }).1
        });
        [out, back, both]
    };
    pool.trim_to(0).unwrap();
    println!(
        "plain copies: to the host {:.1} GB/s, from it {:.1} GB/s, both at once {:.1} GB/s each way",
        gigabytes(plain[0]),
        gigabytes(plain[1]),
        gigabytes(plain[2])
    );
    for each in [512 * MIB, 64 * MIB, 9 * MIB, 2 * MIB] {
        let tags = ["one", "two"].map(|name| pool.tagged(&format!("{name} of {each}")).unwrap());
        let blocks = tags.each_ref().map(|tag| {
            let blocks = (0..BYTES / each).map(|_| tag.alloc(each, &stream).unwrap());
            blocks.collect::<Vec<_>>()
        });
        let use_memory = || drop(Buffer::<u8>::zeroed(&pool, BYTES as usize, &stream).unwrap());
        tags.iter().for_each(|tag| _ = tag.evict(&stream).unwrap());
        context.synchronize().unwrap();
        tags[0].restore(&stream).unwrap();
        let (mut least, mut most_called, mut most_after) =
            ([Duration::MAX; 4], [Duration::ZERO; 4], [Duration::ZERO; 4]);
        for _ in 0..5 {
            let out = timed(&mut || _ = tags[0].evict(&stream).unwrap());
            use_memory();
            let back = timed(&mut || tags[0].restore(&stream).unwrap());
            use_memory();
            let both = timed(&mut || {
                tags[0].evict(&stream).unwrap();
                tags[1].restore(&stream).unwrap();
            });
            use_memory();
            // Beside copies to the host, the driver takes a millisecond to map a page. Here none run yet.
            let ahead = timed(&mut || {
                tags[0].restore_ahead().unwrap();
                tags[1].evict(&stream).unwrap();
                tags[0].restore(&stream).unwrap();
            });
            for (at, (called, took, after)) in [out, back, both, ahead].into_iter().enumerate() {
                least[at] = least[at].min(took);
                most_called[at] = most_called[at].max(called);
                most_after[at] = most_after[at].max(after);
            }
        }
        let share = |at: usize| 100.0 * plain[at.min(2)].as_secs_f64() / least[at].as_secs_f64();
        println!(
            "blocks of {each}: evict {:.1} GB/s ({:.0} % of a plain copy; the call {:.1?}), restore {:.1} GB/s ({:.0} %; {:.1?}), \
             both at once {:.1} GB/s each way ({:.0} %; {:.1?}), restored ahead {:.1} GB/s ({:.0} %; {:.1?}); old mappings go in \
             {most_after:.1?}",
            gigabytes(least[0]),
            share(0),
            most_called[0],
            gigabytes(least[1]),
            share(1),
            most_called[1],
            gigabytes(least[2]),
            share(2),
            most_called[2],
            gigabytes(least[3]),
            share(3),
            most_called[3]
        );
        for (tag, blocks) in tags.iter().zip(blocks) {
            tag.restore(&stream).unwrap();
            blocks.into_iter().for_each(|block| tag.free_block(block, &stream).unwrap());
            tag.trim_to(0).unwrap();
            tag.trim_staging().unwrap();
        }
        pool.trim_to(0).unwrap();
    }
}
