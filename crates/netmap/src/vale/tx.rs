//! The sending queue: frames are copied into buffers of the slots that programs have released, or exchanged for such.

use std::sync::Arc;

use ringpass_memory::{Burst, Flags as PacketFlags, Packet};
use ringpass_port::TxQueue;

use super::counters::{Counters, Tally};
use super::frame::{Given, Writer, slots};
use super::lane::LaneRing;
use super::monitor::Monitors;
use super::spread::spread;
use super::{RECEIVING, SHORTEST, Shared};
use crate::Place;

/// To all of the port's rings, by flow.
pub(crate) struct Tx {
    writer: Writer,
    shared: Arc<Shared>,
}

impl Tx {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { writer: Writer::default(), shared: shared.clone() }
    }
}

impl TxQueue for Tx {
    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        let done = self.on_rings(burst.len(), false, |sending, rings| match (sending.place, rings) {
            (Place::Exchanged(exchange), [ring, ..]) => sending.exchange(ring, exchange, burst),
            (_, rings) => sending.put(rings, burst),
        });
        // What was copied, or what programs have given for it.
        burst.discard(done);
        done
    }
}

impl Tx {
    /// Whether it sends to these rings.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Copies packets that go elsewhere. What there is no room for is dropped.
    pub(crate) fn copy(&mut self, packets: &[Packet]) {
        self.on_rings(packets.len(), true, |sending, rings| sending.put(rings, packets));
    }

    /// Sends some of so many packets, and says how many are done with. With `drop_others` the rest is counted as dropped.
    #[inline]
    fn on_rings(
        &mut self,
        packets: usize,
        drop_others: bool,
        send: impl FnOnce(&mut Sending<'_>, &mut [LaneRing]) -> usize,
    ) -> usize {
        let Self { writer, shared } = self;
        let mut lane = shared.receiving().in_turn();
        let Some(lane) = lane.as_mut() else { return 0 };
        let (place, counters, monitors) = (&lane.place, &shared.counters, &shared.monitors[RECEIVING]);
        let mut sending = Sending { writer, place, counters, monitors, tally: Tally::default(), calls: 0 };
        let done = send(&mut sending, &mut lane.rings);
        let Sending { mut tally, calls, .. } = sending;
        if calls != 0 {
            lane.call(calls);
        }
        tally.packets = done - tally.drops;
        if drop_others {
            tally.drops += packets - done;
        }
        shared.counters.tx.count(&tally);
        done
    }
}

/// A burst on its way.
pub(super) struct Sending<'a> {
    writer: &'a mut Writer,
    place: &'a Place,
    counters: &'a Counters,
    pub(super) monitors: &'a Monitors,
    pub(super) tally: Tally,
    /// Entries of rings whose program wants to be called.
    calls: u64,
}

impl Sending<'_> {
    /// Copies packets, as many as there is room for. Returns how many are done with.
    #[inline]
    fn put(&mut self, rings: &mut [LaneRing], packets: &[Packet]) -> usize {
        match rings {
            [] => 0,
            [ring] => self.send(ring, packets),
            rings => self.send_by_flow(rings, packets),
        }
    }

    /// Each to the ring of its flow; those that a ring has no room for are dropped, as others behind them have.
    #[cold]
    fn send_by_flow(&mut self, rings: &mut [LaneRing], packets: &[Packet]) -> usize {
        rings.iter_mut().for_each(|ring| self.open(ring));
        let mut rest = packets;
        while let Some(first) = rest.first() {
            let to = spread(first, rings.len());
            let run = rest.iter().take_while(|packet| spread(packet, rings.len()) == to).count();
            let sent = self.fill(&mut rings[to], &rest[..run]);
            self.tally.drops += run - sent;
            rest = &rest[run..];
        }
        rings.iter().for_each(|ring| self.close(ring));
        packets.len()
    }

    /// To one ring, as many as it has room for. Returns how many those were.
    #[inline]
    fn send(&mut self, ring: &mut LaneRing, packets: &[Packet]) -> usize {
        self.open(ring);
        let sent = self.fill(ring, packets);
        self.close(ring);
        sent
    }

    /// Takes back what the program has released.
    #[inline]
    pub(super) fn open(&mut self, ring: &mut LaneRing) {
        let released = ring.look(self.place, self.counters);
        ring.served.take(released);
    }

    #[inline]
    pub(super) fn close(&mut self, ring: &LaneRing) {
        self.calls |= ring.tell();
    }

    /// Copies frames, as many as there is room for. Returns how many those were.
    #[inline]
    fn fill(&mut self, ring: &mut LaneRing, packets: &[Packet]) -> usize {
        let Place::Copied(bytes) = self.place else { return 0 };
        let room = ring.room();
        let (mut done, mut used, mut copied, mut seen) = (0, 0, 0, 0);
        for packet in packets {
            if used == room {
                break;
            }
            let (len, position) = (packet.len(), ring.served.free(used));
            let buffer = ring.served.ring().slot(position).buffer;
            let plain = !packet.flags().any(PacketFlags::CHAINED) && len >= SHORTEST;
            if plain && bytes.put(buffer, 0, packet) {
                // As a buffer of the pool is shorter than 64 KiB.
                ring.served.ring().set_frame(position, buffer, len as u16, slots(1));
                (used, copied) = (used + 1, copied + len);
            } else {
                match self.writer.give(ring, (&mut used, room), bytes, packet, &mut self.tally.bad_slots) {
                    Given::Frame => copied += packet.total_len(),
                    Given::Never => {
                        self.tally.drops += 1;
                        self.monitors.see(&packets[seen..done]);
                        seen = done + 1;
                    }
                    Given::Later => break,
                }
            }
            done += 1;
        }
        self.monitors.see(&packets[seen..done]);
        ring.served.give(used);
        self.tally.bytes += copied;
        done
    }
}
