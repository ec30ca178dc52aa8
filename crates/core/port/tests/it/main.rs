//! Lending of buffers.

mod lending;
