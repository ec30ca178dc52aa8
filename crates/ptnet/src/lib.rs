//! A netmap port inside a virtual machine: the two PCI devices of netmap's passthrough, served over vfio-user, so that QEMU
//! is as it comes and netmap's own driver in the guest too.
//!
//! [`Memdev`] shows the port's memory; [`Ptnet`] is the port: a few registers, a doorbell and an interrupt for each ring. What
//! the guest says of its rings stands in a CSB in its own memory; it is checked and passed on to the port's rings
//! ([`PortRing`](ringpass_netmap::PortRing)), as a program's own word would be, and what these answer is told to the guest.
//! Frames stay where they are. [`Passthrough`] serves both devices on one thread, which sleeps while there is nothing to do.
//!
//! Whether a guest is trusted is said by the memory that it is given: its own port's alone, or one that others have too.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod counters;
mod dma;
mod memdev;
mod passthrough;
mod ptnet;
mod relay;
mod words;

pub use counters::{Counters, Counts};
pub use memdev::{Memdev, Shared};
pub use passthrough::{Device, Passthrough};
pub use ptnet::{GuestPort, Ptnet};

/// Bytes of either device's BAR 0: a page, so that drivers may map it.
const BAR: u32 = 4096;
