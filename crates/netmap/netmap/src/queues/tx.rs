//! The sending queue.

use std::sync::Arc;

use ringpass_memory::{Burst, Packet};
use ringpass_port::{PortStatus, TxQueue, frame_fits_mtu};

use super::Counts;
use super::cursor::RingCursor;
use crate::fragments::{self, Fragment};
use crate::{Buffers, Flags, Slot};

/// Sends through one ring.
pub(super) struct Tx {
    cursor: RingCursor,
    buffers: Buffers,
    mtu: usize,
    queue: usize,
    status: Arc<PortStatus>,
}

/// Result of sending a packet.
enum Sent {
    /// It was copied to this many slots.
    Slots(u32),
    /// There is no room at the moment.
    Retry,
    /// It cannot be sent at all.
    Rejected,
}

impl Tx {
    pub(super) fn new(cursor: RingCursor, buffers: Buffers, mtu: usize, queue: usize, status: Arc<PortStatus>) -> Self {
        Self { cursor, buffers, mtu, queue, status }
    }

    /// Copies packets to slots until there is no room. Returns how many packets are done.
    ///
    /// # Errors
    /// The slot whose buffer does not exist.
    fn fill(&mut self, packets: &[Packet], counts: &mut Counts) -> Result<usize, Slot> {
        let (mut used, mut done) = (0, 0);
        let mut result = Ok(());
        for packet in packets {
            match self.put(used, packet) {
                Ok(Sent::Slots(slots)) => {
                    used += slots;
                    (counts.packets, counts.bytes) = (counts.packets + 1, counts.bytes + packet.total_len());
                }
                Ok(Sent::Rejected) => counts.drops += 1,
                Ok(Sent::Retry) => break,
                Err(slot) => {
                    result = Err(slot);
                    break;
                }
            }
            done += 1;
        }
        self.cursor.release_slots(used);
        result.map(|()| done)
    }

    /// Copies a packet to the slots from `used` on.
    #[inline]
    fn put(&mut self, used: u32, packet: &Packet) -> Result<Sent, Slot> {
        let (size, total) = (self.buffers.size(), packet.total_len());
        if !frame_fits_mtu(packet, total, self.mtu) {
            return Ok(Sent::Rejected);
        }
        let wanted = if total <= size { 1 } else { total.div_ceil(size) as u32 };
        if used + wanted > self.cursor.len() {
            // A packet longer than the ring would wait for ever.
            return Ok(if wanted < self.cursor.ring.ring().slots() { Sent::Retry } else { Sent::Rejected });
        }
        if wanted == 1 && !packet.is_chained() {
            let buffer = self.buffer(used, total, Flags::default())?;
            let _ = self.buffers.put(buffer, 0, packet);
        } else {
            self.put_fragments(used, packet)?;
        }
        Ok(Sent::Slots(wanted))
    }

    /// Copies a packet in several buffers, or for several slots.
    #[cold]
    fn put_fragments(&self, used: u32, packet: &Packet) -> Result<(), Slot> {
        fragments::write(&[], packet, &self.buffers, |n, left| {
            // The cast is lossless, as a slot has at most 65,535 bytes.
            let len = left.min(self.buffers.size());
            let buffer = self.buffer(used + n, len, fragments::flags(len, left))?;
            Ok(Fragment { buffer, offset: 0, len: len as u16 })
        })
    }

    /// Fills in the `n`-th slot. Returns its buffer, which exists and holds `len` bytes; otherwise the slot as
    /// the error.
    #[inline]
    fn buffer(&self, n: u32, len: usize, flags: Flags) -> Result<u32, Slot> {
        let (ring, position) = (self.cursor.ring.ring(), self.cursor.at(n));
        let slot = ring.slot(position);
        if !self.buffers.holds(slot.buffer, len) {
            return Err(slot);
        }
        ring.set(position, Slot { buffer: slot.buffer, len: len as u16, flags, pointer: 0 });
        Ok(slot.buffer)
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        if burst.is_empty() || self.status.is_gone() {
            return 0;
        }
        let mut counts = Counts::default();
        let mut result = Ok(());
        if (self.cursor.len() as usize) < burst.len() {
            result = self.cursor.sync();
        }
        let mut done = 0;
        if result.is_ok() {
            match self.fill(burst, &mut counts) {
                Ok(all) => done = all,
                Err(slot) => {
                    let why =
                        || format!("the other side has put a buffer {} to be sent, which there is not", slot.buffer);
                    self.status.set_gone(why);
                }
            }
            result = self.cursor.sync();
        }
        if let Err(error) = result {
            self.status.set_gone(|| format!("{}{error}", super::SENDING));
        }
        if done > 0 {
            burst.discard(done);
        }
        self.status.tx(self.queue).count(counts.packets, counts.bytes, counts.drops);
        done
    }
}

/// The sending queue of a port without Tx rings, such as a monitor.
pub(super) struct NoTx {
    pub(super) queue: usize,
    pub(super) status: Arc<PortStatus>,
}

impl TxQueue for NoTx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let drops = burst.len();
        burst.discard(drops);
        self.status.tx(self.queue).count(0, 0, drops);
        drops
    }
}
