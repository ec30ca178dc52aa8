//! The transmit queue (sections 1.8.1 and 7.2).

use std::sync::atomic::Ordering;

use ringpass_memory::{Avx2, Burst, Packet, Reclaimer};
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_port::{Error, TxQueue, TxWatchdog};

use crate::completion::{HeadWriteBack, RS_INTERVAL};
use crate::device::QueueContext;
use crate::frame::{MIN_FRAME, OVERHEAD, SEND_WHOLE};
use crate::ring::Ring;
use crate::tx_offload::TxOffload;
use crate::vector;

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
    /// Present if descriptors may be written four at a time.
    vector: Option<Avx2>,
    watchdog: TxWatchdog,
}

impl Tx {
    /// Enables a queue (4.6.8.1).
    pub(crate) fn start(ring: Ring, head: Option<HeadWriteBack>, context: QueueContext) -> Result<Self, Error> {
        ring.start()?;
        let longest = context.config.mtu + OVERHEAD - MIN_FRAME;
        let offload = TxOffload::new(context);
        let (reclaimer, watchdog) = (Reclaimer::default(), TxWatchdog::default());
        let vector = context.config.avx2();
        Ok(Self { ring, reclaimer, head, longest, offload, vector, watchdog })
    }

    /// Reclaims the buffers of the blocks that the card has sent. The first one [is](Self::is_sent).
    #[inline(never)]
    fn reclaim(&mut self) {
        loop {
            let start = self.ring.index(self.ring.head);
            let buffers = &self.ring.buffers[start..start + RS_INTERVAL];
            // SAFETY: at least `RS_INTERVAL` descriptors are posted, and these are the oldest, so their buffers
            // are initialised. The head moves past them below, so the ring does not use them again.
            unsafe { self.reclaimer.add(buffers) };
            self.ring.head += RS_INTERVAL;
            if !self.is_sent() {
                break;
            }
        }
    }

    /// Returns whether the card has finished the oldest block of [`RS_INTERVAL`] descriptors.
    #[inline(always)]
    fn is_sent(&self) -> bool {
        if self.ring.posted() < RS_INTERVAL {
            return false;
        }
        match (&self.head, &self.offload) {
            (None, None) => self.is_done(self.ring.head + RS_INTERVAL - 1),
            (None, Some(offload)) => {
                let block = self.ring.index(self.ring.head) / RS_INTERVAL;
                self.is_done(offload.reports[block])
            }
            (Some(head), _) => head.sent(&self.ring),
        }
    }

    /// Returns whether the card has reported the descriptor of this count.
    #[inline(always)]
    fn is_done(&self, count: usize) -> bool {
        self.ring.descriptors[self.ring.index(count)][1].load(Ordering::Acquire) & TX_DD != 0
    }

    /// Reclaims what is sent, and posts frames of a queue without offloads while there is room. Returns how many left the burst.
    #[inline(always)]
    fn send<const VECTOR: bool>(&mut self, burst: &mut Burst) -> usize {
        if self.is_sent() {
            self.reclaim();
        }
        let (packets, tail) = (burst.len(), self.ring.tail);
        if VECTOR {
            self.post_fours(burst);
        }
        self.post(burst);
        if !burst.is_empty() {
            self.send_rest(burst);
        }
        self.request_reports(tail);
        self.ring.publish(tail);
        packets - burst.len()
    }

    /// Sends with vector instructions.
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    fn send_many(&mut self, burst: &mut Burst) -> usize {
        self.send::<true>(burst)
    }

    /// Sends on a queue with offloads, or with frames in several buffers.
    #[inline(never)]
    fn send_otherwise(&mut self, burst: &mut Burst) -> usize {
        if self.is_sent() {
            self.reclaim();
        }
        let (packets, tail) = (burst.len(), self.ring.tail);
        if let Some(offload) = &mut self.offload {
            offload.post_all(&mut self.ring, burst);
        }
        self.ring.publish(tail);
        if !burst.is_empty() {
            self.watchdog.check(self.ring.head as u64, &self.ring.device.hang);
        }
        packets - burst.len()
    }

    /// Drops a frame that cannot be sent, and sends what follows. Looks whether the card still sends if there is no room.
    #[cold]
    fn send_rest(&mut self, burst: &mut Burst) {
        while !burst.is_empty() && self.ring.room() > 0 {
            self.refuse(burst);
            self.post(burst);
        }
        if !burst.is_empty() {
            self.watchdog.check(self.ring.head as u64, &self.ring.device.hang);
        }
    }

    /// Posts frames four at a time, as long as all four can be sent.
    #[inline(always)]
    fn post_fours(&mut self, burst: &mut Burst) {
        let (tail, room) = (self.ring.tail, self.ring.room());
        let Some(avx2) = self.vector else { return };
        let (descriptors, places) = self.ring.run(tail, room);
        // SAFETY: `avx2` is the proof that the processor has it.
        let posted = unsafe { vector::post(avx2, self.longest, burst, descriptors, places) };
        // SAFETY: `vector::post` has copied the first `posted` packets; the ring owns their buffers now.
        unsafe { burst.forget(posted) };
        self.ring.tail += posted;
    }

    // ANCHOR: post
    /// Posts frames until the ring is full or a frame cannot be sent.
    #[inline(always)]
    fn post(&mut self, burst: &mut Burst) {
        let (tail, n) = (self.ring.tail, self.ring.room().min(burst.len()));
        let longest = self.longest;
        let packets = &burst[..n];
        let (mut ring, mut posted) = (self.ring.places(), 0);
        for packet in packets {
            if !sendable(packet, longest) {
                break;
            }
            let (descriptor, place) = ring.at(tail + posted);
            // The length goes into two fields: bytes in this buffer, and bytes of the whole frame.
            let lengths = packet.len() as u64 * (1 | 1 << TX_PAYLEN_SHIFT);
            descriptor[0].store(packet.iova(), Ordering::Relaxed);
            descriptor[1].store(SEND_WHOLE | lengths, Ordering::Relaxed);
            // SAFETY: `burst.forget` below forgets exactly the packets copied here, so each buffer keeps one
            // owner. The packet has no further segments, as `sendable` has checked.
            place.write(unsafe { packet.copy_buffer() });
            posted += 1;
        }
        // SAFETY: the first `posted` packets were copied by the loop above; the ring owns their buffers now.
        unsafe { burst.forget(posted) };
        self.ring.tail += posted;
    }

    /// Asks the card to report the last descriptor of each block of [`RS_INTERVAL`] that was completed since the tail was
    /// `before`.
    #[inline(always)]
    fn request_reports(&mut self, before: usize) {
        let mut last = before | (RS_INTERVAL - 1);
        while last < self.ring.tail {
            self.ring.request_report(last);
            last += RS_INTERVAL;
        }
    }
    // ANCHOR_END: post

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
        if self.offload.is_some() {
            self.send_otherwise(burst)
        } else if self.vector.is_some() && burst.len() >= 4 {
            // SAFETY: `vector` holds the proof that the processor has AVX2.
            unsafe { self.send_many(burst) }
        } else {
            self.send::<false>(burst)
        }
    }
}
