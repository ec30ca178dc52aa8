//! The sending queue.

use std::sync::Arc;

use ringpass_memory::{Burst, Packet};
use ringpass_port::{Status, TxQueue, frame_passes};

use super::Counts;
use super::own::Own;
use crate::pieces;
use crate::{Buffers, Flags, Slot};

/// Sends by one ring.
pub(super) struct Tx {
    own: Own,
    buffers: Buffers,
    mtu: usize,
    queue: usize,
    status: Arc<Status>,
}

/// What became of a packet.
enum Sent {
    /// It takes so many slots.
    Slots(u32),
    /// There is no room.
    Later,
    /// It is none that can be sent.
    Never,
}

impl Tx {
    pub(super) fn new(own: Own, buffers: Buffers, mtu: usize, queue: usize, status: Arc<Status>) -> Self {
        Self { own, buffers, mtu, queue, status }
    }

    /// Copies packets to slots, until there is no room. Returns how many are done with. On an error, a slot's buffer is none.
    fn fill(&mut self, packets: &[Packet], counts: &mut Counts) -> Result<usize, Slot> {
        let (mut used, mut done) = (0, 0);
        let mut result = Ok(());
        for packet in packets {
            match self.put(used, packet) {
                Ok(Sent::Slots(slots)) => {
                    used += slots;
                    (counts.packets, counts.bytes) = (counts.packets + 1, counts.bytes + packet.total_len());
                }
                Ok(Sent::Never) => counts.drops += 1,
                Ok(Sent::Later) => break,
                Err(slot) => {
                    result = Err(slot);
                    break;
                }
            }
            done += 1;
        }
        self.own.give_up(used);
        result.map(|()| done)
    }

    /// Copies a packet to the slots from `used` on.
    #[inline]
    fn put(&mut self, used: u32, packet: &Packet) -> Result<Sent, Slot> {
        let (size, total) = (self.buffers.size(), packet.total_len());
        if !frame_passes(packet, total, self.mtu) {
            return Ok(Sent::Never);
        }
        let wanted = if total <= size { 1 } else { total.div_ceil(size) as u32 };
        if used + wanted > self.own.len() {
            // One that is longer than the ring would wait for ever.
            return Ok(if wanted < self.own.ring.ring().slots() { Sent::Later } else { Sent::Never });
        }
        if wanted == 1 && !packet.is_chained() {
            let buffer = self.buffer(used, total, Flags::default())?;
            let _ = self.buffers.put(buffer, 0, packet);
        } else {
            self.put_pieces(used, packet)?;
        }
        Ok(Sent::Slots(wanted))
    }

    /// A packet in several buffers, or for several slots.
    #[cold]
    fn put_pieces(&self, used: u32, packet: &Packet) -> Result<(), Slot> {
        pieces::write(packet, &self.buffers, |n, len, flags| self.buffer(used + n, len, flags))
    }

    /// Fills a slot in, and returns its buffer, which there is.
    #[inline]
    fn buffer(&self, n: u32, len: usize, flags: Flags) -> Result<u32, Slot> {
        let (ring, position) = (self.own.ring.ring(), self.own.at(n));
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
        if (self.own.len() as usize) < burst.len() {
            result = self.own.sync();
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
            result = self.own.sync();
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
