//! The vhost port: frames, offloads, sessions, and buffers that a guest lends.

mod allocation;
mod common;
mod frames;
mod fuzz;
mod hostile;
mod hostile_mapped;
mod mapped;
mod migration;
mod offloads;
mod queues;
mod sessions;
