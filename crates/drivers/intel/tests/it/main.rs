//! The drivers of Intel's cards on fake registers, on models, and with cards that lie.

mod common;
mod igb_registers;
mod lying_card;
mod mapped;
mod no_alloc;
mod offloads;
mod on_the_model;
mod vector;
