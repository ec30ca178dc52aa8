//! The driver for netmap ports that were passed into a virtual machine (ptnet), or are served over vfio-user on the same one.
//!
//! [`Rings::open`] gives the port's rings as any netmap program has them; [`Ptnet`] is a port over them. Frames lie in
//! memory that both sides have: the BAR of another device, found by its number. What is said of rings stands in a CSB in
//! memory of this process, which the device is given.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod device;
mod memory;
mod port;

pub use device::Rings;
pub use memory::{find_memory, supports};
pub use port::Ptnet;
