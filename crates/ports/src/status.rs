//! What the queues of a port report to its control side: counters, and why it is gone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_memory::{Flags, Packet};
use ringpass_port::{State, Stats};

/// Counters of one direction of one queue; cache lines of their own, since each belongs to another thread.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    drops: AtomicU64,
}

impl Counters {
    /// Adds what became of a burst: packets that came through, their bytes, and packets that were lost.
    #[inline]
    pub(crate) fn count(&self, packets: usize, bytes: usize, drops: usize) {
        for (counter, n) in [(&self.packets, packets), (&self.bytes, bytes), (&self.drops, drops)] {
            if n > 0 {
                counter.fetch_add(n as u64, Relaxed);
            }
        }
    }
}

/// Shared by a port and its queues.
pub(crate) struct Status {
    rx: Box<[Counters]>,
    tx: Box<[Counters]>,
    gone: OnceLock<String>,
}

impl Status {
    pub(crate) fn new(queues: usize) -> Self {
        let counters = || (0..queues).map(|_| Counters::default()).collect();
        Self { rx: counters(), tx: counters(), gone: OnceLock::new() }
    }

    pub(crate) fn rx(&self, queue: usize) -> &Counters {
        &self.rx[queue]
    }

    pub(crate) fn tx(&self, queue: usize) -> &Counters {
        &self.tx[queue]
    }

    pub(crate) fn stats(&self) -> Stats {
        let sum = |all: &[Counters], field: fn(&Counters) -> &AtomicU64| {
            all.iter().map(|counters| field(counters).load(Relaxed)).sum::<u64>()
        };
        Stats {
            rx_packets: sum(&self.rx, |c| &c.packets),
            rx_bytes: sum(&self.rx, |c| &c.bytes),
            rx_drops: sum(&self.rx, |c| &c.drops),
            tx_packets: sum(&self.tx, |c| &c.packets),
            tx_bytes: sum(&self.tx, |c| &c.bytes),
            tx_drops: sum(&self.tx, |c| &c.drops),
        }
    }

    /// The first reason stays.
    #[cold]
    pub(crate) fn set_gone(&self, why: impl FnOnce() -> String) {
        self.gone.get_or_init(why);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get().is_some()
    }

    pub(crate) fn state(&self) -> State {
        self.gone.get().map_or(State::Running, |why| State::Gone(why.clone()))
    }
}

/// Ethernet's header with a VLAN tag.
pub(crate) const LONGEST_HEADER: usize = 18;

/// Whether a packet is one that a port with this MTU passes: at least a header (14 bytes), at most header and payload,
/// and 4 bytes more with a VLAN tag (IEEE 802.3, 3.2.7). What is to be cut into frames passes if these do.
#[inline]
pub(crate) fn passes(packet: &Packet, mtu: usize) -> bool {
    if packet.flags().any(Flags::CHAINED | Flags::TSO | Flags::VLAN) {
        return unusual_passes(packet, mtu);
    }
    frame_passes(packet, packet.len(), mtu)
}

/// Likewise for a frame of `len` bytes that begins with these.
#[inline]
pub(crate) fn frame_passes(frame: &[u8], len: usize, mtu: usize) -> bool {
    const HEADER: usize = 14;
    let tag = if matches!(frame.get(12..14), Some([0x81, 0] | [0x88, 0xa8])) { 4 } else { 0 };
    (HEADER..=HEADER + mtu + tag).contains(&len)
}

#[inline(never)]
fn unusual_passes(packet: &Packet, mtu: usize) -> bool {
    // The longest that IP has; behind two tags.
    const LONGEST: usize = 14 + 8 + 65535;
    let total = packet.total_len();
    let frame = match (packet.headers(), packet.mss()) {
        (Some(headers), Some(mss)) => total.min(headers.payload_start() + usize::from(mss)),
        _ => total,
    };
    // A tag beside the frame is not among its bytes, and one may be longer than the MTU for one tag only.
    let tagged = matches!(packet.get(12..14), Some([0x81, 0] | [0x88, 0xa8]));
    let beside = if packet.vlan().is_some() && tagged { 4 } else { 0 };
    total <= LONGEST && frame_passes(packet, frame + beside, mtu)
}

#[cfg(test)]
mod tests {
    use ringpass_memory::{Headers, L4, Mempool, MempoolConfig};

    use super::*;

    #[test]
    fn frames_pass_up_to_the_mtu_and_a_tag() {
        let mut frame = [0; 1600];
        let passes = |frame: &[u8]| frame_passes(frame, frame.len(), 1500);
        assert!(!passes(&frame[..13]) && passes(&frame[..14]));
        assert!(passes(&frame[..1514]) && !passes(&frame[..1515]));
        frame[12] = 0x81;
        assert!(passes(&frame[..1518]) && !passes(&frame[..1519]));
    }

    #[test]
    fn chains_segments_and_tags_beside_the_frame_count_as_what_is_sent() {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let packet = |len| {
            let mut packet = pool.alloc().unwrap();
            packet.set_len(len);
            packet.fill(0);
            packet
        };
        let mut chained = packet(1000);
        chained.append(packet(514));
        assert!(passes(&chained, 1500));
        chained.append(packet(1));
        assert!(!passes(&chained, 1500) && passes(&chained, 1501));
        let headers = Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp };
        chained.request_segmentation(1460, headers);
        assert!(passes(&chained, 1500));
        chained.request_segmentation(1461, headers);
        assert!(!passes(&chained, 1500));

        let mut tagged = packet(1514);
        tagged.set_vlan(1);
        assert!(passes(&tagged, 1500), "four bytes more with its tag");
        tagged.set_len(1518);
        tagged[12] = 0x81;
        assert!(!passes(&tagged, 1500), "two tags");
    }
}
