//! The virtio-net driver on models, in guests, and with cards that lie.

mod common;
mod guest_transport;
mod lying_card;
mod no_alloc;
mod offloads;
mod on_the_model;
mod vector;
