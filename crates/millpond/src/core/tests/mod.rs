//! Tests of whole pools that need to look inside.

mod keeping;
mod reserving;
