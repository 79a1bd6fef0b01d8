//! A pool's figures, as Python reads them: made of the lists in `millpond`'s `stats.rs`, with the texts that are there.

use std::fmt::Write;

use millpond::HumanBytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// How a figure is in a dict, so that it goes to JSON and comes back.
trait Figure: Sized {
    fn to_plain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;
    fn from_plain(plain: &Bound<'_, PyAny>) -> PyResult<Self>;
}

macro_rules! plain_figures {
    ($($type:ty),*) => {$(
        impl Figure for $type {
            fn to_plain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                Ok(self.into_pyobject(py)?.into_any())
            }

            fn from_plain(plain: &Bound<'_, PyAny>) -> PyResult<Self> {
                plain.extract()
            }
        }
    )*};
}

plain_figures!(u64, f64);

/// Reads one figure of a dict.
fn figure<T: Figure>(figures: &Bound<'_, PyDict>, name: &str) -> PyResult<T> {
    let found = figures.get_item(name)?;
    let found = found.ok_or_else(|| {
        PyValueError::new_err(format!("there is no figure '{name}': pass what as_dict() gave"))
    })?;
    T::from_plain(&found)
}

/// A class of figures: how it goes to a dict, and comes back from one.
macro_rules! in_a_dict {
    ($class:ident: $($name:ident),* $(; $($more:tt)*)?) => {
        impl Figure for $class {
            fn to_plain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                Ok(self.as_dict(py)?.into_any())
            }

            fn from_plain(plain: &Bound<'_, PyAny>) -> PyResult<Self> {
                Self::new(plain.cast()?)
            }
        }

        #[pymethods]
        impl $class {
            #[new]
            fn new(figures: &Bound<'_, PyDict>) -> PyResult<Self> {
                Ok(Self { $($name: figure(figures, stringify!($name))?,)* })
            }

            /// The figures by name in a dict of plain numbers, for JSON. The class takes it back.
            fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let figures = PyDict::new(py);
                $(figures.set_item(stringify!($name), self.$name.to_plain(py)?)?;)*
                Ok(figures)
            }

            fn __reduce__<'py>(
                &self,
                py: Python<'py>,
            ) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyDict>,))> {
                Ok((py.get_type::<Self>(), (self.as_dict(py)?,)))
            }

            fn __repr__(&self) -> String {
                self.shown()
            }

            $($($more)*)?
        }
    };
}

/// A figure that moves.
#[pyclass(frozen, get_all, eq, module = "millpond")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level {
    /// Now.
    current: u64,
    /// At most, since the pool was built or its peaks were reset.
    high: u64,
}

impl From<millpond::Level> for Level {
    fn from(millpond::Level { current, high }: millpond::Level) -> Self {
        Self { current, high }
    }
}

impl Level {
    fn shown(&self) -> String {
        format!("Level(current={}, high={})", self.current, self.high)
    }
}

in_a_dict!(Level: current, high);

macro_rules! define_device_calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Device calls by kind, counted since the pool was built.
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

        in_a_dict!(DeviceCalls: $($name,)* memory);
    };
}

millpond::list_of_device_calls!(define_device_calls);

impl DeviceCalls {
    fn shown(&self) -> String {
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
        /// What a pool did and holds. All sizes are in bytes.
        ///
        /// `as_dict` is for JSON; `Stats` pickles, and notebooks show it as a table.
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

        in_a_dict! {
            Stats: $($name,)* $($method,)* $($later),*;

            /// The table that notebooks show.
            fn _repr_html_(&self) -> String {
                self.table()
            }
        }
    };
}

millpond::list_of_stats!(define_stats);

impl Stats {
    fn shown(&self) -> String {
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

    fn table(&self) -> String {
        let mut rows = String::new();
        let mut row = |name: &str, now: String, high: String| {
            // Writing to a text does not fail.
            let _ = write!(rows, "<tr><th>{name}</th><td>{now}</td><td>{high}</td></tr>");
        };
        for (name, level) in
            [("requested", self.requested), ("allocated", self.allocated), ("reserved", self.reserved)]
        {
            row(name, HumanBytes(level.current).to_string(), HumanBytes(level.high).to_string());
        }
        row("blocks", self.blocks.current.to_string(), self.blocks.high.to_string());
        row("cached", HumanBytes(self.cached).to_string(), String::new());
        row("fragmentation", format!("{:.1} %", 100.0 * self.fragmentation), String::new());
        for (name, count) in [
            ("allocations", self.allocations),
            ("found memory ready", self.hits),
            ("frees", self.frees),
            ("device calls", self.calls.memory),
            ("retries", self.retries),
            ("out of memory", self.out_of_memory),
        ] {
            row(name, count.to_string(), String::new());
        }
        format!("<table><tr><th></th><th>now</th><th>at most</th></tr>{rows}</table>")
    }
}
