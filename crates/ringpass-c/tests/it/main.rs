//! The C library: its header, and the examples as C programs.

mod examples;
mod header;
