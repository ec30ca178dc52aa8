//! The server of netmap ports: requests, VALE, native ports, monitors.

mod exchange;
mod handover;
mod headers;
mod monitor;
mod native;
mod programs;
mod server;
mod vale;
mod vale_hostile;
mod vale_sleep;
mod wires;
