//! A virtio network device, seen from the driver's side (configuration space, registers, virtqueues) and from
//! the wire's. Section numbers refer to *Virtual I/O Device (VIRTIO) Version 1.3*.
//!
//! The model checks its driver. Rings and buffers that violate the specification end in [`VirtioCard::fault`].
//! A queue is inspected only after the driver has notified the device as the specification demands, so that a
//! missing notification shows as missing frames.
//!
//! Not modelled: RSS and hash reports, UDP segmentation, announcements, and changes of guest offloads at run
//! time.

mod bars;
mod card;
mod config;
mod control;
mod counters;
mod device;
mod filter;
mod header;
mod interrupts;
mod kicks;
mod layout;
mod liar;
mod lies;
mod lying;
mod pci;
mod queue;
mod registers;
mod ring;
mod rx;
mod shared;
mod steer;
mod tx;
mod tx_buffers;
mod tx_path;
mod vfio_user_function;

pub use crate::lies::When;
pub use card::VirtioCard;
pub use config::{Interface, VirtioConfig};
pub use counters::Counters;
pub use lies::{Lie, Lies};
pub use vfio_user_function::VfioUserFunction;
