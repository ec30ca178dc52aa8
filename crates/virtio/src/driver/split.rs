//! Split rings (section 2.7).

/// Placeholder while the crate is built.
pub struct Split;
