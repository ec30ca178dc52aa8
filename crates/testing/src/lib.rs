//! What the tests of several crates share.
//!
//! Real peers (network namespaces, guests, programs) are in `ringpass-lab`.

#![deny(unsafe_code)]

mod allocation;
mod case_input;
mod descriptors;
mod guarded_memory;
pub mod mutations;
mod packets;
mod poll_until;
mod random;
mod stop;
mod wire;

pub use allocation::{CountingAllocator, allocations, allocator_calls};
pub use case_input::{CaseInput, runs_over_a_socket};
pub use descriptors::{event, memfd, resources, send, wait_for};
pub use guarded_memory::GuardedMemory;
pub use packets::{bytes_of, frame, packet, scattered};
pub use poll_until::poll_until;
pub use random::Random;
pub use stop::Stop;
pub use wire::{Frames, Sink, Wire};
