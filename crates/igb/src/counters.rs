//! Statistics (section 8.19). All registers clear when read, so they are added up here.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ringpass_intel::Device;
use ringpass_port::Stats;
use ringpass_registers::igb::*;
use ringpass_registers::{RC, Reg, Window};

/// The bytes of a frame's CRC, which the card counts.
const CRC: u64 = 4;

/// What is counted beside a port's usual statistics. Frames that are too short are not among the port's drops: QEMU's card
/// counts those that it pads and delivers.
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
/// How many of these are frames that were lost: those with a wrong CRC (which has those of wrong alignment too), of wrong
/// lengths, and those that found no room in the card.
const LOST: [Reg<RC>; 5] = [CRCERRS, RLEC, ROC, RJC, MPC];

/// What was counted since the port was opened.
#[derive(Default)]
pub(crate) struct Counters {
    stats: Stats,
    /// In the order of [`EXTENDED`], then frames for which a queue had no descriptor, of all queues.
    extended: [u64; EXTENDED.len() + 1],
    /// Received and sent.
    octets: [Octets; 2],
}

impl Counters {
    /// Forgets what was counted so far.
    pub(crate) fn clear(&mut self, device: &Device) {
        self.update(device);
        (self.stats, self.extended) = Default::default();
    }

    pub(crate) fn stats(&mut self, device: &Device) -> Stats {
        self.update(device);
        self.stats
    }

    pub(crate) fn extended(&mut self, device: &Device) -> Vec<(&'static str, u64)> {
        self.update(device);
        let names = EXTENDED.iter().map(|&(name, _)| name).chain(["rx_no_descriptors"]);
        names.zip(self.extended).collect()
    }

    /// Of a card that is gone the last counts stay.
    fn update(&mut self, device: &Device) {
        if device.window.read(STATUS) == u32::MAX {
            return;
        }
        let read = |register| u64::from(device.window.read(register));
        let [octets_received, octets_sent] = &mut self.octets;
        let stats = &mut self.stats;
        // The card has counted a frame as received before it finds no descriptor. Its queues count 12 bits.
        let no_descriptors = (0..QUEUES).map(|q| read(RQDPC.at(q)) & 0xfff).sum::<u64>();
        stats.rx_drops += no_descriptors + device.rx_faulty.swap(0, Ordering::Relaxed);
        let received = read(GPRC);
        stats.rx_packets = (stats.rx_packets + received).saturating_sub(no_descriptors);
        // From the sums: a frame that came between these reads has its octets in this round, and its count in the next.
        let octets = octets_received.since(&device.window, [GORCL, GORCH]);
        stats.rx_bytes = (stats.rx_bytes + octets).saturating_sub(CRC * received);
        let sent = read(GPTC);
        stats.tx_packets += sent;
        let octets = octets_sent.since(&device.window, [GOTCL, GOTCH]);
        stats.tx_bytes = (stats.tx_bytes + octets).saturating_sub(CRC * sent);
        stats.tx_drops += device.tx_refused.swap(0, Ordering::Relaxed);
        for ((_, register), sum) in EXTENDED.iter().zip(&mut self.extended) {
            let count = read(*register);
            *sum += count;
            if LOST.iter().any(|lost| lost.offset == register.offset) {
                stats.rx_drops += count;
            }
        }
        self.extended[EXTENDED.len()] += no_descriptors;
    }
}

/// A pair of registers, which clear both when the high one is read, with what was counted since the low one was read. So the
/// high one is left alone as long as the low one, of 4 GiB, cannot have gone round.
#[derive(Default)]
struct Octets {
    /// What they have counted since they were cleared, as far as it is known.
    seen: u64,
    read: Option<Instant>,
}

impl Octets {
    const ROUND: Duration = Duration::from_secs(2);

    /// What they have counted since the last time.
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
