//! The sending queue (sections 1.8.1 and 7.2).

use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Packet, Reclaimer};
use ringpass_port::{Error, TxQueue};
use ringpass_registers::ixgbe::descriptor::*;

use crate::device::Setup;
use crate::hang::Watch;
use crate::head_write_back::WrittenHead;
use crate::ring::Ring;
use crate::tx_offload::Offload;

/// The card is asked to report every so many descriptors, and buffers are reclaimed by so many (7.2.3.5.1).
pub(crate) const REPORT: usize = 32;
/// The card pads frames, but not shorter ones than this.
pub(crate) const MIN_FRAME: usize = 17;
/// Bytes of a frame beyond its payload: Ethernet header and one VLAN tag.
pub const OVERHEAD: usize = 18;
/// A frame in one buffer, with its CRC to be added.
pub(crate) const COMMAND: u64 = TX_DTYP_DATA | TX_EOP | TX_IFCS | TX_DEXT;

/// A ring of advanced Tx data descriptors with the buffers that the card has yet to read.
pub struct Tx {
    pub(crate) ring: Ring,
    reclaimer: Reclaimer,
    /// Where the card reports, if not in the descriptors.
    head: Option<WrittenHead>,
    /// Bytes beyond [`MIN_FRAME`] that can be sent.
    longest: usize,
    /// Of a queue that packets with requests are sent on.
    pub(crate) offload: Option<Box<Offload>>,
    pub(crate) watch: Watch,
}

impl Tx {
    /// Enables a queue (4.6.8.1).
    pub fn start(ring: Ring, head: Option<WrittenHead>, setup: Setup) -> Result<Self, Error> {
        ring.start()?;
        let (longest, offload) = (setup.1.mtu + OVERHEAD - MIN_FRAME, Offload::new(setup));
        Ok(Self { ring, reclaimer: Reclaimer::default(), head, longest, offload, watch: Watch::default() })
    }

    /// Takes back the buffers that the card has sent, by [`REPORT`]. Inlined, it would cost `post_run` its registers.
    #[inline(never)]
    fn reclaim(&mut self) {
        while self.ring.posted() >= REPORT && self.sent() {
            let start = self.ring.index(self.ring.head);
            let buffers = &self.ring.buffers[start..start + REPORT];
            // SAFETY: they are posted, so initialised; the head moves past them.
            unsafe { self.reclaimer.add(buffers) };
            self.ring.head += REPORT;
        }
    }

    /// Whether the card is done with the oldest [`REPORT`] descriptors.
    fn sent(&self) -> bool {
        match &self.head {
            Some(head) => head.sent(&self.ring, REPORT),
            None => {
                let first = self.ring.index(self.ring.head);
                let last = self.offload.as_ref().map_or(first + REPORT - 1, |offload| offload.reports[first / REPORT]);
                self.ring.descriptors[last][1].load(Ordering::Acquire) & TX_DD != 0
            }
        }
    }

    /// Posts frames from here to where the next report is due, or up to the first that cannot be sent. Returns how
    /// many.
    fn post_run(&mut self, burst: &mut Burst) -> usize {
        let (tail, start, mut posted) = (self.ring.tail, self.ring.index(self.ring.tail), 0);
        // Reports are due at the end of the ring, too.
        let report = start | (REPORT - 1);
        let n = self.ring.room().min(report + 1 - start);
        for (packet, (descriptor, place)) in burst.iter().zip(self.ring.run(tail, n)) {
            if !sendable(packet, self.longest) {
                break;
            }
            // The length goes into two fields: that of this buffer and that of the frame.
            let lengths = packet.len() as u64 * (1 | 1 << TX_PAYLEN_SHIFT);
            descriptor[0].store(packet.iova(), Ordering::Relaxed);
            descriptor[1].store(COMMAND | lengths, Ordering::Relaxed);
            // SAFETY: a packet may be moved by copying; the burst forgets it below.
            place.write(unsafe { packet.copy_buffer() });
            posted += 1;
        }
        // SAFETY: these were copied, and are in the ring now.
        unsafe { burst.forget(posted) };
        self.ring.tail += posted;
        if start + posted > report {
            let last = &self.ring.descriptors[report][1];
            last.store(last.load(Ordering::Relaxed) | TX_RS, Ordering::Relaxed);
        }
        posted
    }

    /// Drops frames at the front that can never be sent.
    #[cold]
    fn refuse(&mut self, burst: &mut Burst) {
        let refused = burst.iter().take_while(|packet| !sendable(packet, self.longest)).count();
        burst.discard(refused);
        self.ring.device.tx_refused.fetch_add(refused as u64, Ordering::Relaxed);
    }
}

fn sendable(packet: &Packet, longest: usize) -> bool {
    packet.len().wrapping_sub(MIN_FRAME) <= longest
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.reclaim();
        let (packets, tail) = (burst.len(), self.ring.tail);
        if self.offload.is_some() {
            self.post_all_offloaded(burst);
        } else {
            while !burst.is_empty() && self.ring.room() > 0 {
                if self.post_run(burst) == 0 {
                    self.refuse(burst);
                }
            }
        }
        self.ring.publish(tail);
        if !burst.is_empty() {
            self.watch();
        }
        packets - burst.len()
    }
}
