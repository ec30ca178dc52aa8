//! The vfio-user protocol (QEMU, docs/interop/vfio-user.rst): a PCI device that one process is, used by another over a
//! unix socket. Registers by messages, memory and interrupts by file descriptors.
//!
//! A [`Server`] serves whatever implements [`Device`], for QEMU's `vfio-user-pci` or a [`Client`]. It has no thread of
//! its own and never waits. Neither side trusts the other: sizes are checked before they are used, every wait has a
//! limit, and a session ends with a reason.
//!
//! Written anew rather than taken from the crate `vfio_user`, which is made for peers that behave: it allocates what a
//! message claims to carry, panics on version data that is no JSON, loses step behind a command that it does not know,
//! and blocks its thread on one client for as long as that likes.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod client;
mod device;
mod dispatch;
mod dma;
mod error;
mod message;
mod pci;
mod reply;
mod server;
mod session;
mod transport;
mod version;

pub use client::Client;
pub use device::{Access, CONFIG_REGION, Device, MSIX, Mapping, PCI_IRQS, PCI_REGIONS, Region};
pub use dispatch::{Answer, Dispatcher};
pub use error::{Ended, Error, Refusal};
pub use message::{Command, HEADER, Header, Kind, MAX_MESSAGE, MAX_TRANSFER, Request, Write};
pub use pci::{Change, ConfigSpace, Identity};
pub use reply::{Area, Cells, DeviceInfo, Doorbells, IoEvent, IrqInfo, RegionInfo};
pub use server::{Event, Server};
pub use session::Session;

pub use ringpass_peer::{Listener, MAX_FDS, Signal, Waiter, prepare_signals};
