//! What the drivers of Intel's cards have in common: rings of advanced descriptors, which the 82576 brought and the 82599
//! and its successors kept, with the queues that use them.
//!
//! Sections are those of the *Intel 82599 10 GbE Controller Datasheet*. Where the cards differ, the drivers say so: which
//! registers a queue has ([`Ring::new`]), and which bits mean errors ([`RxErrors`]).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod device;
mod hang;
mod head_write_back;
mod interrupt;
mod mapped;
mod memory;
mod ring;
mod rx;
mod rx_offload;
mod tx;
mod tx_offload;

pub use device::{Device, Setup, check};
pub use hang::Hang;
pub use head_write_back::WrittenHead;
pub use interrupt::Interrupt;
pub use memory::{Memory, ring_memory};
pub use ring::{Descriptors, Ring};
pub use rx::Rx;
pub use rx_offload::RxErrors;
pub use tx::{OVERHEAD, Tx};
