//! A pool's figures, as Python reads them: made of the lists in `millpond`'s `stats.rs`. `python/millpond/_millpond.pyi`
//! documents the fields; mypy's stubtest finds the one that it lacks.

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

macro_rules! define_device_calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Device calls by kind.
        #[pyclass(frozen, get_all, eq, module = "millpond")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct DeviceCalls {
            $($(#[$doc])* $name: u64,)*
            /// Calls that created, mapped, unmapped, released, allocated or freed device memory.
            memory: u64,
        }

        impl From<millpond::DeviceCalls> for DeviceCalls {
            fn from(calls: millpond::DeviceCalls) -> Self {
                Self { $($name: calls.$name,)* memory: calls.memory() }
            }
        }
    };
}

millpond::list_of_device_calls!(define_device_calls);

#[pymethods]
impl DeviceCalls {
    fn __repr__(&self) -> String {
        format!(
            "DeviceCalls(memory={}, create={}, map={}, unmap={}, release={}, alloc={}, free={})",
            self.memory, self.create, self.map, self.unmap, self.release, self.alloc, self.free
        )
    }
}

macro_rules! define_stats {
    (
        fields { $($(#[$doc:meta])* $name:ident: $type:ident,)* }
        methods { $($(#[$method_doc:meta])* $method:ident: $method_type:ident,)* }
        later { $($(#[$later_doc:meta])* $later:ident: $later_type:ident,)* }
    ) => {
        /// What a pool did and holds.
        #[pyclass(frozen, get_all, eq, module = "millpond")]
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub(crate) struct Stats {
            $($(#[$doc])* $name: $type,)*
            $($(#[$method_doc])* $method: $method_type,)*
            $($(#[$later_doc])* $later: $later_type,)*
        }

        impl From<millpond::Stats> for Stats {
            fn from(stats: millpond::Stats) -> Self {
                Self {
                    $($name: stats.$name.into(),)*
                    $($method: stats.$method(),)*
                    $($later: stats.$later,)*
                }
            }
        }
    };
}

millpond::list_of_stats!(define_stats);

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
