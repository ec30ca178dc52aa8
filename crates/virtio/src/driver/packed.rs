//! Packed rings (section 2.8).

/// Placeholder while the crate is built.
pub struct Packed;
