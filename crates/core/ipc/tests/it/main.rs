//! Messages, descriptors and signals of processes that are not trusted.

mod closing;
mod listener;
mod shortage;
mod signal;
