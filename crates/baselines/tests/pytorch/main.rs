//! Real jobs of PyTorch, replayed: `caching` and `expandable` do what PyTorch did (`segments.rs`), and no
//! allocator gives memory to two blocks (`bytes.rs`).

mod bytes;
mod events;
mod segments;
