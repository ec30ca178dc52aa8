//! The driver for netmap ports that were passed into a virtual machine (ptnet), or that are served over vfio-user
//! on the same machine.
//!
//! [`Rings::open`] returns the port's rings as any netmap program has them; [`PtnetPort`] is a port over these rings.
//! Frames lie in memory that both sides share: the BAR of a second device, identified by its number. Ring positions
//! are exchanged through a CSB (communication status block) in this process's memory, which the device can access.

mod device;
mod memory;
mod port;

pub use device::Rings;
pub use memory::{find_memory, supports};
pub use port::PtnetPort;
