//! How much is kept of what streams did. None of it was seen in any figure: each bounds memory, or what one call costs.

/// Streams that a fence names without memory of its own: most ranges are used by one stream, and handed over by two.
pub(crate) const NAMED_INLINE: usize = 2;

/// Streams in a list of them up to which nothing is pruned.
pub(crate) const FEW_STREAMS: usize = 8;

/// Pending marks of a stream, from which on a look records no more. Each is an event of its own, and a stream so far
/// behind does not complete its last work soon. Twice as many spare events are kept.
pub(crate) const MOST_MARKS: usize = 32;

/// Retired timelines that one sweep may find pending. Two for each stream that comes and each that goes: more than come.
pub(crate) const MOST_PENDING: usize = 2;
