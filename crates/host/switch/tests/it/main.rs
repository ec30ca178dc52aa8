//! The switch against an oracle, and its shares, places and tunnels.

mod allocation;
mod common;
mod fuzz;
mod oracle;
mod places;
mod shares;
mod streams;
mod switching;
mod vxlan;
