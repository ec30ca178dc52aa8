//! Figures to compare with. *ixy* is Emmerich et al., *User Space Network Drivers*: a value stands here only
//! if the text or a table of the paper has it; its plots are not read off.

use super::measure::Stage;

/// Cycles per packet of a forwarder, by stage; `None` where the paper gives none.
pub struct Forwarder {
    pub name: &'static str,
    pub stages: [Option<f64>; 5],
}

/// Table 1, batch 32, Intel X520 at 1.2 GHz; the totals are those of section 5.1.
pub const TABLE_1: [Forwarder; 3] = [
    Forwarder { name: "ixy", stages: [Some(44.8), Some(14.7), Some(12.3), Some(30.4), Some(96.0)] },
    Forwarder { name: "ixy inlined", stages: [Some(57.0), Some(28.3), Some(12.5), None, None] },
    Forwarder { name: "DPDK", stages: [Some(35.4), Some(20.4), Some(6.1), None, Some(61.0)] },
];

impl Forwarder {
    /// Cycles of a stage.
    pub fn cycles(&self, stage: Stage) -> Option<f64> {
        self.stages[stage as usize]
    }
}

/// Section 5.1: DPDK's forwarder without its vector path for sending, cycles per packet.
pub const DPDK_SCALAR: f64 = 91.0;

/// Section 5.3: what a batch of 32 saves against none, cycles per packet. With the 96 of section 5.1 that makes a
/// packet without batching cost 396.
pub const SAVED_BY_BATCHING: f64 = 300.0;

/// Figure 5, in the words of section 5.4.
pub const RING_SIZES: &str = "no measurable effect on throughput above 64 descriptors";

/// Section 5.5 (figure 6): what huge pages gain, in percent.
pub const HUGE_PAGES_AT_4096: f64 = 5.5;
/// As above, with smaller rings: from and to.
pub const HUGE_PAGES: (f64, f64) = (1.0, 3.0);

/// A driver that was measured as `bench driver` measures: rings filled beforehand, one thread, frames of 60 bytes,
/// batch 32; on a virtual machine with two cores at 2.7 GHz, so the cycles are to be compared with care.
pub struct Peer {
    pub name: &'static str,
    /// Cycles per packet, from and to.
    pub cycles: (f64, f64),
    /// Instructions per packet.
    pub instructions: f64,
}

/// ixy, and Debian's DPDK.
pub const PEERS: [Peer; 3] = [
    Peer { name: "ixy (C)", cycles: (46.0, 61.0), instructions: 128.0 },
    Peer { name: "DPDK 22.11, vector", cycles: (52.0, 52.0), instructions: 114.0 },
    Peer { name: "DPDK 22.11, scalar", cycles: (52.0, 53.0), instructions: 180.0 },
];

/// Which of the two loads of Table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// The forwarder keeps up: 15 Mpps in the paper.
    Below,
    /// It does not, and packets are lost: 29 Mpps in the paper.
    Above,
}

impl Load {
    /// In tables and JSON.
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

/// Table 2: latency of ixy's forwarder on hardware, where some 7 µs are those of cards and cables.
pub const TABLE_2: [Latency; 6] = [
    Latency { ring: 64, load: Load::Below, us: [7.7, 8.8, 9.6] },
    Latency { ring: 512, load: Load::Below, us: [7.7, 8.9, 9.9] },
    Latency { ring: 4096, load: Load::Below, us: [7.9, 9.2, 11.1] },
    Latency { ring: 64, load: Load::Above, us: [10.7, 11.5, 13.0] },
    Latency { ring: 512, load: Load::Above, us: [53.3, 54.7, 56.7] },
    Latency { ring: 4096, load: Load::Above, us: [427.1, 435.4, 444.5] },
];
