//! What a pool takes of the host's memory: little at rest, little for each block, and a trim gives it back.

use millpond::Pool;
use millpond::device::sim::SimOptions;

use crate::processes::alone;
use crate::shared::{Freeing, KIB, MIB, sim_with};

/// Bytes of the host's memory that the process has now, without files.
fn resident() -> u64 {
    // What the C library keeps for later is not the pool's.
    #[cfg(target_env = "gnu")]
    // SAFETY: it only gives back what is free.
    unsafe {
        libc::malloc_trim(0)
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line =
        status.lines().find(|line| line.starts_with("RssAnon:")).expect("a line of Linux 4.5 and later");
    line.split_whitespace().nth(1).expect("a figure").parse::<u64>().unwrap() * KIB
}

#[test]
fn a_pool_takes_little_host_memory_and_trims_it() {
    alone("a_pool_takes_little_host_memory_and_trims_it", || {
        // Else glibc soon takes long lists from a thread's heap, of whose end `malloc_trim` gives nothing back.
        #[cfg(target_env = "gnu")]
        // SAFETY: it only says which lists are mapped on their own.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10)
        };
        let (_, context, stream) = sim_with(SimOptions::default());
        let before = resident();
        let pools: Vec<_> = (0..16).map(|_| Pool::builder(&context).build().unwrap()).collect();
        let a_pool = (resident() - before) / 16;
        assert!(a_pool <= 64 * KIB, "a pool at rest takes {a_pool} bytes");

        // Blocks, their length, and per cent of it. Each takes 192 bytes, and 64 to 128 to be found by its address. Each page takes
        // about as much. The simulated device's own notes are in it, and lists that grow by doubling.
        let bounds = [
            (1_000, 16 << 20, 0.012),
            (16_000, 512 * KIB, 0.09),
            (60_000, 64 * KIB, 0.65),
            (60_000, 8 * KIB, 5.0),
        ];
        for ((count, bytes, most), pool) in bounds.into_iter().zip(&pools) {
            let before = resident();
            let mut blocks = Vec::with_capacity(count);
            blocks.extend((0..count).map(|_| pool.alloc(bytes, &stream).unwrap()));
            let held = resident() - before;
            let per_cent = held as f64 * 100.0 / pool.reserved().current as f64;
            assert!(per_cent < most, "{per_cent} % of the device's memory in blocks of {} KiB", bytes / KIB);

            blocks.drain(..).for_each(|ptr| pool.free_block(ptr, &stream).unwrap());
            pool.trim_to(0).unwrap();
            assert_eq!(pool.reserved().current, 0);
            let left = resident().saturating_sub(before);
            assert!(left < (held / 4).max(6 * MIB), "{left} of {held} bytes are left after a trim");
            // What was given back is used again.
            let again: Vec<_> = (0..100).map(|_| pool.alloc(bytes, &stream).unwrap()).collect();
            again.into_iter().for_each(|ptr| pool.free_block(ptr, &stream).unwrap());
            pool.check().unwrap();
        }
    });
}

/// A process has 65,530 mappings at most (`vm.max_map_count`), for all pools and all else.
#[test]
fn many_pools_have_at_most_a_mapping_each() {
    // Where the system promises no more memory than it has, a pool has several: what is not written yet is mapped apart.
    let rule = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    if rule.trim() == "2" {
        return;
    }
    alone("many_pools_have_at_most_a_mapping_each", || {
        let (_, context, stream) = sim_with(SimOptions::default());
        let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let with_block = |_| {
            let pool = Pool::builder(&context).live(false).build().unwrap();
            _ = pool.alloc(4 * KIB, &stream).unwrap();
            pool
        };
        let _first = with_block(0);
        let before = mappings();
        let pools: Vec<_> = (0..1000).map(with_block).collect();
        // The C library's heap grows meanwhile, by a few.
        let more = mappings() - before;
        assert!(more <= pools.len() + 20, "{more} mappings of {} pools", pools.len());
    });
}
