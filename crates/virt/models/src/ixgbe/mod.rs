//! The Intel 82599 and its successors, seen from the driver's side (registers, descriptors, statistics) and
//! from the wire's. Section numbers refer to the *Intel 82599 10 GbE Controller Datasheet*, revision 3.4.
//!
//! Not modelled: flow control, DCB's arbitration, switching of sent frames between pools, virtual functions,
//! coalescing (RSC), FCoE, IPsec and MACsec, time stamps. Frames on this wire never have a bad CRC.

mod bits;
mod card;
mod checksum;
mod common;
mod config;
mod crc;
mod decode;
mod device;
mod director;
mod doorbells;
mod eeprom;
mod fifo;
mod filter;
mod headers;
mod interrupts;
mod liar;
mod lies;
mod limits;
mod link;
mod lying;
mod mdio;
mod media;
mod memory;
mod offload;
mod polled_function;
mod pools;
mod receive;
mod registers;
mod rss;
mod rx;
mod segment;
mod sfp;
mod spi;
mod stats;
mod steering;
mod stepping;
mod trace;
mod tx;
mod tx_context;
mod vfio_user_function;

pub use crate::Interest;
pub use crate::lies::When;
pub use card::Card;
pub use config::CardConfig;
pub use lies::{Lie, Lies};
pub use polled_function::PolledFunction;
pub use stats::Counters;
pub use vfio_user_function::VfioUserFunction;
