//! Kinds of memory by the words that Python has for them.

use millpond::device::MemoryKind;
use millpond::{Context, Pool, PoolBuilder};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::failure::Result;

/// What a pool is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Device,
    /// Of this NUMA node, or of one near the device.
    Pinned(Option<u32>),
}

/// The words, for errors.
const WORDS: &str = "'device' or 'pinned'";

impl Memory {
    /// Reads the arguments `memory` and `node`.
    pub(crate) fn read(memory: Option<&Bound<'_, PyAny>>, node: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let node = node.map(read_node).transpose()?;
        let word = memory.map_or(Ok("device".to_owned()), |memory| {
            let wrong = || PyTypeError::new_err(format!("memory: expected {WORDS}, not {}", shown(memory)));
            memory.extract().map_err(|_| wrong())
        })?;
        match (word.as_str(), node) {
            ("device", None) => Ok(Self::Device),
            ("pinned", node) => Ok(Self::Pinned(node)),
            ("device", Some(_)) => {
                Err(PyValueError::new_err("node: it is for memory='pinned'; other memory has none"))
            }
            _ => {
                Err(PyValueError::new_err(format!("memory: '{word}' is no kind of memory: expected {WORDS}")))
            }
        }
    }

    /// Starts building a pool of it.
    pub(crate) fn builder(self, context: &Context) -> Result<PoolBuilder> {
        Ok(match self {
            Self::Device => Pool::builder(context),
            Self::Pinned(None) => context.pinned()?,
            Self::Pinned(Some(node)) => context.pinned_on_node(node)?,
        })
    }
}

/// The word for a kind.
pub(crate) fn word(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Pinned => "pinned",
        _ => "device",
    }
}

fn read_node(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    value.extract().map_err(|_| {
        PyValueError::new_err(format!("node: expected the number of a NUMA node, not {}", shown(value)))
    })
}

fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string())
}
