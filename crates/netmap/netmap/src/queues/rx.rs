//! The receiving queue.

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_ipc::EventWaiter;
use ringpass_memory::{Burst, Cache, MAGAZINE, Packet};
use ringpass_port::{MAX_L2_HEADER_LEN, PortStatus, RxQueue, WakeSource, Wakeable, frame_fits_mtu};

use super::Counts;
use super::cursor::RingCursor;
use crate::fragments::{self, Fragment};
use crate::{Buffers, Flags, SyncError};

/// Largest number of slots that are read of a ring in one call, more than a burst of frames takes. Only a server
/// whose slots hold no valid frames exceeds it. The rest waits for the next call.
const MAX_SLOTS: u32 = 1024;

/// Receives from its rings in turn.
pub(super) struct Rx {
    rings: Vec<(RingCursor, Option<EventWaiter>)>,
    /// Index of the ring to be polled next.
    next: usize,
    receiver: Receiver,
    queue: usize,
    status: Arc<PortStatus>,
}

/// The part of the queue that does not depend on the ring.
struct Receiver {
    buffers: Buffers,
    mtu: usize,
    cache: Cache,
}

/// Result of gathering a frame in several slots.
enum Frame {
    /// Its last slot has not arrived yet.
    Incomplete,
    /// The pool has too few buffers.
    NoBuffers,
    /// The frame takes this many slots. Without a packet, it is longer than the MTU allows, or in invalid
    /// buffers.
    Whole(u32, Option<Packet>),
}

impl Rx {
    pub(super) fn new(
        rings: Vec<(RingCursor, Option<EventWaiter>)>,
        buffers: Buffers,
        mtu: usize,
        cache: Cache,
        queue: usize,
        status: Arc<PortStatus>,
    ) -> Self {
        Self { rings, next: 0, receiver: Receiver { buffers, mtu, cache }, queue, status }
    }
}

impl Drop for Rx {
    /// Returns the slots of the last burst, so that the ring's next user does not receive its frames again.
    fn drop(&mut self) {
        if !self.status.is_gone() {
            self.rings.iter_mut().for_each(|(cursor, _)| _ = cursor.sync());
        }
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut counts = Counts::default();
        for _ in 0..self.rings.len() {
            if burst.room() == 0 || self.status.is_gone() {
                break;
            }
            if let Err(error) = self.receiver.receive(&mut self.rings[self.next].0, burst, &mut counts) {
                self.status.set_gone(|| format!("{}{error}", super::RECEIVING));
            }
            self.next = if self.next + 1 == self.rings.len() { 0 } else { self.next + 1 };
        }
        self.status.rx(self.queue).count(counts.packets, counts.bytes, counts.drops);
        counts.packets
    }
}

impl Receiver {
    /// Copies the frames that have arrived; their slots are returned with the next sync.
    fn receive(&mut self, cursor: &mut RingCursor, burst: &mut Burst, counts: &mut Counts) -> Result<(), SyncError> {
        cursor.sync()?;
        let mut done = 0;
        while done < cursor.len().min(MAX_SLOTS) && burst.room() > 0 {
            let plain = self.receive_plain(cursor, &mut done, burst, counts);
            if !plain && !self.receive_fragments(cursor, &mut done, burst, counts) {
                break;
            }
        }
        cursor.release_slots(done);
        Ok(())
    }

    /// Receives frames in one slot each, up to the first that is not. Returns whether there were any.
    #[inline]
    fn receive_plain(&mut self, cursor: &RingCursor, done: &mut u32, burst: &mut Burst, counts: &mut Counts) -> bool {
        let Self { buffers, mtu, cache } = self;
        let first = *done;
        let want = burst.room().min((cursor.len() - first) as usize).min(MAGAZINE);
        let most = buffers.size().min(cache.pool().buffer_size());
        let mut packets = cache.packets(want);
        for _ in 0..want {
            let slot = cursor.ring.ring().slot(cursor.at(*done));
            let len = usize::from(slot.len);
            if slot.flags.any(Flags::MORE_FRAGMENTS) || len > most {
                break;
            }
            let Some(mut packet) = packets.next() else { break };
            *done += 1;
            packet.set_len(len);
            let bytes = buffers.raw(slot.buffer, 0, len);
            bytes.into_iter().for_each(|bytes| packet.write_raw(0, bytes));
            if bytes.is_some() && frame_fits_mtu(&packet, len, *mtu) {
                (counts.packets, counts.bytes) = (counts.packets + 1, counts.bytes + len);
                burst.push(packet);
            } else {
                counts.drops += 1;
            }
        }
        *done > first
    }

    /// Receives a frame in several slots, or for several buffers. Returns whether its slots are done.
    #[cold]
    fn receive_fragments(
        &mut self,
        cursor: &RingCursor,
        done: &mut u32,
        burst: &mut Burst,
        counts: &mut Counts,
    ) -> bool {
        match self.gather(cursor, *done) {
            Frame::Incomplete | Frame::NoBuffers => false,
            Frame::Whole(slots, packet) => {
                *done += slots;
                match packet {
                    Some(packet) => {
                        (counts.packets, counts.bytes) = (counts.packets + 1, counts.bytes + packet.total_len());
                        burst.push(packet);
                    }
                    None => counts.drops += 1,
                }
                true
            }
        }
    }

    fn gather(&mut self, cursor: &RingCursor, first: u32) -> Frame {
        let longest = MAX_L2_HEADER_LEN + self.mtu;
        let mut fragments = Vec::new();
        let mut total = 0;
        let mut slots = 0;
        loop {
            if first + slots == cursor.len() {
                // A frame without an end in a full ring will not get one.
                let endless = cursor.len() + 1 == cursor.ring.ring().slots() && first == 0;
                return if endless { Frame::Whole(slots, None) } else { Frame::Incomplete };
            }
            let slot = cursor.ring.ring().slot(cursor.at(first + slots));
            let len = usize::from(slot.len);
            slots += 1;
            total += len;
            if self.buffers.holds(slot.buffer, len) && total <= longest {
                fragments.push(Fragment { buffer: slot.buffer, offset: 0, len: slot.len });
            } else {
                // Too long or invalid: its remaining slots still have to be counted.
                total = longest + 1;
            }
            if !slot.flags.any(Flags::MORE_FRAGMENTS) {
                break;
            }
        }
        if !(1..=longest).contains(&total) {
            return Frame::Whole(slots, None);
        }
        let Self { buffers, cache, .. } = self;
        match fragments::read(&fragments, total, buffers, cache) {
            Some(packet) => Frame::Whole(slots, Some(packet).filter(|packet| frame_fits_mtu(packet, total, self.mtu))),
            None => Frame::NoBuffers,
        }
    }
}

impl Wakeable for Rx {
    fn arm(&mut self) {
        self.rings.iter().for_each(|(ring, _)| ring.arm());
    }

    fn disarm(&mut self) {
        for (cursor, wake) in &self.rings {
            cursor.ring.disarm();
            wake.iter().for_each(EventWaiter::clear);
        }
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        for (_, wake) in &self.rings {
            each(wake.as_ref().map_or(WakeSource::Polled, |wake| WakeSource::Readable(wake.as_fd())));
        }
    }
}
