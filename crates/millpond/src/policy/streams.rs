//! How much is kept of what streams did. None of it was seen in any figure: each bounds memory, or what one call costs.

/// Streams that a fence names without memory of its own: most ranges are used by one stream, and handed over by two.
pub(crate) const NAMED_INLINE: usize = 2;

/// Streams, or pending marks of one, from which on a list is kept short: fences forget what is complete, and a look records no
/// more marks. Each mark is an event of its own, and a stream so far behind does not complete its last work soon. Twice as many
/// spare events are kept.
pub(crate) const MANY: usize = 16;
