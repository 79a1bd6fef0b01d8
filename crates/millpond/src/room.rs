//! Room in tables that are about to be filled.

/// Has the system give memory for all the room of an empty list. It does so page by page when they are written to first,
/// which takes as long as ten allocations each.
pub(crate) fn touch<T>(list: &mut Vec<T>, nothing: impl FnMut() -> T) {
    debug_assert!(list.is_empty());
    list.resize_with(list.capacity(), nothing);
    list.clear();
}
