//! The transmit queue (sections 1.8.1 and 7.2).

use std::sync::atomic::Ordering;

use ringpass_memory::{Avx2, Burst, Packet, Reclaimer};
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_port::{Error, TxQueue, TxWatchdog};

use crate::completion::{HeadWriteBack, RS_INTERVAL};
use crate::device::QueueContext;
use crate::frame::{MIN_FRAME, OVERHEAD, SEND};
use crate::ring::Ring;
use crate::tx_offload::TxOffload;
use crate::vector;

/// Command bits of a frame in one buffer.
pub(crate) const COMMAND: u64 = SEND | TX_EOP;

/// A Tx queue: a ring of advanced data descriptors with the buffers that the card has not finished sending.
pub(crate) struct Tx {
    ring: Ring,
    reclaimer: Reclaimer,
    /// Place where the card reports completion; `None` if it does so in the descriptors.
    head: Option<HeadWriteBack>,
    /// Largest frame that can be sent, in bytes beyond [`MIN_FRAME`].
    longest: usize,
    /// Present on queues whose packets may request offloads or lie in several buffers.
    offload: Option<Box<TxOffload>>,
    /// Whether, and proof that, descriptors may be written four at a time.
    vector: Option<Avx2>,
    watchdog: TxWatchdog,
}

impl Tx {
    /// Enables a queue (4.6.8.1).
    pub(crate) fn start(ring: Ring, head: Option<HeadWriteBack>, context: QueueContext) -> Result<Self, Error> {
        ring.start()?;
        let longest = context.config.mtu + OVERHEAD - MIN_FRAME;
        let offload = TxOffload::new(context);
        let (reclaimer, vector, watchdog) = (Reclaimer::default(), context.vector(), TxWatchdog::default());
        Ok(Self { ring, reclaimer, head, longest, offload, vector, watchdog })
    }

    /// Reclaims the buffers that the card has sent, [`RS_INTERVAL`] at a time. Not inlined, so that `post_run`
    /// keeps its registers.
    #[inline(never)]
    fn reclaim(&mut self) {
        while self.ring.posted() >= RS_INTERVAL && self.sent() {
            let start = self.ring.index(self.ring.head);
            let buffers = &self.ring.buffers[start..start + RS_INTERVAL];
            // SAFETY: at least `RS_INTERVAL` descriptors are posted, and these are the oldest, so their buffers
            // are initialised. The head moves past them below, so the ring does not use them again.
            unsafe { self.reclaimer.add(buffers) };
            self.ring.head += RS_INTERVAL;
        }
    }

    /// Returns whether the card has finished the oldest [`RS_INTERVAL`] descriptors.
    fn sent(&self) -> bool {
        match &self.head {
            Some(head) => head.sent(&self.ring),
            None => {
                let first = self.ring.index(self.ring.head);
                let last = self
                    .offload
                    .as_ref()
                    .map_or(first + RS_INTERVAL - 1, |offload| offload.reports[first / RS_INTERVAL]);
                self.ring.descriptors[last][1].load(Ordering::Acquire) & TX_DD != 0
            }
        }
    }

    // ANCHOR: post_run
    /// Posts frames until the next report is due, the ring is full, or a frame cannot be sent. Returns how many
    /// it posted.
    fn post_run(&mut self, burst: &mut Burst) -> usize {
        let tail = self.ring.tail;
        let start = self.ring.index(self.ring.tail);
        // The ring's size is a multiple of the interval, so a run never crosses the end of the ring.
        let report = start | (RS_INTERVAL - 1);
        let n = self.ring.room().min(report + 1 - start);
        let (descriptors, places) = self.ring.run(tail, n);
        let mut posted = match self.vector {
            // SAFETY: `avx2` is the proof that the processor has it.
            Some(avx2) if burst.len() >= 4 => unsafe {
                vector::post(avx2, self.longest, burst, descriptors, places)
            },
            _ => 0,
        };
        for ((packet, descriptor), place) in burst.iter().zip(descriptors).zip(places).skip(posted) {
            if !sendable(packet, self.longest) {
                break;
            }
            // The length goes into two fields: bytes in this buffer, and bytes of the whole frame.
            let lengths = packet.len() as u64 * (1 | 1 << TX_PAYLEN_SHIFT);
            descriptor[0].store(packet.iova(), Ordering::Relaxed);
            descriptor[1].store(COMMAND | lengths, Ordering::Relaxed);
            // SAFETY: `burst.forget` below forgets exactly the packets copied here, so each buffer keeps one
            // owner. The packet has no further segments, as `sendable` has checked.
            place.write(unsafe { packet.copy_buffer() });
            posted += 1;
        }
        // SAFETY: the first `posted` packets were copied above; the ring owns their buffers now.
        unsafe { burst.forget(posted) };
        self.ring.tail += posted;
        if start + posted > report {
            let last = &self.ring.descriptors[report][1];
            last.store(last.load(Ordering::Relaxed) | TX_RS, Ordering::Relaxed);
        }
        posted
    }
    // ANCHOR_END: post_run

    /// Drops the frames at the front of the burst that can never be sent, and counts them.
    #[cold]
    fn refuse(&mut self, burst: &mut Burst) {
        let refused = burst.iter().take_while(|packet| !sendable(packet, self.longest)).count();
        burst.discard(refused);
        self.ring.device.tx_refused.fetch_add(refused as u64, Ordering::Relaxed);
    }
}

/// Returns whether a queue without offloads can send the packet: its length is one of a frame, and it lies in one buffer.
fn sendable(packet: &Packet, longest: usize) -> bool {
    packet.len().wrapping_sub(MIN_FRAME) <= longest && !packet.is_chained()
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.reclaim();
        let (packets, tail) = (burst.len(), self.ring.tail);
        if let Some(offload) = &mut self.offload {
            offload.post_all(&mut self.ring, burst);
        } else {
            while !burst.is_empty() && self.ring.room() > 0 {
                if self.post_run(burst) == 0 {
                    self.refuse(burst);
                }
            }
        }
        self.ring.publish(tail);
        if !burst.is_empty() {
            self.watchdog.check(self.ring.head as u64, &self.ring.device.hang);
        }
        packets - burst.len()
    }
}
