//! Addresses, pages and mappings.

use std::collections::HashSet;

use millpond::device::{DeviceError, DevicePtr, StreamHandle};

use super::harness::*;

const WORD: u64 = 4096;

pub(crate) fn a_reserved_range_is_aligned_and_can_be_given_back(h: &dyn Harness) {
    if !has_pages(h) {
        return;
    }
    let bytes = 64 * granularity(h);
    for _ in 0..3 {
        let at = h.device().reserve(bytes).unwrap();
        assert!(!at.is_null());
        assert!(at.raw().is_multiple_of(granularity(h)), "{at}");
        unreserve(h, at, bytes);
    }
}

pub(crate) fn reserved_ranges_do_not_overlap(h: &dyn Harness) {
    if !has_pages(h) {
        return;
    }
    let bytes = 8 * granularity(h);
    let mut ranges: Vec<_> = (0..16).map(|_| h.device().reserve(bytes).unwrap()).collect();
    ranges.sort();
    for pair in ranges.windows(2) {
        assert!(pair[0].offset(bytes) <= pair[1], "{} and {}", pair[0], pair[1]);
    }
    for at in ranges {
        unreserve(h, at, bytes);
    }
}

pub(crate) fn a_page_mapped_twice_shows_the_same_bytes(h: &dyn Harness) {
    if !has_pages(h) {
        return;
    }
    let g = granularity(h);
    let at = h.device().reserve(2 * g).unwrap();
    let page = map_new_page(h, at, g);
    map_page(h, at.offset(g), g, page);
    let stream = h.device().create_stream().unwrap();
    fill(h, at, 1, g, stream);
    fill(h, at.offset(g + WORD), 2, WORD, stream);
    expect_bytes(h, at.offset(g), &[1; 64], stream);
    expect_bytes(h, at.offset(WORD), &[2; 64], stream);
    expect_bytes(h, at.offset(2 * WORD), &[1; 64], stream);
    release_page(h, page);
    for slot in 0..2 {
        unmap(h, at.offset(slot * g), g);
    }
    unreserve(h, at, 2 * g);
}

pub(crate) fn a_page_can_be_remapped_under_pending_work(h: &dyn Harness) {
    if !has_pages(h) {
        return;
    }
    let g = granularity(h);
    let (old, new) = (h.device().reserve(g).unwrap(), h.device().reserve(g).unwrap());
    let page = map_new_page(h, old, g);
    let stream = h.device().create_stream().unwrap();
    let hold = h.hold(stream);
    fill(h, old, 1, g, stream);
    map_page(h, new, g, page);
    fill(h, new, 2, WORD, stream);
    assert!(!h.device().stream_is_idle(stream).unwrap());
    hold();
    h.device().synchronize_stream(stream).unwrap();
    unmap(h, old, g);
    expect_bytes(h, new, &[2; WORD as usize], stream);
    expect_bytes(h, new.offset(WORD), &[1; WORD as usize], stream);
    unmap(h, new, g);
    release_page(h, page);
}

/// Each round the pages lie in another order at new addresses, mapped while the stream still has the last
/// round's work to do. What they hold is logged in stream order and read at the end.
pub(crate) fn pages_permuted_in_stream_order_lose_no_byte(h: &dyn Harness) {
    const PAGES: u64 = 5;
    const ROUNDS: u64 = 12;
    if !has_pages(h) {
        return;
    }
    let g = granularity(h);
    let range = h.device().reserve(PAGES * ROUNDS * g).unwrap();
    let slot = |round: u64, index: u64| range.offset((round * PAGES + index) * g);
    let log = h.device().alloc_segment(PAGES * ROUNDS * WORD).unwrap();
    let stream = h.device().create_stream().unwrap();
    let pages: Vec<_> = (0..PAGES).map(|_| h.device().create_page(g).unwrap()).collect();
    for round in 0..ROUNDS {
        let hold = h.hold(stream);
        for index in 0..PAGES {
            let number = (index * 3 + round) % PAGES;
            let at = slot(round, index);
            map_page(h, at, g, pages[number as usize]);
            if round > 0 {
                copy(h, log.offset((round * PAGES + number) * WORD), at, WORD, stream);
            }
            fill(h, at, (round * PAGES + number) as u8, WORD, stream);
        }
        hold();
    }
    for round in 1..ROUNDS {
        for number in 0..PAGES {
            let written_before = ((round - 1) * PAGES + number) as u8;
            let at = log.offset((round * PAGES + number) * WORD);
            expect_bytes(h, at, &[written_before; WORD as usize], stream);
        }
    }
    for round in 0..ROUNDS {
        (0..PAGES).for_each(|index| unmap(h, slot(round, index), g));
    }
    pages.into_iter().for_each(|page| release_page(h, page));
}

pub(crate) fn a_released_page_stays_until_its_last_mapping_goes(h: &dyn Harness) {
    if !has_pages(h) || !h.counts_alone() {
        return;
    }
    let bytes = 8 * granularity(h);
    let at = h.device().reserve(2 * bytes).unwrap();
    let before = free_bytes(h);
    let page = map_new_page(h, at, bytes);
    map_page(h, at.offset(bytes), bytes, page);
    fill(h, at, 7, bytes, StreamHandle::LEGACY);
    release_page(h, page);
    unmap(h, at, bytes);
    assert!(before - free_bytes(h) >= bytes, "one mapping is left");
    expect_bytes(h, at.offset(2 * bytes - 64), &[7; 64], StreamHandle::LEGACY);
    unmap(h, at.offset(bytes), bytes);
    assert_returned(h, before, free_bytes(h));
}

pub(crate) fn pages_of_several_sizes_lie_side_by_side(h: &dyn Harness) {
    if !has_pages(h) {
        return;
    }
    let g = granularity(h);
    let sizes = [g, 4 * g, 2 * g];
    let at = h.device().reserve(16 * g).unwrap();
    let mut next = at;
    let mut pages = Vec::new();
    for bytes in sizes {
        let page = h.device().create_page(bytes).unwrap();
        h.device().map(next, bytes, page).unwrap();
        pages.push((next, bytes, page));
        next = next.offset(bytes);
    }
    h.device().set_access(at, 7 * g).unwrap();
    let stream = h.device().create_stream().unwrap();
    fill(h, at, 9, 7 * g, stream);
    expect_bytes(h, at.offset(g - 32), &[9; 64], stream);
    expect_bytes(h, at.offset(5 * g - 32), &[9; 64], stream);
    for (at, bytes, page) in pages {
        unmap(h, at, bytes);
        release_page(h, page);
    }
    unreserve(h, at, 16 * g);
}

pub(crate) fn a_range_can_be_mapped_again_after_an_unmap(h: &dyn Harness) {
    if !has_pages(h) {
        return;
    }
    let g = granularity(h);
    let at = h.device().reserve(g).unwrap();
    let stream = h.device().create_stream().unwrap();
    let (first, second) = (h.device().create_page(g).unwrap(), h.device().create_page(g).unwrap());
    for (round, page) in [first, second].into_iter().enumerate() {
        map_page(h, at, g, page);
        fill(h, at, round as u8, g, stream);
        unmap(h, at, g);
    }
    map_page(h, at, g, first);
    expect_bytes(h, at, &[0; 64], stream);
    unmap(h, at, g);
    release_page(h, first);
    release_page(h, second);
}

pub(crate) fn pages_and_free_memory_add_up(h: &dyn Harness) {
    if !has_pages(h) || !h.counts_alone() {
        return;
    }
    let g = granularity(h);
    let before = free_bytes(h);
    let pages: Vec<_> = (1..=4).map(|n| h.device().create_page(n * g).unwrap()).collect();
    assert_eq!(pages.iter().collect::<HashSet<_>>().len(), 4, "handles are distinct");
    let taken = before - free_bytes(h);
    assert!(taken >= 10 * g && (!h.is_exact() || taken == 10 * g), "{taken}");
    pages.into_iter().for_each(|page| release_page(h, page));
    assert_returned(h, before, free_bytes(h));
}

pub(crate) fn running_out_of_memory_changes_nothing(h: &dyn Harness) {
    if !has_pages(h) {
        return;
    }
    let g = granularity(h);
    let before = free_bytes(h);
    let too_much = h.device().properties().total_memory.next_multiple_of(g) + g;
    let error = h.device().create_page(too_much).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { requested, .. } if requested == too_much), "{error}");
    assert_returned(h, before, free_bytes(h));
    if h.is_exact() {
        let all = h.device().create_page(before).unwrap();
        assert!(matches!(h.device().create_page(g), Err(DeviceError::OutOfMemory { .. })));
        release_page(h, all);
    }
    let page = h.device().create_page(g).unwrap();
    release_page(h, page);
}

pub(crate) fn without_virtual_memory_pages_are_unsupported(h: &dyn Harness) {
    if has_pages(h) {
        return;
    }
    let g = granularity(h);
    assert!(matches!(h.device().reserve(g), Err(DeviceError::Unsupported { .. })));
    assert!(matches!(h.device().create_page(g), Err(DeviceError::Unsupported { .. })));
}

fn unreserve(h: &dyn Harness, at: DevicePtr, bytes: u64) {
    // SAFETY: the tests give back whole ranges of theirs, with nothing mapped.
    unsafe { h.device().unreserve(at, bytes) }.unwrap();
}

pub(crate) fn free_bytes(h: &dyn Harness) -> u64 {
    let info = h.device().memory_info().unwrap();
    assert!(info.free <= info.total);
    info.free
}

/// A driver may keep a little for itself that it took meanwhile; nobody else is on the device.
pub(crate) fn assert_returned(h: &dyn Harness, before: u64, after: u64) {
    let slack = if h.is_exact() { 0 } else { 4 << 20 };
    assert!(!h.counts_alone() || after + slack >= before, "{before} bytes were free, now {after}");
}
