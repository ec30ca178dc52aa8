//! The model of the virtio network card, held to the specification by a driver of a few lines: one test for each
//! behaviour, stepped by hand with a scripted wire.

#[allow(dead_code, reason = "other tests use the rest")]
mod driver;
mod receive;
mod wire;
mod transmit;
