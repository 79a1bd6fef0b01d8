//! Requested and reserved bytes over time, thinned so that no peak is lost.

use millpond::device::DevicePtr;

use crate::replay::{Choose, Program, ReplayError, Stage, UNLIMITED};
use crate::trace::Trace;

/// A moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    /// The step after which it is.
    pub(super) event: usize,
    pub(super) time_us: u64,
    pub(super) requested: u64,
    pub(super) reserved: u64,
}

/// Stretches of time that are drawn, each with its lowest and its highest moment.
const STRETCHES: usize = 1000;

/// Whether a chart over time would mostly show idle time: more than a third of it lies between events that are a
/// hundredth of it apart.
pub(super) fn is_idle(trace: &Trace) -> bool {
    // A snapshot may hold any times.
    let wall = u128::from(trace.wall_us);
    let gaps = trace.ops.windows(2).map(|pair| u128::from(pair[1].time_us - pair[0].time_us));
    let long: u128 = gaps.filter(|gap| gap * 100 >= wall.max(1)).sum();
    long * 3 > wall
}

/// Replays a program and looks after each step.
pub(super) fn timeline(
    trace: &Trace,
    program: &Program,
    choose: &Choose<'_>,
) -> Result<Vec<Point>, ReplayError> {
    let stage = Stage::sim(program, UNLIMITED)?;
    let allocator = choose(stage.context())?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let mut points = Vec::with_capacity(program.steps.len());
    let mut times = program.times(trace);
    stage.play_watched(&*allocator, &program.steps, &mut blocks, |event, _, _| {
        let usage = allocator.usage();
        let (requested, reserved) = (usage.requested.current, usage.reserved.current);
        let time_us = times.next().unwrap_or(trace.wall_us);
        points.push(Point { event, time_us, requested, reserved });
    })?;
    stage.clear(&*allocator, program, &mut blocks)?;
    Ok(thinned(&points))
}

/// Keeps of each stretch the first and the last moment, and those at which either figure is lowest and highest.
pub(super) fn thinned(points: &[Point]) -> Vec<Point> {
    let length = points.len().div_ceil(STRETCHES).max(1);
    let mut kept = Vec::new();
    for stretch in points.chunks(length) {
        let extreme = |key: fn(&Point) -> u64| {
            let indices = 0..stretch.len();
            let lowest = indices.clone().min_by_key(|&at| key(&stretch[at]));
            [lowest, indices.max_by_key(|&at| key(&stretch[at]))]
        };
        let mut indices = vec![Some(0), Some(stretch.len() - 1)];
        indices.extend(extreme(|point| point.requested));
        indices.extend(extreme(|point| point.reserved));
        let mut indices: Vec<_> = indices.into_iter().flatten().collect();
        indices.sort_unstable();
        indices.dedup();
        kept.extend(indices.into_iter().map(|at| stretch[at]));
    }
    kept
}
