//! A value of a pickle, as the machine and the heap name it.

/// A value. Small, and copied at will: what is large lies in the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    /// Any integer of 64 bits, signed or not, as its bits.
    Int(i64),
    Text(Text),
    /// A fraction, bytes, a set: nothing that a trace is made of.
    Other,
    /// A list or a tuple.
    Items(u32),
    Dict(u32),
}

/// A string of a [`Heap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Text(pub(super) u32);

/// An integer of 64 bits.
pub(crate) fn integer(value: Value) -> Option<u64> {
    match value {
        Value::Int(bits) => Some(bits as u64),
        Value::Bool(set) => Some(u64::from(set)),
        _ => None,
    }
}

/// The string that a key is, if it is one.
pub(super) fn text_of(key: Value) -> Option<Text> {
    match key {
        Value::Text(text) => Some(text),
        _ => None,
    }
}
