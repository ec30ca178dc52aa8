//! What the tests of several crates share.
//!
//! Real peers (network namespaces, guests, programs) are in `ringpass-lab`.

#![deny(unsafe_code)]

mod allocation;
mod descriptors;
mod packets;
mod poll_until;
mod random;
mod stop;
mod wire;

pub use allocation::{CountingAllocator, allocations, allocator_calls};
pub use descriptors::{event, memfd, resources, send, wait_for};
pub use packets::{bytes_of, frame, packet, scattered};
pub use poll_until::poll_until;
pub use random::Random;
pub use stop::Stop;
pub use wire::{Frames, Sink, Wire};
