//! What Kawashima, *Software Physical/Virtual Rx Queue Mapping Toward High-Performance Containerized Networking* (IOVTee)
//! says in its text and tables; its plots are not read off. Its machine: i9-7940X at 3.1 GHz, 100 Gbit/s, DPDK 19.11, each
//! thread on a core of its own.

/// Mpps, from and to.
pub type Range = (f64, f64);

/// A heat map of figures 9 and 10: virtual Tx rings of 256 or 1024.
pub struct Map {
    pub size: usize,
    pub virtual_tx: usize,
    /// Copying, and with mapped Rx queues; where the text has it.
    pub copied: Option<Range>,
    pub mapped: Option<Range>,
}

/// Section V-A. That of mapped queues at 64 bytes with a virtual Tx ring of 1024 is only said to be lower.
pub const MAPS: [Map; 4] = [
    Map { size: 64, virtual_tx: 256, copied: Some((14.0, 15.0)), mapped: Some((18.0, 22.0)) },
    Map { size: 64, virtual_tx: 1024, copied: Some((8.0, 10.0)), mapped: None },
    Map { size: 1514, virtual_tx: 256, copied: Some((1.8, 2.1)), mapped: Some((5.0, 6.1)) },
    Map { size: 1514, virtual_tx: 1024, copied: Some((2.0, 2.9)), mapped: Some((4.6, 5.9)) },
];

/// What it concludes of them, in other words.
pub const RING_SIZES: [&str; 3] = [
    "best: physical Rx 64 to 1024; virtual Rx 512 to 8192 copying, 128 to 2048 mapped (64 B), 512 to 4096 mapped (1514 B)",
    "a virtual Tx ring of 1024 instead of 256 costs a third to half at 64 B",
    "the physical Tx ring hardly matters",
];

/// Gain of mapped queues over copying in percent, by size (abstract and section VII).
pub const GAINS: [(usize, f64); 2] = [(64, 45.0), (1514, 98.0)];

/// Section V-B2, 64 bytes, packed rings: copying, mapped; and the switch without a guest.
pub const PACKED_COPIED: f64 = 20.0;
pub const PACKED_MAPPED: f64 = 24.66;
pub const BARE_METAL: f64 = 38.48;
