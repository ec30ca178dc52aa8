//! The sending ring (sections 1.8.1 and 7.2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ringpass_memory::{Burst, DmaArray, DmaRegion, Packet, Reclaimer};
use ringpass_port::{Error, PortConfig, TxQueue};
use ringpass_registers::Doorbell;
use ringpass_registers::ixgbe::{bits::*, descriptor::*, *};

use crate::ring::Ring;
use crate::{Device, OVERHEAD};

/// The card is asked to report every so many descriptors, and buffers are reclaimed by so many (7.2.3.5.1).
const REPORT: usize = 32;
/// The card pads frames, but not shorter ones than this.
const MIN_FRAME: usize = 17;
/// A frame in one buffer, with its CRC to be added.
const COMMAND: u64 = TX_DTYP_DATA | TX_EOP | TX_IFCS | TX_DEXT;

/// A ring of advanced Tx data descriptors with the buffers that the card has yet to read.
pub(crate) struct TxRing {
    ring: Ring,
    reclaimer: Reclaimer,
    /// Where the card writes its head, if it was asked to (7.2.3.5.2).
    head: Option<DmaArray<AtomicU32>>,
    /// Bytes beyond [`MIN_FRAME`] that can be sent.
    longest: usize,
    tail: Doorbell,
    queue: usize,
    device: Arc<Device>,
}

impl TxRing {
    /// Section 4.6.8.1: base and length; thresholds; enable.
    pub(crate) fn start(
        device: &Arc<Device>,
        queue: usize,
        (rings, offset): (&Arc<DmaRegion>, usize),
        config: &PortConfig,
        head_at: Option<usize>,
    ) -> Result<Self, Error> {
        let ring = Ring::new(rings, offset, config.tx_ring)?;
        let iova = ring.descriptors.iova();
        let head = head_at.map(|offset| DmaArray::<AtomicU32>::new(rings, offset, 1)).transpose()?;
        let window = &device.window;
        let head_iova = head.as_ref().map_or(0, |head| head.iova() | u64::from(TDWBAL_HEAD_WB_EN));
        // SAFETY: ring and head were mapped for the card, and are kept until `drop` has stopped the queue.
        unsafe {
            window.write_dma(TDBAL.at(queue), iova as u32);
            window.write_dma(TDBAH.at(queue), (iova >> 32) as u32);
            window.write_dma(TDWBAL.at(queue), head_iova as u32);
            window.write_dma(TDWBAH.at(queue), (head_iova >> 32) as u32);
        }
        window.write(TDLEN.at(queue), (config.tx_ring * 16) as u32);
        // 8.2.3.9.10: prefetch at 36 and 8 descriptors; write back at once, as reports are rare already (WTHRESH 0).
        window.write(TXDCTL.at(queue), 36 | 8 << 8);
        window.write(TDH.at(queue), 0);
        window.write(TDT.at(queue), 0);
        device.enable(TXDCTL.at(queue), TXDCTL_ENABLE)?;
        Ok(Self {
            ring,
            reclaimer: Reclaimer::default(),
            head,
            longest: config.mtu + OVERHEAD - MIN_FRAME,
            tail: window.doorbell(TDT.at(queue)),
            queue,
            device: device.clone(),
        })
    }

    /// Takes back the buffers that the card has sent, by [`REPORT`].
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
        let oldest = self.ring.index(self.ring.head);
        match &self.head {
            None => self.ring.descriptors[oldest + REPORT - 1][1].load(Ordering::Acquire) & TX_DD != 0,
            Some(head) => {
                let done = self.ring.index((head[0].load(Ordering::Acquire) as usize).wrapping_sub(oldest));
                (REPORT..=self.ring.posted()).contains(&done)
            }
        }
    }

    /// Posts frames from here to where the next report is due, or up to the first that cannot be sent. Returns how
    /// many.
    fn post_run(&mut self, burst: &mut Burst) -> usize {
        let run = self.ring.free_run();
        let report = run.start | (REPORT - 1);
        let run = run.start..run.end.min(report + 1);
        let mut posted = 0;
        for (packet, (descriptor, place)) in burst.iter().zip(self.ring.run(run.clone())) {
            if !sendable(packet, self.longest) {
                break;
            }
            // The length goes into two fields: that of this buffer and that of the frame.
            let lengths = packet.len() as u64 * (1 | 1 << TX_PAYLEN_SHIFT);
            descriptor[0].store(packet.iova(), Ordering::Relaxed);
            descriptor[1].store(COMMAND | lengths, Ordering::Relaxed);
            // SAFETY: a packet may be moved by copying; the burst forgets it below.
            place.write(unsafe { std::ptr::read(packet) }.into_buffer());
            posted += 1;
        }
        // SAFETY: these were copied, and are in the ring now.
        unsafe { burst.forget(posted) };
        self.ring.tail += posted;
        if run.start + posted > report {
            let last = &self.ring.descriptors[report][1];
            last.store(last.load(Ordering::Relaxed) | TX_RS, Ordering::Relaxed);
        }
        posted
    }

    /// Drops frames at the front that can never be sent. Returns how many.
    #[cold]
    fn refuse(&mut self, burst: &mut Burst) -> usize {
        let refused = burst.iter().take_while(|packet| !sendable(packet, self.longest)).count();
        burst.drain().take(refused).for_each(drop);
        self.device.tx_refused.fetch_add(refused as u64, Ordering::Relaxed);
        refused
    }
}

#[inline]
fn sendable(packet: &Packet, longest: usize) -> bool {
    packet.len().wrapping_sub(MIN_FRAME) <= longest
}

impl TxQueue for TxRing {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.reclaim();
        let (before, mut refused) = (self.ring.tail, 0);
        while !burst.is_empty() && self.ring.room() > 0 {
            if self.post_run(burst) == 0 {
                refused += self.refuse(burst);
            }
        }
        if self.ring.tail != before {
            self.tail.ring(self.ring.index(self.ring.tail) as u32);
        }
        self.ring.tail - before + refused
    }
}

impl Drop for TxRing {
    fn drop(&mut self) {
        // A card that does not stop may still read: then its memory is never given back.
        if self.device.disable(TXDCTL.at(self.queue), TXDCTL_ENABLE).is_err() {
            self.ring.leak();
            self.head.iter().for_each(DmaArray::leak);
        }
    }
}
