//! What the flags of several commands may say, and what is said of wrong usage.
//!
//! | file | concern |
//! | --- | --- |
//! | `names` | names of allocators, suites and kinds of memory |
//! | `sizes` | sizes in bytes |
//! | `usage` | wrong usage, in words |

mod names;
mod sizes;
mod usage;

pub(crate) use self::names::{
    ALL, about_allocators, is_asked, listed, listed_memories, memories, names_or_all,
};
pub(crate) use self::sizes::{capacity, page_sizes, size_or_none};
pub(crate) use self::usage::wrong_usage;
