//! A pool's options by the names that they have in Python, which are those of `PoolBuilder`.

use std::ops::Deref;
use std::path::PathBuf;

use millpond::guard::Guard;
use millpond::{Budget, Context, PoolBuilder, ReusePolicies};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};

use crate::budget;
use crate::failure::{Failure, Result};
use crate::sizes::{self, A_SIZE};

/// The names, in the order of the documentation.
const NAMES: [&str; 12] = [
    "name",
    "hard_limit",
    "release_threshold",
    "headroom",
    "reuse",
    "page_sizes",
    "min_alignment",
    "growth_allowance",
    "budget",
    "accessible_from",
    "record",
    "guard",
];

/// What was given; sizes in bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    name: Option<String>,
    hard_limit: Option<u64>,
    release_threshold: Option<u64>,
    headroom: Option<u64>,
    reuse: Option<ReusePolicies>,
    page_sizes: Option<(u64, u64)>,
    min_alignment: Option<u64>,
    growth_allowance: Option<u64>,
    pub(crate) budget: Option<Budget>,
    accessible_from: Option<Peers>,
    record: Option<PathBuf>,
    guard: Option<Guard>,
}

/// Who may use all memory of a pool beside its own device.
#[derive(Debug, Clone)]
enum Peers {
    All,
    Of(Vec<Context>),
}

impl Options {
    /// Reads keyword arguments. A name that is none of ours is a `TypeError` that lists them.
    pub(crate) fn from_keywords(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut options = Self::default();
        for (name, value) in keywords.into_iter().flatten() {
            let name: String = name.extract()?;
            options.set(&name, &value).map_err(|error| explain(&name, &value, error))?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if value.is_none() {
            return known(name);
        }
        match name {
            "name" => self.name = Some(value.extract()?),
            "hard_limit" => self.hard_limit = Some(sizes::read(name, value)?),
            "release_threshold" => self.release_threshold = Some(sizes::read(name, value)?),
            "headroom" => self.headroom = Some(sizes::read(name, value)?),
            "reuse" => self.reuse = Some(policies(value)?),
            "page_sizes" => {
                let (smallest, largest): (Bound<'_, PyAny>, Bound<'_, PyAny>) = value.extract()?;
                self.page_sizes = Some((sizes::read(name, &smallest)?, sizes::read(name, &largest)?));
            }
            "min_alignment" => self.min_alignment = Some(sizes::read(name, value)?),
            // `spare` is its former name.
            "growth_allowance" | "spare" => self.growth_allowance = Some(sizes::read(name, value)?),
            "budget" => self.budget = Some(value.cast::<budget::Budget>()?.get().inner.deref().clone()),
            "accessible_from" => self.accessible_from = Some(peers(value)?),
            "record" => self.record = Some(value.extract()?),
            "guard" => self.guard = Some(value.extract::<String>()?.parse().map_err(Failure::from)?),
            _ => return known(name),
        }
        Ok(())
    }

    /// The builder with these options.
    pub(crate) fn set_all(&self, mut builder: PoolBuilder) -> PoolBuilder {
        if let Some(name) = &self.name {
            builder = builder.name(name);
        }
        if let Some(bytes) = self.hard_limit {
            builder = builder.hard_limit(bytes);
        }
        if let Some(bytes) = self.release_threshold {
            builder = builder.release_threshold(bytes);
        }
        if let Some(bytes) = self.headroom {
            builder = builder.headroom(bytes);
        }
        if let Some(policies) = self.reuse {
            builder = builder.reuse(policies);
        }
        if let Some((smallest, largest)) = self.page_sizes {
            builder = builder.page_sizes(smallest, largest);
        }
        if let Some(bytes) = self.min_alignment {
            builder = builder.min_alignment(bytes);
        }
        if let Some(bytes) = self.growth_allowance {
            builder = builder.growth_allowance(bytes);
        }
        if let Some(budget) = &self.budget {
            builder = builder.budget(budget);
        }
        match &self.accessible_from {
            Some(Peers::All) => builder = builder.accessible_from_all(),
            Some(Peers::Of(contexts)) => builder = builder.accessible_from(contexts),
            None => {}
        }
        if let Some(path) = &self.record {
            builder = builder.record(path.as_path());
        }
        if let Some(guard) = &self.guard {
            builder = builder.guard(guard.clone());
        }
        builder
    }
}

fn known(name: &str) -> PyResult<()> {
    if NAMES.contains(&name) {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!("a pool has no option '{name}'; it has {}", NAMES.join(", "))))
}

/// Says which option has the wrong type, and what was given.
fn explain(name: &str, value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = value.py();
    let tells = error.is_instance_of::<PyValueError>(py) || error.is_instance_of::<PyOverflowError>(py);
    if !NAMES.contains(&name) || tells {
        return error;
    }
    let given = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    let takes = match name {
        "name" => "a text",
        "reuse" => "True, False, or the names of policies",
        "page_sizes" => "a pair of sizes: the smallest and the largest page",
        "budget" => "a Budget",
        "accessible_from" => "'all', or the numbers of GPUs",
        "record" => "a path",
        "guard" => "a text, such as 'all'",
        _ => A_SIZE,
    };
    PyTypeError::new_err(format!("the option '{name}' takes {takes}, not {given}"))
}

/// `"all"`, or the numbers of GPUs.
fn peers(value: &Bound<'_, PyAny>) -> PyResult<Peers> {
    if let Ok(word) = value.extract::<String>() {
        return match word.as_str() {
            "all" => Ok(Peers::All),
            _ => Err(PyValueError::new_err(format!(
                "accessible_from: '{word}' names no GPUs: expected 'all', or their numbers"
            ))),
        };
    }
    let ordinals = value.extract::<Vec<i64>>()?;
    let open = |ordinal: i64| -> Result<Context> {
        Ok(Context::cuda(usize::try_from(ordinal).map_err(|_| Failure::NoSuchDevice(ordinal))?)?)
    };
    Ok(Peers::Of(value.py().detach(|| ordinals.into_iter().map(open).collect::<Result<_>>())?))
}

/// `True` for all policies, `False` for none, or the names of those that are to be on.
fn policies(value: &Bound<'_, PyAny>) -> PyResult<ReusePolicies> {
    if let Ok(all) = value.cast::<PyBool>() {
        return Ok(if all.is_true() { ReusePolicies::ALL } else { ReusePolicies::NONE });
    }
    if value.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("a text"));
    }
    let mut policies = ReusePolicies::NONE;
    for name in value.try_iter()? {
        match name?.extract::<String>()?.as_str() {
            "follow_event_dependencies" => policies.follow_event_dependencies = true,
            "opportunistic" => policies.opportunistic = true,
            "internal_dependencies" => policies.internal_dependencies = true,
            other => {
                return Err(PyValueError::new_err(format!(
                    "reuse: no policy is named '{other}'; there are follow_event_dependencies, opportunistic and \
                     internal_dependencies"
                )));
            }
        }
    }
    Ok(policies)
}
