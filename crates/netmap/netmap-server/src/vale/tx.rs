//! The sending queue: frames are copied to buffers of the slots that programs have released, or exchanged for
//! them.

use std::sync::Arc;

use ringpass_memory::{Burst, Flags as PacketFlags, Packet};
use ringpass_netmap::Flags;
use ringpass_netmap::run::MIN_FRAME_LEN;
use ringpass_port::TxQueue;

use super::copier::Copier;
use super::counters::{Counters, Tally};
use super::frame::{Frame, WriteResult, Writer, slots};
use super::header;
use super::monitor::Monitors;
use super::ring_set::ValeRing;
use super::select_ring::select_ring;
use super::{RECEIVING, Shared};
use crate::BufferAccess;

/// Sends to all rings of the port, distributed by flow.
pub(crate) struct Tx {
    writer: Writer,
    shared: Arc<Shared>,
    /// Flags of each slot with a frame.
    mark: Flags,
    /// Copies of packets for rings that exchange buffers.
    copier: Option<Copier>,
}

impl Tx {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { writer: Writer::default(), shared: shared.clone(), mark: Flags::default(), copier: None }
    }

    /// Creates a queue that [copies](Self::copy) packets, and adds these flags to the slots of each frame.
    pub(crate) fn copying(shared: &Arc<Shared>, mark: Flags, buffer_access: &BufferAccess) -> Self {
        let copier = match buffer_access {
            BufferAccess::Copied(_) => None,
            BufferAccess::ZeroCopy(exchange) => Some(Copier::new(exchange.pool())),
        };
        Self { mark, copier, ..Self::new(shared) }
    }
}

impl TxQueue for Tx {
    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        let done = self.on_rings(burst.len(), false, |sending, rings| match (sending.buffer_access, rings) {
            (BufferAccess::ZeroCopy(exchange), [ring, ..]) => sending.exchange(ring, exchange, burst),
            (_, rings) => sending.put(rings, burst),
        });
        // Packets whose frames were copied, or that now hold the programs' buffers.
        burst.discard(done);
        done
    }
}

impl Tx {
    /// Whether it sends to these rings.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Copies packets that are sent elsewhere to a ring. Those that there is no room for are dropped.
    pub(crate) fn copy(&mut self, packets: &[Packet], ring: usize) {
        let mut copier = self.copier.take();
        self.on_rings(packets.len(), true, |sending, rings| match (rings.get_mut(ring), sending.buffer_access) {
            (Some(ring), BufferAccess::Copied(_)) => sending.send(ring, packets),
            (Some(ring), BufferAccess::ZeroCopy(exchange)) => copier
                .as_mut()
                .map_or(0, |copier| copier.send(packets, |copies| sending.exchange(ring, exchange, copies))),
            (None, _) => 0,
        });
        self.copier = copier;
    }

    /// Sends up to `packets` packets by calling `send`, which returns how many are done. With `drop_others`,
    /// the rest is counted as dropped.
    #[inline]
    fn on_rings(
        &mut self,
        packets: usize,
        drop_others: bool,
        send: impl FnOnce(&mut Sending<'_>, &mut [ValeRing]) -> usize,
    ) -> usize {
        let Self { writer, shared, mark, .. } = self;
        let mut ring_set = shared.receiving().lock_datapath();
        let Some(ring_set) = ring_set.as_mut() else { return 0 };
        let (buffer_access, counters, monitors) =
            (&ring_set.buffer_access, &shared.counters, &shared.monitors[RECEIVING]);
        let (mark, tally) = (*mark, Tally::default());
        let header_len = shared.header_len();
        let mut sending = Sending { writer, header_len, buffer_access, counters, monitors, mark, tally, calls: 0 };
        let done = send(&mut sending, &mut ring_set.rings);
        let Sending { mut tally, calls, .. } = sending;
        if calls != 0 {
            ring_set.call(calls);
        }
        tally.packets = done - tally.drops;
        if drop_others {
            tally.drops += packets - done;
        }
        shared.counters.tx.count(&tally);
        done
    }
}

/// State of a burst while it is sent.
pub(super) struct Sending<'a> {
    writer: &'a mut Writer,
    /// Bytes of the header in front of each frame.
    header_len: usize,
    buffer_access: &'a BufferAccess,
    counters: &'a Counters,
    pub(super) monitors: &'a Monitors,
    /// Flags of each slot with a frame.
    pub(super) mark: Flags,
    pub(super) tally: Tally,
    /// Bits of the CSB entries whose program wants to be woken.
    calls: u64,
}

impl Sending<'_> {
    /// Copies packets, as many as there is room for. Returns how many are done.
    #[inline]
    fn put(&mut self, rings: &mut [ValeRing], packets: &[Packet]) -> usize {
        match rings {
            [] => 0,
            [ring] => self.send(ring, packets),
            rings => self.send_by_flow(rings, packets),
        }
    }

    /// Copies each packet to the ring of its flow. Packets that a ring has no room for are dropped, because
    /// there may be room for those after them.
    #[cold]
    fn send_by_flow(&mut self, rings: &mut [ValeRing], packets: &[Packet]) -> usize {
        rings.iter_mut().for_each(|ring| self.open(ring));
        let mut rest = packets;
        while let Some(first) = rest.first() {
            let to = select_ring(first, rings.len());
            let run = rest.iter().take_while(|packet| select_ring(packet, rings.len()) == to).count();
            let sent = self.fill(&mut rings[to], &rest[..run]);
            self.tally.drops += run - sent;
            rest = &rest[run..];
        }
        rings.iter().for_each(|ring| self.close(ring));
        packets.len()
    }

    /// Copies packets to one ring, as many as it has room for. Returns how many those were.
    #[inline]
    fn send(&mut self, ring: &mut ValeRing, packets: &[Packet]) -> usize {
        self.open(ring);
        let sent = self.fill(ring, packets);
        self.close(ring);
        sent
    }

    /// Takes back the slots that the program has released.
    #[inline]
    pub(super) fn open(&mut self, ring: &mut ValeRing) {
        let released = ring.poll_released(self.buffer_access, self.counters);
        ring.kring.advance_hwcur(released);
    }

    #[inline]
    pub(super) fn close(&mut self, ring: &ValeRing) {
        self.calls |= ring.publish();
    }

    /// Copies frames, as many as there is room for. Returns how many those were.
    #[inline]
    fn fill(&mut self, ring: &mut ValeRing, packets: &[Packet]) -> usize {
        let BufferAccess::Copied(bytes) = self.buffer_access else { return 0 };
        let room = ring.room();
        let flags = slots(1) | self.mark;
        let at_start = self.header_len == 0 && !ring.kring.offsets().any();
        let mut done = 0;
        let mut used = 0;
        let mut copied = 0;
        let mut seen = 0;
        for packet in packets {
            if used == room {
                break;
            }
            let (len, position) = (packet.len(), ring.kring.hwtail_plus(used));
            let buffer = ring.kring.ring().slot(position).buffer;
            let plain = at_start && !packet.flags().any(PacketFlags::CHAINED) && len >= MIN_FRAME_LEN;
            if plain && bytes.put(buffer, 0, packet) {
                // The cast is lossless, because a buffer of the pool is shorter than 64 KiB.
                ring.kring.ring().set_frame(position, buffer, len as u16, flags);
                (used, copied) = (used + 1, copied + len);
            } else {
                let header = header::of(packet);
                let frame = Frame { header: &header[..self.header_len], packet, mark: self.mark };
                match self.writer.give(ring, (&mut used, room), bytes, frame, &mut self.tally.bad_slots) {
                    WriteResult::Frame => copied += packet.total_len(),
                    WriteResult::Rejected => {
                        self.tally.drops += 1;
                        self.monitors.mirror(ring.number, &packets[seen..done]);
                        seen = done + 1;
                    }
                    WriteResult::Retry => break,
                }
            }
            done += 1;
        }
        self.monitors.mirror(ring.number, &packets[seen..done]);
        ring.kring.advance_hwtail(used);
        self.tally.bytes += copied;
        done
    }
}
