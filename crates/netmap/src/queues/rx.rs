//! The receiving queue.

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_memory::{Burst, Cache, MAGAZINE, Packet};
use ringpass_peer::Waiter;
use ringpass_port::{LONGEST_HEADER, RxQueue, Status, Wake, Wakeable, frame_passes};

use super::Counts;
use super::own::Own;
use crate::pieces;
use crate::{Buffers, Flags, SyncError};

/// Receives from some rings in turn.
pub(super) struct Rx {
    rings: Vec<(Own, Option<Waiter>)>,
    /// Whose turn it is.
    next: usize,
    receiver: Receiver,
    queue: usize,
    status: Arc<Status>,
}

/// What receives, whatever the ring.
struct Receiver {
    buffers: Buffers,
    mtu: usize,
    cache: Cache,
}

/// A frame in several slots.
enum Frame {
    /// The last of its slots has not come yet.
    Incomplete,
    /// The pool is dry.
    NoBuffers,
    /// It takes so many slots. `None`: it is longer than the MTU allows, or in no buffers.
    Whole(u32, Option<Packet>),
}

impl Rx {
    pub(super) fn new(
        rings: Vec<(Own, Option<Waiter>)>,
        buffers: Buffers,
        mtu: usize,
        cache: Cache,
        queue: usize,
        status: Arc<Status>,
    ) -> Self {
        Self { rings, next: 0, receiver: Receiver { buffers, mtu, cache }, queue, status }
    }
}

impl Drop for Rx {
    /// The ring's next user is not to receive the last frames again.
    fn drop(&mut self) {
        if !self.status.is_gone() {
            self.rings.iter_mut().for_each(|(own, _)| _ = own.sync());
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
    /// Copies what has come; its slots are given back with the next look.
    fn receive(&mut self, own: &mut Own, burst: &mut Burst, counts: &mut Counts) -> Result<(), SyncError> {
        own.sync()?;
        let mut done = 0;
        while done < own.len() && burst.room() > 0 {
            let plain = self.receive_plain(own, &mut done, burst, counts);
            if !plain && !self.receive_fragments(own, &mut done, burst, counts) {
                break;
            }
        }
        own.give_up(done);
        Ok(())
    }

    /// Frames in one slot each, up to the first that is not. Whether there were none before that.
    #[inline]
    fn receive_plain(&mut self, own: &Own, done: &mut u32, burst: &mut Burst, counts: &mut Counts) -> bool {
        let Self { buffers, mtu, cache } = self;
        let first = *done;
        let want = burst.room().min((own.len() - first) as usize).min(MAGAZINE);
        let most = buffers.size().min(cache.pool().buffer_size());
        let mut packets = cache.packets(want);
        for _ in 0..want {
            let slot = own.ring.ring().slot(own.at(*done));
            let len = usize::from(slot.len);
            if slot.flags.any(Flags::MORE_FRAGMENTS) || len > most {
                break;
            }
            let Some(mut packet) = packets.next() else { break };
            *done += 1;
            packet.set_len(len);
            let bytes = buffers.raw(slot.buffer, 0, len);
            bytes.into_iter().for_each(|bytes| packet.write_raw(0, bytes));
            if bytes.is_some() && frame_passes(&packet, len, *mtu) {
                (counts.packets, counts.bytes) = (counts.packets + 1, counts.bytes + len);
                burst.push(packet);
            } else {
                counts.drops += 1;
            }
        }
        *done > first
    }

    /// A frame in several slots, or in several buffers. Whether it is done with.
    #[cold]
    fn receive_fragments(&mut self, own: &Own, done: &mut u32, burst: &mut Burst, counts: &mut Counts) -> bool {
        match self.gather(own, *done) {
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

    fn gather(&mut self, own: &Own, first: u32) -> Frame {
        let longest = LONGEST_HEADER + self.mtu;
        let (mut pieces, mut total, mut slots) = (Vec::new(), 0, 0);
        loop {
            if first + slots == own.len() {
                // A frame longer than the ring is one without an end.
                let endless = own.len() + 1 == own.ring.ring().slots() && first == 0;
                return if endless { Frame::Whole(slots, None) } else { Frame::Incomplete };
            }
            let slot = own.ring.ring().slot(own.at(first + slots));
            let len = usize::from(slot.len);
            slots += 1;
            total += len;
            if self.buffers.holds(slot.buffer, len) && total <= longest {
                pieces.push((slot.buffer, slot.len));
            } else {
                // Its other slots are counted still.
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
        match pieces::read(&pieces, total, buffers, cache) {
            Some(packet) => Frame::Whole(slots, Some(packet).filter(|packet| frame_passes(packet, total, self.mtu))),
            None => Frame::NoBuffers,
        }
    }
}

impl Wakeable for Rx {
    fn arm(&mut self) {
        self.rings.iter().for_each(|(ring, _)| ring.arm());
    }

    fn disarm(&mut self) {
        for (own, wake) in &self.rings {
            own.ring.disarm();
            wake.iter().for_each(Waiter::clear);
        }
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        for (_, wake) in &self.rings {
            each(wake.as_ref().map_or(Wake::Turns, |wake| Wake::Readable(wake.as_fd())));
        }
    }
}
