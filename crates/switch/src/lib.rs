//! The learning switch.
