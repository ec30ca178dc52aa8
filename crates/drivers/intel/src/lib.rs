//! The drivers for Intel's network cards: [`ixgbe`] (82599, X540, X550) and [`igb`] (82576).
//!
//! The 82576 introduced advanced descriptors; the 82599 and its successors kept them. So the cards share their packet
//! path and most of their bring-up. To be read in this order:
//!
//! - `port`: [`IntelPort`], a port from bring-up to control; `family`: the differences between cards;
//! - `ixgbe` and `igb`: their registers and the steps of their datasheets;
//! - `rx` and `tx`: from a burst of packets to descriptors; `ring`: the descriptors, with the buffers that belong to
//!   them;
//! - what these two use when it is asked for: `rx_offload`, `tx_offload`, `mapped` (buffers of guests), `completion`,
//!   `interrupt`.
//!
//! Section numbers without the name of a card refer to the *Intel 82599 10 GbE Controller Datasheet*, except in `igb`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod completion;
mod device;
mod family;
mod frame;
pub mod igb;
mod interrupt;
pub mod ixgbe;
mod mapped;
mod memory;
mod port;
mod ring;
mod rss;
mod rx;
mod rx_offload;
mod tx;
mod tx_offload;
mod vector;

pub use port::IntelPort;
