//! Sizes as Python gives them: numbers of bytes, or texts as the command takes them.

use parse_size::Config;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};

/// What a size may be, for errors.
pub(crate) const A_SIZE: &str = "a number of bytes, or a text such as '8GiB'";

/// Reads the argument called `name`.
pub(crate) fn read(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(bytes) = value.extract() {
        return Ok(bytes);
    }
    if let Ok(text) = value.cast::<PyString>() {
        let text = text.to_cow()?;
        // "8G" means 8 GiB, as in the command.
        let parsed = Config::new().with_binary().parse_size(text.as_bytes());
        return parsed.map_err(|_| {
            PyValueError::new_err(format!("{name}: '{text}' is not a size: expected {A_SIZE}"))
        });
    }
    let given = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    // An int of Python's, or of another library's.
    let is_negative = value.extract::<i64>().is_ok() || (value.is_instance_of::<PyInt>() && value.lt(0)?);
    Err(if is_negative {
        PyValueError::new_err(format!("{name}: {given} is negative: expected {A_SIZE}"))
    } else if value.is_instance_of::<PyInt>() {
        PyOverflowError::new_err(format!("{name}: {given} bytes are more than can be addressed"))
    } else {
        PyTypeError::new_err(format!("{name}: expected {A_SIZE}, not {given}"))
    })
}

/// Reads the argument called `name`, if it was given.
pub(crate) fn read_if_given(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    value.filter(|value| !value.is_none()).map(|value| read(name, value)).transpose()
}
