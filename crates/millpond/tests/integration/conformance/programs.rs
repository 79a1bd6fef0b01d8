//! Random programs over several streams.

use millpond::device::{DevicePtr, EventHandle, StreamHandle};

use super::harness::*;

const CELLS: usize = 12;
const CELL: u64 = 8192;
const STREAMS: usize = 4;

/// A stream, and the event that stands for all that it was given.
struct Lane {
    stream: StreamHandle,
    event: EventHandle,
}

/// The lanes whose work on a cell others must wait for.
#[derive(Default, Clone)]
struct Users {
    writer: Option<usize>,
    readers: Vec<usize>,
}

/// Fills and copies between cells, each after those that it depends on and no others, by events that are
/// recorded again and again. In the end the cells hold what they would hold without any streams.
pub(crate) fn a_program_ordered_by_events_ends_as_in_order(h: &dyn Harness) {
    for seed in 1..=3 {
        run(h, seed);
    }
}

fn run(h: &dyn Harness, seed: u64) {
    let mut random = Random(seed);
    let memory = h.device().alloc_segment(CELLS as u64 * CELL).unwrap();
    let cell = |index: usize| memory.offset(index as u64 * CELL);
    let lanes: Vec<_> = (0..STREAMS).map(|_| lane(h)).collect();
    let mut users = vec![Users::default(); CELLS];
    let mut model = [0_u8; CELLS];
    for (index, users) in users.iter_mut().enumerate() {
        fill(h, cell(index), 0, CELL, lanes[0].stream);
        users.writer = Some(0);
    }
    record(h, &lanes[0]);
    for step in 0..400 {
        let (by, to, from) = (random.below(STREAMS), random.below(CELLS), random.below(CELLS));
        let target = std::mem::take(&mut users[to]);
        let before = target.readers.into_iter().chain(target.writer).chain(users[from].writer);
        for other in before.filter(|&other| other != by) {
            h.device().wait_event(lanes[by].stream, lanes[other].event).unwrap();
        }
        if to == from {
            model[to] = step as u8;
            fill(h, cell(to), model[to], CELL, lanes[by].stream);
        } else {
            model[to] = model[from];
            copy(h, cell(to), cell(from), CELL, lanes[by].stream);
            users[from].readers.push(by);
        }
        users[to].writer = Some(by);
        record(h, &lanes[by]);
    }
    h.device().synchronize().unwrap();
    for (index, &value) in model.iter().enumerate() {
        expect_bytes(h, cell(index), &[value; CELL as usize], lanes[0].stream);
    }
    free(h, memory, lanes);
}

fn lane(h: &dyn Harness) -> Lane {
    Lane { stream: h.device().create_stream().unwrap(), event: h.device().create_event().unwrap() }
}

fn record(h: &dyn Harness, lane: &Lane) {
    h.device().record_event(lane.event, lane.stream).unwrap();
}

fn free(h: &dyn Harness, memory: DevicePtr, lanes: Vec<Lane>) {
    // SAFETY: all work is complete, and nothing is used again.
    unsafe {
        for lane in lanes {
            h.device().destroy_stream(lane.stream).unwrap();
            h.device().destroy_event(lane.event).unwrap();
        }
        h.device().free_segment(memory).unwrap();
    }
}

/// A linear congruential generator (Knuth, MMIX): the same program on every device.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}
