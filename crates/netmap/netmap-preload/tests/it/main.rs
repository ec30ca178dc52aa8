//! The preload library under programs that were written for netmap.

mod abi;
mod programs;
mod requests;
mod speed;
mod start;
mod support;
mod vale;
mod waiting;
