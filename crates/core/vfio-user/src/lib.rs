//! The vfio-user protocol (QEMU, docs/interop/vfio-user.rst), by which one process provides a PCI device to
//! another over a unix socket. Registers are accessed by messages; memory and interrupts are passed as file
//! descriptors.
//!
//! A [`Server`] serves any [`Device`] to QEMU's `vfio-user-pci` or to a [`Client`]. It has no thread of its own
//! and never blocks. Neither side trusts the other: sizes are checked before they are used, every wait has a
//! limit, and a session ends with a reason.
//!
//! The crate `vfio_user` is not used because it is made for well-behaved peers: it allocates as much as a
//! message claims to carry, panics on version data that is not JSON, loses track of the stream after an unknown
//! command, and blocks its thread on one client for as long as that client likes.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod client;
mod device;
mod dispatch;
mod error;
mod files;
mod message;
mod pci;
mod reply;
mod server;
mod session;
mod transport;
mod version;
pub mod words;

pub use client::Client;
pub use device::{CONFIG_REGION, Device, MSIX, Mapping, PCI_IRQS, PCI_REGIONS, Region};
pub use dispatch::{Dispatcher, ReplyMessage};
pub use error::{Ended, Error, Refusal};
pub use message::{Command, HEADER, Header, Kind, MAX_MESSAGE, MAX_TRANSFER, Request, Write};
pub use pci::{Change, ConfigSpace, Identity};
pub use reply::{Area, DeviceInfo, DoorbellArray, Doorbells, IoEvent, IrqInfo, RegionInfo};
pub use server::{Event, Server};
pub use session::Session;

pub use ringpass_ipc::{ConnectionLost, EventNotifier, EventWaiter, Listener, MAX_FDS, prepare_notifiers};
pub use ringpass_memory::Access;
