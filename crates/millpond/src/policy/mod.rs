//! `policy/`: what the pool decides, and the constants that can be tuned. Uses nothing.
//!
//! Each decision is a function or a small struct: observations go in, an answer comes out. It knows no pool, and is tested
//! without one. A constant that can be tuned stands beside the decision that it belongs to, with the measurement that
//! chose it.

mod ablation;
pub(crate) mod caching;
mod donating;
mod fit;
pub(crate) mod growth;
pub(crate) mod ledger;
mod page_length;
pub(crate) mod reuse_history;
pub(crate) mod settling;
mod shortening;
pub(crate) mod size_classes;

pub(crate) use ablation::{Mechanism, without};
pub(crate) use donating::{enough_donor_pages, exchange_goes_on};
pub(crate) use fit::{CANDIDATES, GROWTH_CANDIDATES, GROWTH_LOOKS, LOWEST_OF, is_snug};
pub(crate) use page_length::{PAGES_IN_SEGMENT, PageNeed, page_length};
pub(crate) use shortening::{AT_ONCE, SHORT_PAGE, Shortening};
