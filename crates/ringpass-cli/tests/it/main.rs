//! The program `ringpass` from its command line, with the kernel, DPDK and its own kind at the other end.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod closed_output;
mod control;
mod demo;
mod disk_full;
mod examples;
mod fuzz;
mod generate;
mod idle;
mod kernel_traffic;
mod log;
mod mapped;
mod metrics;
mod native_driver;
mod netmap;
mod netmap_budget;
mod netmap_exchange;
mod netmap_host;
mod netmap_native;
mod netmap_requests;
mod offloads;
mod readme;
mod rejoin;
mod replay;
mod sandbox;
mod security_page;
mod service;
mod signals;
mod silent_files;
mod soak;
mod switch;
mod switch_hostile;
mod switch_mapped;
mod switch_vxlan;
mod verbosity;
mod vfio_user;
mod vhost_dpdk;
mod vhost_kills;
mod vhost_restart;
mod virtio_user;
mod virtio_user_dpdk;
mod virtio_user_passt;
mod xdp;
