//! The `millpond` command.
fn main() {}
