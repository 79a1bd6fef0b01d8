//! What came of a section.

use crate::row::Row;

/// What came of a section.
#[derive(Debug, Default)]
pub struct Measured {
    /// The figures.
    pub rows: Vec<Row>,
    /// What could not be measured, and why.
    pub left_out: Vec<String>,
}
