//! `policy/`: what the pool decides, and the constants that can be tuned. Uses nothing.
//!
//! A decision takes observations and returns an answer. It knows no pool, and is tested without one. The mechanisms
//! that carry it out stand in the folders above. Each constant says which measurement chose it.

pub(crate) mod addresses;
pub(crate) mod borrowing;
pub(crate) mod budgets;
pub(crate) mod caching;
pub(crate) mod decay;
pub(crate) mod donating;
pub(crate) mod fit;
pub(crate) mod growth;
pub(crate) mod ledger;
mod mechanisms;
pub(crate) mod options;
pub(crate) mod other_processes;
pub(crate) mod page_length;
pub(crate) mod peaks;
pub(crate) mod size_classes;
pub(crate) mod sleeping;
pub(crate) mod streams;
pub(crate) mod waiting;
pub(crate) mod watching;

pub(crate) use mechanisms::Policy;
