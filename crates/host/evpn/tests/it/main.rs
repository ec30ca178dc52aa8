//! A follower and the kernel's tables, which these tests fill in place of FRR. They need root: each has a network namespace of its own.

mod rig;
mod tables;
