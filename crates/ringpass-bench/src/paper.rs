//! Values of papers to compare with. *ixy* is Emmerich et al., *User Space Network Drivers*. Only values in the
//! text or the tables of the paper are used; none were read off its plots.

use super::measure::Stage;

/// Cycles per packet of a forwarder, by stage; `None` if the paper has no value.
pub struct Forwarder {
    pub name: &'static str,
    pub stages: [Option<f64>; 5],
}

/// Table 1: batch 32, Intel X520 at 1.2 GHz. The totals are those of section 5.1.
pub const TABLE_1: [Forwarder; 3] = [
    Forwarder { name: "ixy", stages: [Some(44.8), Some(14.7), Some(12.3), Some(30.4), Some(96.0)] },
    Forwarder { name: "ixy inlined", stages: [Some(57.0), Some(28.3), Some(12.5), None, None] },
    Forwarder { name: "DPDK", stages: [Some(35.4), Some(20.4), Some(6.1), None, Some(61.0)] },
];

impl Forwarder {
    /// Returns the cycles of a stage.
    pub fn cycles(&self, stage: Stage) -> Option<f64> {
        self.stages[stage as usize]
    }
}

/// Cycles per packet of DPDK's forwarder without its vector Tx path (section 5.1).
pub const DPDK_SCALAR: f64 = 91.0;

/// Cycles per packet that a batch of 32 saves, compared with no batching (section 5.3). With the 96 of section
/// 5.1, a packet without batching costs 396.
pub const SAVED_BY_BATCHING: f64 = 300.0;

/// Result of figure 5, in the words of section 5.4.
pub const RING_SIZES: &str = "no measurable effect on throughput above 64 descriptors";

/// Gain of huge pages with rings of 4096, in percent (section 5.5, figure 6).
pub const HUGE_PAGES_AT_4096: f64 = 5.5;
/// Range of the gain of huge pages with smaller rings, in percent (section 5.5, figure 6).
pub const HUGE_PAGES: (f64, f64) = (1.0, 3.0);

/// A driver measured with the method of `bench driver`: rings filled beforehand, one thread, frames of 60
/// bytes, batch 32. It ran on a virtual machine with two cores at 2.7 GHz, so compare cycles with care.
pub struct Peer {
    pub name: &'static str,
    /// Range of cycles per packet.
    pub cycles: (f64, f64),
    /// Instructions per packet.
    pub instructions: f64,
}

/// Measurements of ixy, and of DPDK as packaged by Debian.
pub const PEERS: [Peer; 3] = [
    Peer { name: "ixy (C)", cycles: (46.0, 61.0), instructions: 128.0 },
    Peer { name: "DPDK 22.11, vector", cycles: (52.0, 52.0), instructions: 114.0 },
    Peer { name: "DPDK 22.11, scalar", cycles: (52.0, 53.0), instructions: 180.0 },
];

/// One of the two loads of Table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// The forwarder keeps up: 15 Mpps in the paper.
    Below,
    /// The forwarder is overloaded and packets are lost: 29 Mpps in the paper.
    Above,
}

impl Load {
    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Below => "below",
            Self::Above => "above",
        }
    }
}

/// A row of Table 2.
pub struct Latency {
    pub ring: usize,
    pub load: Load,
    /// Median, 99th and 99.9th percentile in microseconds.
    pub us: [f64; 3],
}

/// Table 2: latency of ixy's forwarder on hardware, of which cards and cables take about 7 µs.
pub const TABLE_2: [Latency; 6] = [
    Latency { ring: 64, load: Load::Below, us: [7.7, 8.8, 9.6] },
    Latency { ring: 512, load: Load::Below, us: [7.7, 8.9, 9.9] },
    Latency { ring: 4096, load: Load::Below, us: [7.9, 9.2, 11.1] },
    Latency { ring: 64, load: Load::Above, us: [10.7, 11.5, 13.0] },
    Latency { ring: 512, load: Load::Above, us: [53.3, 54.7, 56.7] },
    Latency { ring: 4096, load: Load::Above, us: [427.1, 435.4, 444.5] },
];
