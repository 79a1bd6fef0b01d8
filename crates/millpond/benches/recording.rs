//! What recording costs: `cargo bench -p millpond --bench recording`.
//!
//! Each figure is of a pair of an allocation and a free, so of two events.

fn main() {
    divan::main();
}
