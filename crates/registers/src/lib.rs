//! Device registers: one table, in the datasheet's own grammar, gives the driver typed access through a [`Window`],
//! the model its [`RegisterFile`], and the documentation its lines.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bell;
mod file;
pub mod igb;
mod io;
pub mod ixgbe;
pub mod ptnet;
mod table;
mod window;

pub use bell::{Bell, Sleeper};
pub use file::{Access, RegisterFile};
pub use io::IoRegion;
pub use table::{DMA, Kind, RC, RO, RW, Readable, Reg, RegArray, Row, W1C, W1S, WO, Writable, assert_disjoint};
pub use window::{Bar, Doorbell, Timeout, Window};
