//! What only the simulated device has: time, accounts, failures, sameness. The rest is in
//! `tests/integration/conformance`.

use super::*;
use crate::device::{Advice, Device, DevicePtr, PeerSet, Place};
use crate::testing::trusted::Trusted;

const MIB: u64 = 1 << 20;

fn sim() -> Trusted<Arc<SimDevice>> {
    sim_with(SimOptions::default())
}

fn sim_with(options: SimOptions) -> Trusted<Arc<SimDevice>> {
    // SAFETY: the device checks handles and ranges, and has no bytes.
    unsafe { Trusted::new(SimDevice::new(options).unwrap()) }
}

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[test]
fn a_remap_costs_what_was_measured() {
    let sim = sim();
    let at = sim.reserve(4 * MIB).unwrap();
    let started = sim.now();
    let page = sim.create_page(2 * MIB).unwrap();
    sim.map(at, 2 * MIB, page).unwrap();
    sim.map(at.offset(2 * MIB), 2 * MIB, page).unwrap();
    sim.set_access(at, 4 * MIB).unwrap();
    // SAFETY: nothing uses the range.
    unsafe { sim.unmap(at, 2 * MIB) }.unwrap();
    // 10 to create, twice 0.8 to map, twice 24 for access, 16 to unmap.
    assert_eq!(sim.now() - started, Duration::from_nanos(10_000 + 2 * 800 + 2 * 24_000 + 16_000));
    assert_eq!(sim.calls()[Call::SetAccess], 1);
    assert_eq!(sim.calls()[Call::Map], 2);
    assert_eq!(sim.calls().memory_management(), 5);
    assert_eq!(sim.time_spent().by_call[Call::SetAccess], 48_000);
    assert_eq!(sim.time_spent().total(), sim.now());
}

#[test]
fn freeing_a_segment_waits_for_the_running_kernel() {
    let sim = sim();
    let stream = sim.create_stream().unwrap();
    let segment = sim.alloc_segment(MIB).unwrap();
    sim.launch(stream, Duration::from_millis(30)).unwrap();
    let started = sim.now();
    // SAFETY: nothing uses the segment.
    unsafe { sim.free_segment(segment) }.unwrap();
    assert_eq!(sim.now() - started, Duration::from_millis(30) + micros(40));
    assert_eq!(sim.time_spent().waited, 30_000_000);
}

#[test]
fn a_stream_takes_the_time_of_its_work_and_waits() {
    let sim = sim_with(SimOptions { costs: CostTable::free(), ..SimOptions::default() });
    let (first, second) = (sim.create_stream().unwrap(), sim.create_stream().unwrap());
    let event = sim.create_event().unwrap();
    sim.launch(first, micros(10)).unwrap();
    sim.record_event(event, first).unwrap();
    sim.launch(second, micros(3)).unwrap();
    sim.wait_event(second, event).unwrap();
    sim.launch(second, micros(5)).unwrap();
    sim.advance_to(micros(9));
    assert!(!sim.query_event(event).unwrap());
    sim.advance_to(micros(10));
    assert!(sim.query_event(event).unwrap());
    assert!(!sim.stream_is_idle(second).unwrap());
    sim.synchronize_stream(second).unwrap();
    assert_eq!(sim.now(), micros(15));
    sim.advance_to(micros(1));
    assert_eq!(sim.now(), micros(15), "time does not go back");
}

#[test]
fn work_behind_a_hold_starts_when_the_hold_is_released() {
    let sim = sim_with(SimOptions { costs: CostTable::free(), ..SimOptions::default() });
    let stream = sim.create_stream().unwrap();
    let hold = sim.hold(stream).unwrap();
    sim.launch(stream, micros(7)).unwrap();
    sim.advance_to(micros(100));
    assert!(!sim.stream_is_idle(stream).unwrap());
    assert!(matches!(sim.synchronize_stream(stream), Err(DeviceError::Invalid { .. })));
    assert!(matches!(sim.synchronize(), Err(DeviceError::Invalid { .. })));
    sim.release(hold);
    sim.synchronize_stream(stream).unwrap();
    assert_eq!(sim.now(), micros(107));
}

#[test]
fn sixty_four_holds_are_enough_and_come_back() {
    let sim = sim();
    let stream = sim.create_stream().unwrap();
    let holds: Vec<_> = (0..64).map(|_| sim.hold(stream).unwrap()).collect();
    assert!(sim.hold(stream).is_err());
    holds.into_iter().for_each(|hold| sim.release(hold));
    assert!(sim.stream_is_idle(stream).unwrap());
    let hold = sim.hold(stream).unwrap();
    assert!(!sim.stream_is_idle(stream).unwrap());
    sim.release(hold);
}

/// Makes one call of the kind, with arguments that are right, and says whether it failed as planned.
fn make(sim: &Trusted<Arc<SimDevice>>, call: Call) -> DeviceResult<()> {
    let g = 2 * MIB;
    let stream = sim.create_stream()?;
    let event = sim.create_event()?;
    let page = sim.create_page(g)?;
    let range = sim.reserve(2 * g)?;
    let spare = sim.reserve(g)?;
    let (segment, other) = (sim.alloc_segment(MIB)?, sim.alloc_segment(MIB)?);
    let block = sim.alloc_async(MIB, stream)?;
    let managed = sim.managed()?;
    let moving = managed.alloc_segment(MIB)?;
    managed.advise(moving, MIB, Advice::ReadMostly(true))?;
    managed.residency(moving, MIB)?;
    sim.map(range, g, page)?;
    sim.set_access(range, g)?;
    let exported = sim.export_page(page)?;
    sim.import_page(exported, g)?;
    let (_, exported) = sim.create_shared_event()?;
    sim.open_event(exported)?;
    sim.identity()?;
    let own = sim.peer_id().expect("it has a name");
    sim.can_be_reached_from(own)?;
    let mut byte = 0_u8;
    // SAFETY: each handle and range was made above and is destroyed once; nothing runs that uses them.
    unsafe {
        match call {
            Call::Unreserve => sim.unreserve(spare, g)?,
            Call::Unmap => sim.unmap(range, g)?,
            Call::ReleasePage => sim.release_page(page)?,
            Call::FreeSegment => sim.free_segment(segment)?,
            Call::FreeAsync => sim.free_async(block, stream)?,
            Call::DestroyStream => sim.destroy_stream(stream)?,
            Call::DestroyEvent => sim.destroy_event(event)?,
            Call::Memset => sim.memset(range, 0, 1, stream)?,
            Call::CopyFromHost => sim.copy_from_host(range, &raw const byte, 1, stream)?,
            Call::CopyToHost => sim.copy_to_host(&raw mut byte, range, 1, stream)?,
            Call::Copy => sim.copy(segment, other, 512, stream)?,
            Call::SetPeerAccess => sim.set_peer_access(range, g, PeerSet::ALL, true)?,
            Call::CopyFromPeer => sim.copy_from_peer(segment, other, 512, own, stream)?,
            Call::Prefetch => managed.prefetch(moving, MIB, Place::Device, stream)?,
            _ => {}
        }
    }
    sim.memory_info()?;
    sim.pinned(None)?;
    sim.async_usage()?;
    if call != Call::DestroyStream {
        sim.stream_id(stream)?;
        sim.stream_is_idle(stream)?;
        sim.synchronize_stream(stream)?;
    }
    if !matches!(call, Call::DestroyEvent | Call::DestroyStream) {
        sim.record_event(event, stream)?;
        sim.query_event(event)?;
        sim.wait_event(stream, event)?;
        sim.synchronize_event(event)?;
    }
    sim.synchronize()
}

#[test]
fn every_call_can_be_made_to_fail() {
    for call in Call::ALL {
        let sim = sim();
        let error = DeviceError::Unavailable(format!("no {} today", call.name()));
        sim.fail_next(call, 1, error.clone());
        assert_eq!(make(&sim, call), Err(error), "{call:?}");
        assert_eq!(make(&sim, call), Ok(()), "{call:?} fails once");
        sim.fail_randomly(call, 1.0);
        assert!(make(&sim, call).is_err(), "{call:?}");
        sim.fail_no_more();
        assert_eq!(make(&sim, call), Ok(()), "{call:?}");
        assert!(sim.calls()[call] > 3, "failed calls are counted");
    }
}

#[test]
fn the_nth_call_fails_and_changes_nothing() {
    let sim = sim();
    let out_of_memory = DeviceError::OutOfMemory { call: "create_page", requested: 2 * MIB };
    sim.fail_next(Call::CreatePage, 3, out_of_memory.clone());
    let made: Vec<_> = (0..5).map(|_| sim.create_page(2 * MIB)).collect();
    assert_eq!(made[2], Err(out_of_memory));
    assert_eq!(made.iter().filter(|page| page.is_ok()).count(), 4);
    let info = sim.memory_info().unwrap();
    assert_eq!(info.total - info.free, 8 * MIB);
}

#[test]
fn random_failures_keep_their_rate_and_repeat_with_the_seed() {
    let run = |seed| -> Vec<bool> {
        let sim = sim();
        sim.seed_failures(seed);
        sim.fail_randomly(Call::MemoryInfo, 0.25);
        (0..1000).map(|_| sim.memory_info().is_err()).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let failed = run(3).into_iter().filter(|&failed| failed).count();
    assert!((200..300).contains(&failed), "{failed} of 1000 at a chance of a quarter");
}

#[test]
fn the_same_calls_give_the_same_addresses_handles_and_times() {
    let run = || {
        let sim = sim();
        let stream = sim.create_stream().unwrap();
        let mut trace = Vec::new();
        for n in 1..50_u64 {
            let at = sim.alloc_async(n * n * 777, stream).unwrap();
            let segment = sim.alloc_segment(n * 3000).unwrap();
            sim.launch(stream, micros(n)).unwrap();
            // SAFETY: the work above does not use it.
            unsafe { sim.free_async(at, stream) }.unwrap();
            if n % 3 == 0 {
                // SAFETY: as above.
                unsafe { sim.free_segment(segment) }.unwrap();
            }
            let page = sim.create_page(2 * MIB).unwrap();
            trace.push((at, segment, page, sim.now(), sim.create_event().unwrap()));
        }
        trace
    };
    let first = run();
    assert_eq!(first, run());
    assert!(first.iter().all(|(at, ..)| *at > DevicePtr::new(1 << 30)), "no address is near 0");
}

#[test]
fn a_granularity_that_cannot_be_is_refused() {
    for granularity in [0, 256, 3 * MIB] {
        assert!(SimDevice::new(SimOptions { granularity, ..SimOptions::default() }).is_err());
    }
}

// ---- managed memory ----------------------------------------------------------------------------------

const PAGE: u64 = 2 * MIB;

/// A device with eight pages, its managed memory, and 16 pages of that.
fn managed() -> (Trusted<Arc<SimDevice>>, Arc<dyn Device>, DevicePtr, StreamHandle) {
    let mut costs = CostTable::free();
    costs.managed_fault = 1000;
    costs.managed_fault_bytes_per_us = PAGE / 10;
    costs.managed_prefetch_bytes_per_us = PAGE;
    let sim = sim_with(SimOptions::default().capacity(8 * PAGE).costs(costs));
    let managed = sim.managed().unwrap();
    let at = managed.alloc_segment(16 * PAGE).unwrap();
    let stream = sim.create_stream().unwrap();
    (sim, managed, at, stream)
}

#[test]
fn a_page_faults_once_and_moves_only_if_it_was_on_the_host() {
    let (sim, managed, at, stream) = managed();
    // SAFETY: the segment is the test's.
    unsafe { managed.memset(at, 0, 3 * PAGE - 1, stream) }.unwrap();
    sim.touch(at, PAGE, stream).unwrap();
    let first = sim.managed_stats();
    assert_eq!(
        (first.faults, first.bytes_to_device, first.bytes_to_host),
        (3, 0, 0),
        "nothing was there to move"
    );
    assert_eq!((first.resident, first.time), (3 * PAGE, micros(3)));
    // SAFETY: as above.
    unsafe { managed.prefetch(at, 2 * PAGE, Place::Host, stream) }.unwrap();
    sim.touch(at, 3 * PAGE, stream).unwrap();
    let second = sim.managed_stats();
    assert_eq!((second.faults, second.bytes_to_device, second.bytes_to_host), (5, 2 * PAGE, 2 * PAGE));
    assert_eq!((second.bytes_prefetched, second.resident), (2 * PAGE, 3 * PAGE));
    // Two pages by a prefetch, at one a microsecond; two faults, and their pages at a tenth of that.
    assert_eq!(second.time - first.time, micros(2 + 2 + 20));
    sim.synchronize_stream(stream).unwrap();
    assert_eq!(sim.now(), second.time, "the stream took that time");
}

#[test]
fn a_prefetch_spares_the_faults() {
    let (sim, managed, at, stream) = managed();
    for to in [Place::Host, Place::Device, Place::Device] {
        // SAFETY: the segment is the test's.
        unsafe { managed.prefetch(at, 4 * PAGE, to, stream) }.unwrap();
    }
    sim.touch(at, 4 * PAGE, stream).unwrap();
    let stats = sim.managed_stats();
    assert_eq!((stats.faults, stats.bytes_to_host, stats.resident), (0, 0, 4 * PAGE));
    assert_eq!((stats.bytes_to_device, stats.bytes_prefetched), (4 * PAGE, 4 * PAGE), "it moved once");
}

#[test]
fn a_full_device_gives_up_what_was_used_longest_ago() {
    let (sim, managed, at, stream) = managed();
    let page = |number| at.offset(number * PAGE);
    sim.touch(at, 8 * PAGE, stream).unwrap();
    sim.touch(page(0), PAGE, stream).unwrap();
    sim.touch(page(8), 2 * PAGE, stream).unwrap();
    let full = sim.managed_stats();
    assert_eq!((full.faults, full.bytes_to_host, full.resident), (10, 2 * PAGE, 8 * PAGE));
    for (number, faults) in [(0, 0), (3, 0), (1, 1)] {
        let before = sim.managed_stats().faults;
        sim.touch(page(number), 1, stream).unwrap();
        assert_eq!(sim.managed_stats().faults - before, faults, "page {number}");
    }
    // What the device has of its own is not for managed memory.
    _ = sim.alloc_segment(6 * PAGE).unwrap();
    sim.touch(page(12), PAGE, stream).unwrap();
    assert_eq!((sim.managed_stats().resident, full.resident_high), (2 * PAGE, 8 * PAGE));
    // SAFETY: nothing uses it.
    unsafe { managed.free_segment(at) }.unwrap();
    assert_eq!(sim.managed_stats().resident, 0);
}

#[test]
fn a_refused_touch_moves_nothing() {
    let (sim, managed, at, stream) = managed();
    sim.touch(at, 17 * PAGE, stream).unwrap_err();
    // SAFETY: the handle is used again, and refused.
    unsafe { sim.destroy_stream(stream) }.unwrap();
    sim.touch(at, PAGE, stream).unwrap_err();
    // SAFETY: refused.
    unsafe { managed.prefetch(at, PAGE, Place::Device, stream) }.unwrap_err();
    assert_eq!(sim.managed_stats(), ManagedStats::default());
}

#[test]
fn plain_memory_moves_where_the_device_reaches_it() {
    let memory = vec![0_u8; 1 << 20];
    for access in [true, false] {
        let sim = SimDevice::new(SimOptions::default().pageable_access(access)).unwrap();
        let context = crate::Context::new(sim.clone());
        let stream = context.create_stream().unwrap();
        // SAFETY: the memory lives until the end.
        let moved = unsafe { context.prefetch_slice(&memory, Place::Device, &stream) };
        assert_eq!(
            (moved.is_ok(), context.advise_slice(&memory, Advice::ReadMostly(true)).is_ok()),
            (access, access)
        );
        let (calls, idle) = (sim.calls(), stream.is_idle().unwrap());
        assert_eq!((calls[Call::Prefetch], idle), (u64::from(access), !access));
    }
}
