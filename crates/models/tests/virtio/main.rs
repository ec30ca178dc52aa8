//! The model of the virtio network card, held to the specification by a driver of a few lines: one test for each
//! behaviour, stepped by hand with a scripted wire.

mod control;
#[allow(dead_code, reason = "each test uses a part")]
mod driver;
mod interrupts;
mod lies;
mod malformed;
mod offloads;
mod receive;
mod registers;
mod served;
mod transmit;
mod wire;
