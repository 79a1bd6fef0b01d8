//! The other allocators, behind one trait.
