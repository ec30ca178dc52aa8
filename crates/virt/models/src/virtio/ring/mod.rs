//! The device's side of virtqueues (section 2.6 and following). Everything is read from memory anew at each
//! step and checked against the requirements for drivers.

mod chain;
mod device_ring;
mod fault;
mod packed;
mod split;
mod used;

pub(super) use chain::Chain;
pub(super) use device_ring::{Areas, Ring, RingFeatures};
pub(super) use fault::{Fault, NOT_MAPPED};
pub(super) use packed::Packed;
pub(super) use split::Split;
