//! `policy/`: what the pool decides, apart from the mechanisms that do it. Uses nothing.
//!
//! Each decision is a function or a small struct: observations go in, an answer comes out. A constant that can be tuned
//! stands beside the decision that it belongs to, with the measurement that chose it.

mod ablation;
mod donating;
mod fit;
mod page_length;
mod shortening;

pub(crate) use ablation::{Mechanism, without};
pub(crate) use donating::{enough_donor_pages, exchange_goes_on};
pub(crate) use fit::{CANDIDATES, GROWTH_CANDIDATES, GROWTH_LOOKS, LOWEST_OF, is_snug};
pub(crate) use page_length::{PAGES_IN_SEGMENT, PageNeed, page_length};
pub(crate) use shortening::{AT_ONCE, SHORT_PAGE, Shortening};
