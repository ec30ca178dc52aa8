//! Device registers. One table, in the datasheet's own terms, gives the driver typed access through a
//! [`Window`], the model its [`RegisterFile`], and the documentation of each register.

mod file;
pub mod igb;
mod io;
pub mod ixgbe;
pub mod ptnet;
mod table;
mod waker;
mod window;

pub use file::{RegIndex, RegisterFile};
pub use io::IoRegion;
pub use table::{AccessKind, DMA, RC, RO, RW, Readable, Reg, RegArray, Row, W1C, W1S, WO, Writable, assert_disjoint};
pub use waker::{DeviceSleeper, DeviceWaker};
pub use window::{Bar, Doorbell, Timeout, Window};
