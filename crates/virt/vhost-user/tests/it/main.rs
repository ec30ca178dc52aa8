//! vhost-user: messages, memory and rings of honest and of hostile front-ends.

mod common;
mod fuzz;
mod hostile_memory;
mod hostile_messages;
mod hostile_rings;
mod life;
mod qemu;
mod resources;
mod server;
