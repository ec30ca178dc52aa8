//! netmap ports: rings, memory, pipes and the side of programs.

mod fuzz;
mod kring;
mod pipe;
mod port_memory;
mod queues;
mod region;
mod shared_pool;
mod tap;
