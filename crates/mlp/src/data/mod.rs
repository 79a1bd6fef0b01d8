//! Images of 28 x 28 pixels and their labels: the bundled digits, or four IDX files of a folder.
//!
//! [`Dataset::bundled`] and [`Dataset::from_dir`] both go through `idx`, which trusts no size it reads.

mod dataset;
mod idx;

pub use dataset::{Dataset, Split};
pub use idx::SIDE;
