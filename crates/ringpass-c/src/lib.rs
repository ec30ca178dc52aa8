//! `libringpass.so`: the library `ringpass` for C. The header, include/ringpass.h, is made from the comments here.
//!
//! Every function catches panics and checks what can be checked. What cannot be (that a pointer is valid, that a queue is
//! used by one thread) is in its `# Safety` section, which is in the header, too.

mod config;
mod packet;
mod ports;
mod queue;
mod status;
#[cfg(test)]
mod tests;

pub use config::*;
pub use packet::*;
pub use ports::*;
pub use queue::*;
pub use status::*;
