//! Tests of the 82599 model against the datasheet with a minimal driver: one test for each behaviour, stepped
//! by hand with a scripted wire.

mod checksums;
mod director;
mod dma;
pub mod driver;
mod eeprom;
mod filters;
mod hostile;
mod interrupts;
mod jumbo;
mod lies;
mod packets;
mod phy;
mod pools;
mod receive;
mod registers;
mod rss;
mod segmentation;
mod statistics;
mod transmit;
mod tuples;
mod vlan;
mod wires;
