//! A netmap port inside a virtual machine: the two PCI devices of netmap's passthrough, served over vfio-user to an
//! unmodified QEMU and to netmap's own driver in the guest.
//!
//! [`Memdev`] exposes the port's memory. [`Ptnet`] is the port: a few registers, and a doorbell and an interrupt
//! for each ring. The guest's ring positions are in a CSB (communication status block) in its own memory. They are
//! validated and passed on to the port's rings ([`PortRing`](ringpass_netmap::PortRing)) as a program's positions
//! would be; the rings' answers are written to the CSB. Frames stay in place. [`Passthrough`] serves both devices
//! on one thread, which sleeps while there is nothing to do. The other side, for programs in a guest or on this
//! machine, is the [`driver`].
//!
//! How far a guest must be trusted depends on the memory that it is given: that of its own port only, or memory
//! shared with others.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod counters;
pub mod driver;
mod memdev;
mod passthrough;
mod ptnet;

pub use counters::{Counters, Counts};
pub use memdev::{Memdev, SharedRegion};
pub use passthrough::{Device, Passthrough};
pub use ptnet::{GuestPort, Ptnet, SetHeaderLen};

/// Size in bytes of BAR 0 of either device: a page, so that drivers can map it.
const BAR: u32 = 4096;
