//! vfio-user: messages, clients, and servers with hostile clients.

mod client;
mod common;
mod fuzz;
mod hostile;
mod parser;
mod resources;
