//! One pickle from its first byte to its last.

use std::io::BufRead;

use super::heap::{Fold, Heap};
use super::input::{Input, PickleError};
use super::limits::Limits;
use super::machine::Machine;
use super::value::Value;

/// Reads one pickle. Returns its values and the one that it stands for.
pub(crate) fn load(
    source: &mut dyn BufRead,
    limits: Limits,
    fold: &mut dyn Fold,
) -> Result<(Heap, Value), PickleError> {
    let mut input = Input::new(source, limits.bytes);
    let result = Machine::new(limits, fold).run(&mut input);
    let (mut heap, value) = result.map_err(|error| error.at(input.position()))?;
    heap.settle();
    Ok((heap, value))
}
