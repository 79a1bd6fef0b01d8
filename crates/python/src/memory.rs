//! Kinds of memory by the words that Python has for them.

use millpond::device::MemoryKind;
use millpond::{Advice, Context, Place, Pool, PoolBuilder};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::failure::Result;

/// What a pool is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Device,
    /// Of this NUMA node, or of one near the device.
    Pinned(Option<u32>),
    Managed,
}

/// The words, for errors.
const WORDS: &str = "'device', 'pinned' or 'managed'";

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
            ("managed", None) => Ok(Self::Managed),
            ("device" | "managed", Some(_)) => {
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
            Self::Managed => context.managed()?,
        })
    }
}

/// The word for a kind.
pub(crate) fn word(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Pinned => "pinned",
        MemoryKind::Managed => "managed",
        _ => "device",
    }
}

/// Reads the argument called `name`, which says where managed memory lies.
pub(crate) fn read_place(name: &str, value: &str) -> PyResult<Place> {
    match value {
        "device" => Ok(Place::Device),
        "host" => Ok(Place::Host),
        _ => {
            Err(PyValueError::new_err(format!("{name}: '{value}' is no place: expected 'device' or 'host'")))
        }
    }
}

/// What was said of a block of managed memory, where it is the same of all its pages.
#[pyclass(frozen, get_all, eq, module = "millpond")]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Residency {
    /// Where it was last prefetched to: ``"device"`` or ``"host"``. It may lie elsewhere by now.
    last_prefetch: Option<&'static str>,
    /// Where it is to stay: ``"device"`` or ``"host"``.
    preferred_location: Option<&'static str>,
    /// Whether it is mostly read.
    read_mostly: bool,
}

impl From<millpond::Residency> for Residency {
    fn from(residency: millpond::Residency) -> Self {
        let word = |place| match place {
            Place::Device => "device",
            Place::Host => "host",
        };
        let millpond::Residency { last_prefetch, preferred, read_mostly, .. } = residency;
        let (last_prefetch, preferred_location) = (last_prefetch.map(word), preferred.map(word));
        Self { last_prefetch, preferred_location, read_mostly }
    }
}

#[pymethods]
impl Residency {
    fn __repr__(&self) -> String {
        let shown = |place: Option<&str>| place.map_or("None".to_owned(), |place| format!("'{place}'"));
        format!(
            "Residency(last_prefetch={}, preferred_location={}, read_mostly={})",
            shown(self.last_prefetch),
            shown(self.preferred_location),
            if self.read_mostly { "True" } else { "False" }
        )
    }
}

/// Advice by the arguments of `Block.advise`.
pub(crate) fn read_advice(
    read_mostly: Option<bool>,
    preferred_location: Option<&str>,
    accessed_by: Option<&str>,
    not_accessed_by: Option<&str>,
) -> PyResult<Vec<Advice>> {
    let mut all = Vec::new();
    all.extend(read_mostly.map(Advice::ReadMostly));
    if let Some(word) = preferred_location {
        all.push(Advice::PreferredLocation(match word {
            "anywhere" => None,
            _ => Some(read_place("preferred_location", word)?),
        }));
    }
    for (name, word, is_set) in
        [("accessed_by", accessed_by, true), ("not_accessed_by", not_accessed_by, false)]
    {
        if let Some(word) = word {
            all.push(Advice::AccessedBy(read_place(name, word)?, is_set));
        }
    }
    if all.is_empty() {
        return Err(PyTypeError::new_err(
            "advise: say one of read_mostly, preferred_location, accessed_by and not_accessed_by",
        ));
    }
    Ok(all)
}

fn read_node(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    value.extract().map_err(|_| {
        PyValueError::new_err(format!("node: expected the number of a NUMA node, not {}", shown(value)))
    })
}

fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string())
}
