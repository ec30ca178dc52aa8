//! The receiving queue: frames that programs send are copied to buffers of the pool, or exchanged for them.

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_memory::{Burst, Cache, MAGAZINE, Mempool};
use ringpass_netmap::Buffers;
use ringpass_netmap::run::read_run;
use ringpass_port::{RxQueue, WakeSource, Wakeable};

use super::counters::Tally;
use super::exchange;
use super::frame::{ReadResult, Reader};
use super::ring_set::ValeRing;
use super::{SENDING, Shared, header};
use crate::BufferAccess;

/// Largest number of slots that are taken from a port's rings in one call. It is more than a burst of frames takes,
/// so that only a program whose slots hold no valid frames meets it. The rest waits for the worker's next round,
/// which comes at once or with the next kick, and within 100 ms in any case.
const MAX_SLOTS: u32 = 1024;

/// Receives from all rings of the port in turn.
pub(crate) struct Rx {
    receiver: Receiver,
    /// Index of the ring that comes first in the next burst.
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
        let Some(mut ring_set) = shared.sending().try_lock_datapath() else { return 0 };
        let Some(ring_set) = ring_set.as_mut() else { return 0 };
        let mut tally = Tally::default();
        let mut calls = 0;
        let mut slots = MAX_SLOTS;
        let (late, early) = ring_set.rings.split_at_mut(self.first);
        for ring in early.iter_mut().chain(late) {
            if burst.room() == 0 || slots == 0 {
                break;
            }
            let given = ring.poll_released(&ring_set.buffer_access, &shared.counters).min(slots);
            let first = burst.len();
            let done =
                if given > 0 { self.receiver.take(ring, given, &ring_set.buffer_access, burst, &mut tally) } else { 0 };
            if done > 0 {
                calls |= ring.publish();
                shared.monitors[SENDING].mirror(ring.number, &burst[first..]);
            }
            slots -= done;
        }
        self.first = if self.first + 1 < ring_set.rings.len() { self.first + 1 } else { 0 };
        if calls != 0 {
            ring_set.call(calls);
        }
        let header_len = shared.header_len();
        if header_len > 0 {
            tally.drops += header::take_off(burst, before, header_len);
        }
        tally.packets = burst.len() - before;
        shared.counters.rx.count(&tally);
        tally.packets
    }
}

impl Receiver {
    /// Takes frames out of a ring. Returns how many of its slots are done.
    #[inline]
    fn take(
        &mut self,
        ring: &mut ValeRing,
        given: u32,
        buffer_access: &BufferAccess,
        burst: &mut Burst,
        tally: &mut Tally,
    ) -> u32 {
        let Self { cache, reader } = self;
        let done = match buffer_access {
            BufferAccess::Copied(bytes) => self.receive(ring, given, bytes, burst, tally),
            BufferAccess::ZeroCopy(exchange) => exchange::receive(exchange, (cache, reader), ring, given, burst, tally),
        };
        ring.kring.advance_hwcur(done);
        ring.kring.advance_hwtail(done);
        done
    }

    /// Copies frames, and returns their slots at once. Returns how many slots those were. Frames wait in the
    /// ring if the pool is empty or their last slot is missing.
    #[inline]
    fn receive(
        &mut self,
        ring: &mut ValeRing,
        given: u32,
        bytes: &Buffers,
        burst: &mut Burst,
        tally: &mut Tally,
    ) -> u32 {
        let mut done = if ring.skipping { ring.skip(0, given) } else { 0 };
        // Where frames have offsets, none is plain.
        let plain = if ring.kring.offsets().any() { 0 } else { MAGAZINE };
        while done < given && burst.room() > 0 {
            let some = (done..given).take(plain).map(|n| ring.kring.ring().slot(ring.kring.hwcur_plus(n)));
            let (run, copied) = read_run(bytes, some, &mut self.cache, burst);
            (done, tally.bytes) = (done + run as u32, tally.bytes + copied);
            if done < given && run < MAGAZINE && burst.room() > 0 {
                // The frame is not a plain one, or there was no buffer for it.
                match self.reader.take(ring, done, given, bytes, &mut self.cache) {
                    ReadResult::Frame(packet, slots) => {
                        tally.bytes += packet.total_len();
                        burst.push(packet);
                        done += slots;
                    }
                    ReadResult::Dropped { slots, bad } => {
                        (tally.drops, tally.bad_slots) = (tally.drops + 1, tally.bad_slots + bad);
                        done += slots;
                    }
                    ReadResult::Retry => break,
                }
            }
        }
        done
    }
}

impl Wakeable for Rx {
    fn arm(&mut self) {
        if let Some(ring_set) = self.shared.sending().lock().as_ref() {
            // The result is not needed: the caller polls once more before it blocks.
            ring_set.rings.iter().for_each(|ring| _ = ring.kring.arm(0));
        }
    }

    fn disarm(&mut self) {
        if let Some(ring_set) = self.shared.sending().lock().as_ref() {
            ring_set.rings.iter().for_each(|ring| ring.kring.disarm());
        }
        self.shared.kick.clear();
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Readable(self.shared.kick.as_fd()));
    }
}
