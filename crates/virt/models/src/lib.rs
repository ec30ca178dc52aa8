//! Exact in-process software models of network cards: the driver's side of a device (its PCI function) and the
//! wire's side.
//!
//! A model has no thread of its own. Tests step it by hand; a [`Runner`] steps it for a program.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod dma;
pub mod ixgbe;
pub mod lies;
mod model;
mod model_set;
mod runner;
mod step;
mod stepper;
mod vector;
pub mod virtio;

pub use model::{Interest, Model};
pub use runner::Runner;
pub use step::{Step, StepLine, Who};
pub use stepper::Stepper;
