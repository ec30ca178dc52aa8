//! Tests of the virtio network model against the specification with a minimal driver: one test for each
//! behaviour, stepped by hand with a scripted wire.

mod control;
#[allow(dead_code, reason = "each test uses a part")]
pub mod driver;
mod interrupts;
mod lies;
mod malformed;
mod offloads;
mod receive;
mod registers;
mod served;
mod transmit;
