//! netmap ports: the side of programs, the server, VALE, pipes and monitors.

mod exchange;
mod fuzz;
mod kring;
mod monitor;
mod native;
mod pipe;
mod port_memory;
mod programs;
mod queues;
mod region;
mod server;
mod shared_pool;
mod vale;
mod vale_hostile;
mod vale_sleep;
mod wires;
