//! `decay/`: what a program no longer uses goes back to the device after a delay, also when the program makes no call.
//!
//! Uses `core/` and what is below it. `pool/` has each pool that is built [begin](Decay::set).
//!
//! **How memory goes back.** The first pool with a delay starts a thread for the process (`thread`). Some times in a delay, it has
//! each such pool look at what it counted ([`look`], in `decaying`). `policy/decay` says what is due by that. Then the pool is
//! trimmed, as by [`Pool::trim_to`](crate::Pool::trim_to): without waiting, and without what pending work uses. The fast path takes
//! no part: the pool counts requests anyway. The thread ends with the last such pool.

mod decaying;
mod thread;

pub(crate) use decaying::{Decay, from_environment};
