//! The program `ringpass` with guests: Linux, DPDK and Ringpass itself in virtual machines at the other end.

#[path = "../common/mod.rs"]
mod common;

mod bench_guests;
mod guest_bridge;
mod guest_dpdk;
mod guest_evpn;
mod guest_igb;
mod guest_in_use;
mod guest_link;
mod guest_list;
mod guest_lives;
mod guest_migration;
mod guest_netmap;
mod guest_netmap_lives;
mod guest_offloads;
mod guest_own_driver;
mod guest_package;
mod guest_probes;
mod guest_ptnet;
mod guest_queues;
mod guest_service;
mod guest_shell;
mod guest_switch;
mod guest_vfio_mapped;
mod guest_vhost;
mod guest_vhost_mapped;
mod guest_vhost_memory;
mod guest_vhost_restart;
mod guest_vhost_switch;
mod guest_vhost_two;
mod guest_vhost_vxlan;
mod guest_virtio;
mod guest_virtio_buses;
mod guest_virtio_model;
mod guest_virtio_offloads;
mod guest_vlan;
mod guest_xdp;
