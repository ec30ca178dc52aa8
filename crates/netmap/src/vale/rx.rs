//! The receiving queue: frames that programs send are copied into buffers of the pool, or exchanged for such.

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_memory::{Burst, Cache, MAGAZINE, Mempool};
use ringpass_port::{RxQueue, Wake, Wakeable};

use super::counters::Tally;
use super::exchange;
use super::frame::{Reader, Taken};
use super::lane::LaneRing;
use super::run::read_run;
use super::{SENDING, Shared};
use crate::{Buffers, Place};

/// From all of the port's rings, in turns.
pub(crate) struct Rx {
    receiver: Receiver,
    /// The ring that comes first next time.
    first: usize,
    shared: Arc<Shared>,
}

struct Receiver {
    cache: Cache,
    reader: Reader,
}

impl Rx {
    pub(crate) fn new(shared: &Arc<Shared>, pool: &Mempool) -> Self {
        let receiver = Receiver { cache: pool.cache(), reader: Reader::default() };
        Self { receiver, first: 0, shared: shared.clone() }
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let (before, shared) = (burst.len(), &*self.shared);
        let Some(mut lane) = shared.sending().for_packets() else { return 0 };
        let Some(lane) = lane.as_mut() else { return 0 };
        let (mut tally, mut calls) = (Tally::default(), 0);
        let (late, early) = lane.rings.split_at_mut(self.first);
        for ring in early.iter_mut().chain(late) {
            if burst.room() == 0 {
                break;
            }
            let given = ring.look(&lane.place, &shared.counters);
            if given > 0 && self.receiver.take(ring, given, &lane.place, burst, &mut tally) > 0 {
                calls |= ring.tell();
            }
        }
        self.first = if self.first + 1 < lane.rings.len() { self.first + 1 } else { 0 };
        if calls != 0 {
            lane.call(calls);
        }
        shared.monitors[SENDING].see(&burst[before..]);
        tally.packets = burst.len() - before;
        shared.counters.rx.count(&tally);
        tally.packets
    }
}

impl Receiver {
    /// Takes frames out of a ring. Returns how many slots of it are done with.
    #[inline]
    fn take(&mut self, ring: &mut LaneRing, given: u32, place: &Place, burst: &mut Burst, tally: &mut Tally) -> u32 {
        let Self { cache, reader } = self;
        let done = match place {
            Place::Copied(bytes) => self.receive(ring, given, bytes, burst, tally),
            Place::Exchanged(exchange) => exchange::receive(exchange, (cache, reader), ring, given, burst, tally),
        };
        ring.served.take(done);
        ring.served.give(done);
        done
    }

    /// Copies frames, and gives their slots back at once. Returns how many slots those were. With the pool dry, or without
    /// their last slot, frames wait in the ring.
    #[inline]
    fn receive(
        &mut self,
        ring: &mut LaneRing,
        given: u32,
        bytes: &Buffers,
        burst: &mut Burst,
        tally: &mut Tally,
    ) -> u32 {
        let mut done = if ring.skipping { ring.skip(0, given) } else { 0 };
        while done < given && burst.room() > 0 {
            let some = (done..given).take(MAGAZINE).map(|n| ring.served.ring().slot(ring.served.given(n)));
            let (run, copied) = read_run(bytes, some, &mut self.cache, burst);
            (done, tally.bytes) = (done + run as u32, tally.bytes + copied);
            if done < given && run < MAGAZINE && burst.room() > 0 {
                // Not a plain one, or there was no buffer for it.
                match self.reader.take(ring, done, given, bytes, &mut self.cache) {
                    Taken::Frame(packet, slots) => {
                        tally.bytes += packet.total_len();
                        burst.push(packet);
                        done += slots;
                    }
                    Taken::Nothing { slots, bad } => {
                        (tally.drops, tally.bad_slots) = (tally.drops + 1, tally.bad_slots + bad);
                        done += slots;
                    }
                    Taken::Later => break,
                }
            }
        }
        done
    }
}

impl Wakeable for Rx {
    fn arm(&mut self) {
        if let Some(lane) = self.shared.sending().lock().as_ref() {
            // What is there already, the look finds that follows.
            lane.rings.iter().for_each(|ring| _ = ring.served.arm(0));
        }
    }

    fn disarm(&mut self) {
        if let Some(lane) = self.shared.sending().lock().as_ref() {
            lane.rings.iter().for_each(|ring| ring.served.disarm());
        }
        self.shared.kick.clear();
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(Wake::Readable(self.shared.kick.as_fd()));
    }
}
