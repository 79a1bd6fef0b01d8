//! `report/`: one HTML file that shows replays, works offline and fetches nothing.
//!
//! Uses `trace`, `replay`, `fit`, `deciding`, `phases`, `sites`, `growth`, `holes`, `possible` and `export`'s flame graph.
//! [`Section::of`] and [`Section::add`] keep what is shown of a trace and of each allocator (`section.rs`). `charts.rs` makes the
//! chart over time, which plotly.js draws. `map.rs` draws what lies where, and `moments.rs` when. `holders.rs` says who requested
//! it. `tables.rs` has everything else. `page.rs` puts them together, and `page.html` is the frame around them. Everything from the
//! trace is escaped: a function's name may be anything.

mod charts;
mod holders;
mod map;
mod moments;
mod page;
mod section;
mod tables;
#[cfg(test)]
mod tests;
mod text;
mod timeline;

pub use page::{About, write};
pub use section::Section;
