//! A pool's figures, as Python reads them. `python/millpond/_millpond.pyi` documents the fields.

use pyo3::prelude::*;

/// A figure that moves.
#[pyclass(frozen, get_all, eq, module = "millpond")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level {
    current: u64,
    high: u64,
}

impl From<millpond::Level> for Level {
    fn from(millpond::Level { current, high }: millpond::Level) -> Self {
        Self { current, high }
    }
}

#[pymethods]
impl Level {
    fn __repr__(&self) -> String {
        format!("Level(current={}, high={})", self.current, self.high)
    }
}

/// Device calls by kind.
#[pyclass(frozen, get_all, eq, module = "millpond")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceCalls {
    reserve: u64,
    unreserve: u64,
    create: u64,
    map: u64,
    set_access: u64,
    unmap: u64,
    release: u64,
    alloc: u64,
    free: u64,
    memory: u64,
}

impl From<millpond::DeviceCalls> for DeviceCalls {
    fn from(calls: millpond::DeviceCalls) -> Self {
        let memory = calls.memory();
        let millpond::DeviceCalls {
            reserve,
            unreserve,
            create,
            map,
            set_access,
            unmap,
            release,
            alloc,
            free,
        } = calls;
        Self { reserve, unreserve, create, map, set_access, unmap, release, alloc, free, memory }
    }
}

#[pymethods]
impl DeviceCalls {
    fn __repr__(&self) -> String {
        format!(
            "DeviceCalls(memory={}, create={}, map={}, unmap={}, release={}, alloc={}, free={})",
            self.memory, self.create, self.map, self.unmap, self.release, self.alloc, self.free
        )
    }
}

/// What a pool did and holds.
#[pyclass(frozen, get_all, eq, module = "millpond")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stats {
    requested: Level,
    allocated: Level,
    reserved: Level,
    blocks: Level,
    allocations: u64,
    frees: u64,
    hits: u64,
    misses: u64,
    stream_waits: u64,
    pages_stolen: u64,
    retries: u64,
    out_of_memory: u64,
    cached: u64,
    fragmentation: f64,
    calls: DeviceCalls,
}

impl From<millpond::Stats> for Stats {
    fn from(stats: millpond::Stats) -> Self {
        Self {
            requested: stats.requested.into(),
            allocated: stats.allocated.into(),
            reserved: stats.reserved.into(),
            blocks: stats.blocks.into(),
            allocations: stats.allocations,
            frees: stats.frees,
            hits: stats.hits,
            misses: stats.misses,
            stream_waits: stats.stream_waits,
            pages_stolen: stats.pages_stolen,
            retries: stats.retries,
            out_of_memory: stats.out_of_memory,
            cached: stats.cached(),
            fragmentation: stats.fragmentation(),
            calls: stats.calls.into(),
        }
    }
}

#[pymethods]
impl Stats {
    fn __repr__(&self) -> String {
        format!(
            "Stats(requested={}, allocated={}, reserved={}, blocks={}, allocations={}, hits={}, misses={})",
            self.requested.current,
            self.allocated.current,
            self.reserved.current,
            self.blocks.current,
            self.allocations,
            self.hits,
            self.misses
        )
    }
}
