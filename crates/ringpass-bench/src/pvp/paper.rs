//! Values of Kawashima, *Software Physical/Virtual Rx Queue Mapping Toward High-Performance Containerized
//! Networking* (IOVTee). Only values in its text and tables are used; none were read off its plots. Its
//! machine: i9-7940X at 3.1 GHz, 100 Gbit/s, DPDK 19.11, each thread on a core of its own.

/// Range in Mpps, from and to.
pub type Range = (f64, f64);

/// A heat map of figures 9 and 10, with virtual Tx rings of 256 or 1024.
pub struct PaperMap {
    pub size: usize,
    pub virtual_tx: usize,
    /// Rates with copies and with mapped Rx queues; `None` if the text has no value.
    pub copied: Option<Range>,
    pub mapped: Option<Range>,
}

/// Section V-A. The rate of mapped queues at 64 bytes with a virtual Tx ring of 1024 is only described as
/// lower.
pub const MAPS: [PaperMap; 4] = [
    PaperMap { size: 64, virtual_tx: 256, copied: Some((14.0, 15.0)), mapped: Some((18.0, 22.0)) },
    PaperMap { size: 64, virtual_tx: 1024, copied: Some((8.0, 10.0)), mapped: None },
    PaperMap { size: 1514, virtual_tx: 256, copied: Some((1.8, 2.1)), mapped: Some((5.0, 6.1)) },
    PaperMap { size: 1514, virtual_tx: 1024, copied: Some((2.0, 2.9)), mapped: Some((4.6, 5.9)) },
];

/// Conclusions of the paper on ring sizes, paraphrased.
pub const RING_SIZES: [&str; 3] = [
    "best: physical Rx 64 to 1024; virtual Rx 512 to 8192 copying, 128 to 2048 mapped (64 B), 512 to 4096 mapped (1514 B)",
    "a virtual Tx ring of 1024 instead of 256 costs a third to half at 64 B",
    "the physical Tx ring hardly matters",
];

/// Gain of mapped queues over copying in percent, by frame size (abstract and section VII).
pub const GAINS: [(usize, f64); 2] = [(64, 45.0), (1514, 98.0)];

/// Rates in Mpps at 64 bytes with packed rings: copying, mapped, and the switch without a guest (section V-B2).
pub const PACKED_COPIED: f64 = 20.0;
pub const PACKED_MAPPED: f64 = 24.66;
pub const BARE_METAL: f64 = 38.48;
