//! The program `ringpass-bench` from its command line.

mod program;
