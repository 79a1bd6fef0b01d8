//! Budgets, as Python sees them. `python/millpond/_millpond.pyi` has the same texts, for editors: a test compares them.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::failure::{Failure, Result};
use crate::gil::Detached;
use crate::sizes;

/// A limit on the physical bytes that all pools with this budget hold together, also those of other processes.
///
/// Give it to pools as their option ``budget``. Sizes are numbers of bytes, or texts such as ``"8GiB"``.
///
/// With a name, all processes of this user share it which give the same name. A process that lacks memory asks the others,
/// and their free memory goes back. A process that ends in any way gives up what it held. docs/budgets.md says more.
///
/// Args:
///     limit: the limit. That of a named budget is set by the first process; for those that join later, it is what it is.
///     name: 1 to 64 letters, digits, ``-`` and ``_``. Without one, the budget is this process's.
///     floor: what is kept for this process. Other processes do not take it, and it need not give it back.
///     claim: the most that this process takes.
///     patience: how many seconds a request waits until other processes free memory. 0.05 by default. With 0, it takes what
///         is free there already.
///
/// Raises:
///     ValueError: for a value that makes no sense, or a floor, a claim or a patience without a name.
///     Error: where the file that the processes share cannot be used.
#[pyclass(frozen, module = "millpond")]
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) inner: Detached<millpond::Budget>,
}

/// A process under a named budget. Sizes in bytes.
#[pyclass(frozen, get_all, module = "millpond")]
#[derive(Debug, Clone)]
pub(crate) struct Tenant {
    /// The process.
    pid: u32,
    /// The name of its program.
    program: String,
    /// What its pools with the budget hold.
    held: u64,
    /// What is kept for it.
    floor: u64,
    /// The most that it takes; ``None`` without a claim.
    claim: Option<u64>,
}

#[pymethods]
impl Tenant {
    fn __repr__(&self) -> String {
        let Self { pid, program, held, .. } = self;
        format!("<millpond.Tenant {pid} '{program}' holds {}>", millpond::HumanBytes(*held))
    }
}

impl From<millpond::Tenant> for Tenant {
    fn from(tenant: millpond::Tenant) -> Self {
        let millpond::Tenant { pid, program, held, floor, claim, .. } = tenant;
        Self { pid, program, held, floor, claim: (claim < u64::MAX).then_some(claim) }
    }
}

/// What can be set of a named budget.
#[derive(Default)]
struct Shares {
    floor: Option<u64>,
    claim: Option<u64>,
    patience: Option<Duration>,
}

impl Shares {
    fn read(
        floor: Option<&Bound<'_, PyAny>>,
        claim: Option<&Bound<'_, PyAny>>,
        patience: Option<f64>,
    ) -> PyResult<Self> {
        let seconds = |seconds| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| PyValueError::new_err(format!("patience: {seconds} is no number of seconds")))
        };
        Ok(Self {
            floor: sizes::read_if_given("floor", floor)?,
            claim: sizes::read_if_given("claim", claim)?,
            patience: patience.map(seconds).transpose()?,
        })
    }

    fn set(&self, budget: &millpond::Budget) -> Result<()> {
        self.floor.map_or(Ok(()), |bytes| budget.set_floor(bytes))?;
        self.claim.map_or(Ok(()), |bytes| budget.set_claim(bytes))?;
        Ok(self.patience.map_or(Ok(()), |patience| budget.set_patience(patience))?)
    }
}

#[pymethods]
impl Budget {
    #[new]
    #[pyo3(signature = (limit, *, name=None, floor=None, claim=None, patience=None))]
    fn new(
        py: Python<'_>,
        limit: &Bound<'_, PyAny>,
        name: Option<&str>,
        floor: Option<&Bound<'_, PyAny>>,
        claim: Option<&Bound<'_, PyAny>>,
        patience: Option<f64>,
    ) -> PyResult<Self> {
        let (limit, shares) = (sizes::read("limit", limit)?, Shares::read(floor, claim, patience)?);
        let made = py.detach(|| -> Result<Self> {
            let inner = match name {
                Some(name) => millpond::Budget::named(name, limit)?,
                None => millpond::Budget::bytes(limit),
            };
            shares.set(&inner)?;
            Ok(Self { inner: inner.into() })
        });
        Ok(made?)
    }

    /// The named budget, with the limit that it has; ``None`` where no process has it.
    #[staticmethod]
    fn find(py: Python<'_>, name: &str) -> PyResult<Option<Self>> {
        let found = py.detach(|| millpond::Budget::find(name)).map_err(Failure::from)?;
        Ok(found.map(|inner| Self { inner: inner.into() }))
    }

    /// The limit in bytes.
    #[getter]
    fn limit(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.inner.limit())
    }

    /// The most that the pools of this process may hold: the limit, or its claim if that is lower.
    #[getter]
    fn most(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.inner.most())
    }

    /// Bytes that the pools hold now, those of all processes.
    #[getter]
    fn held(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.inner.held())
    }

    /// Changes the limit, that of a named budget for all processes; or what the constructor says of this process.
    ///
    /// What the pools hold beyond a lower limit stays theirs until they give it back. Those of a named budget do so at once
    /// with what is free.
    #[pyo3(signature = (*, limit=None, floor=None, claim=None, patience=None))]
    fn set(
        &self,
        py: Python<'_>,
        limit: Option<&Bound<'_, PyAny>>,
        floor: Option<&Bound<'_, PyAny>>,
        claim: Option<&Bound<'_, PyAny>>,
        patience: Option<f64>,
    ) -> PyResult<()> {
        let limit = sizes::read_if_given("limit", limit)?;
        let shares = Shares::read(floor, claim, patience)?;
        let set = py.detach(|| {
            if let Some(limit) = limit {
                self.inner.set_limit(limit);
            }
            shares.set(&self.inner)
        });
        Ok(set?)
    }

    /// The processes that have a named budget, this one too; none without a name.
    fn tenants(&self, py: Python<'_>) -> Vec<Tenant> {
        py.detach(|| self.inner.tenants()).into_iter().map(Tenant::from).collect()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let [held, limit] = py.detach(|| [self.inner.held(), self.inner.limit()]).map(millpond::HumanBytes);
        format!("<millpond.Budget: {held} of {limit} held>")
    }
}
