//! Statistics registers (section 8.19). All of them clear on read, so the values are summed here.

use std::time::{Duration, Instant};

use ringpass_pci::registers::igb::*;
use ringpass_pci::registers::{RC, Reg, Window};
use ringpass_port::Stats;

/// Length of a frame's CRC in bytes, which the card's octet counters include.
const CRC: u64 = 4;

/// Counters beyond a port's usual statistics. Frames that are too short do not count as drops of the port:
/// QEMU's card counts those that it pads and delivers.
const EXTENDED: [(&str, Reg<RC>); 16] = [
    ("rx_crc_errors", CRCERRS),
    ("rx_alignment_errors", ALGNERRC),
    ("rx_symbol_errors", SYMERRS),
    ("rx_errors", RXERRC),
    ("rx_length_errors", RLEC),
    ("rx_too_long", ROC),
    ("rx_jabber", RJC),
    ("rx_missed", MPC),
    ("rx_no_buffers", RNBC),
    ("rx_too_short", RUC),
    ("rx_fragments", RFC),
    ("rx_multicast", MPRC),
    ("rx_broadcast", BPRC),
    ("tx_multicast", MPTC),
    ("tx_broadcast", BPTC),
    ("rx_xoff", XOFFRXC),
];
/// Counters of lost frames: wrong CRC (which includes wrong alignment), wrong lengths, and no room in the card.
const LOST_FRAME_COUNTERS: [Reg<RC>; 5] = [CRCERRS, RLEC, ROC, RJC, MPC];

/// Counters beyond a port's usual statistics, and what the octet counters remember.
#[derive(Default)]
pub(crate) struct Counters {
    /// In the order of [`EXTENDED`], then the frames of all queues that found no descriptor.
    extended: [u64; EXTENDED.len() + 1],
    /// Octets received and sent.
    octets: [Octets; 2],
}

impl Counters {
    /// Clears the card's counters. The sums begin at zero.
    pub(crate) fn start(window: &Window) -> Self {
        let mut counters = Self::default();
        counters.count(window, &mut Stats::default());
        counters.extended = Default::default();
        counters
    }

    pub(crate) fn extended(&self) -> Vec<(&'static str, u64)> {
        let names = EXTENDED.iter().map(|&(name, _)| name).chain(["rx_no_descriptors"]);
        names.zip(self.extended).collect()
    }

    /// Adds what the card has counted since the last call.
    pub(crate) fn count(&mut self, window: &Window, stats: &mut Stats) {
        let read = |register| u64::from(window.read(register));
        let [octets_received, octets_sent] = &mut self.octets;
        // The card counts a frame as received before it finds no descriptor for it. The counters of its queues
        // have 12 bits.
        let no_descriptors = (0..QUEUES).map(|q| read(RQDPC.at(q)) & 0xfff).sum::<u64>();
        stats.rx_drops += no_descriptors;
        let received = read(GPRC);
        stats.rx_packets = (stats.rx_packets + received).saturating_sub(no_descriptors);
        // Subtract the CRCs from the running sums, not from these readings: a frame that arrived between the
        // two reads has its octets in this reading and its count in the next.
        let octets = octets_received.since(window, [GORCL, GORCH]);
        stats.rx_bytes = (stats.rx_bytes + octets).saturating_sub(CRC * received);
        let sent = read(GPTC);
        stats.tx_packets += sent;
        let octets = octets_sent.since(window, [GOTCL, GOTCH]);
        stats.tx_bytes = (stats.tx_bytes + octets).saturating_sub(CRC * sent);
        for ((_, register), sum) in EXTENDED.iter().zip(&mut self.extended) {
            let count = read(*register);
            *sum += count;
            if LOST_FRAME_COUNTERS.iter().any(|lost| lost.offset == register.offset) {
                stats.rx_drops += count;
            }
        }
        self.extended[EXTENDED.len()] += no_descriptors;
    }
}

/// A pair of octet counter registers. Reading the high register clears both, and with them what was counted
/// since the low one was read. So the high register is read only when the low one, which wraps after 4 GiB, may
/// have wrapped.
#[derive(Default)]
struct Octets {
    /// Octets already reported since the registers were last cleared.
    seen: u64,
    read: Option<Instant>,
}

impl Octets {
    const ROUND: Duration = Duration::from_secs(2);

    /// Returns the octets counted since the last call.
    fn since(&mut self, window: &Window, [low, high]: [Reg<RC>; 2]) -> u64 {
        let (low, now) = (window.read(low), Instant::now());
        if self.read.replace(now).is_some_and(|last| now - last < Self::ROUND) {
            let new = u64::from(low.wrapping_sub(self.seen as u32));
            self.seen += new;
            return new;
        }
        let all = u64::from(low) + (u64::from(window.read(high)) << 32);
        all.saturating_sub(std::mem::take(&mut self.seen))
    }
}
