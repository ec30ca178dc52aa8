//! Exact software models of network cards, in the process: what a driver sees of a card through its bus, and what the
//! wire sees of it on the other side.
//!
//! A model has no thread of its own. Tests step it by hand; a [`Runner`] steps it for a program.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[allow(unsafe_code)]
mod dma;
pub mod ixgbe;
pub mod lies;
mod runner;
mod vector;
pub mod virtio;

pub use runner::{Model, Runner, Wants};
use vector::vectors;
