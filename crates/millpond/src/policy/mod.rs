//! `policy/`: what the pool decides, and the constants that can be tuned. Uses nothing.
//!
//! Each decision is a function or a small struct: observations go in, an answer comes out. It knows no pool, and is tested
//! without one. A constant that can be tuned stands beside the decision that it belongs to, with the measurement that
//! chose it.

mod ablation;
pub(crate) mod caching;
pub(crate) mod donating;
pub(crate) mod fit;
pub(crate) mod growth;
pub(crate) mod ledger;
pub(crate) mod page_length;
pub(crate) mod reuse_history;
pub(crate) mod settling;
pub(crate) mod shortening;
pub(crate) mod size_classes;

pub(crate) use ablation::{Mechanism, without};
