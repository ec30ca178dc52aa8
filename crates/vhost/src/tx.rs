//! The sending queue: frames are copied into buffers that the guest made available.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{Burst, Flags, MAX_BATCH, Mempool, Packet};
use ringpass_port::{Software, TxQueue};
use ringpass_virtio::device::{Access, Chain, Taken, Virtqueue};
use ringpass_virtio::net_header;

use crate::agreed::{Agreed, SHORTEST, Takes};
use crate::bytes::copy;
use crate::fault::Fault;
use crate::port::{Copying, Serving};
use crate::shared::Shared;
use crate::tx_chain::{Outcome, Special};
use crate::vring::with_ring;

/// Does in software what the guest does not take over.
pub(crate) struct Tx {
    sender: Software<Sender>,
    takes: Takes,
    shared: Arc<Shared>,
}

/// Sends to one of the pairs of queues that the guest has enabled.
struct Sender {
    queue: usize,
    taken: Taken,
    copying: Copying,
    shared: Arc<Shared>,
    _serving: Serving,
}

/// What became of a burst.
#[derive(Default)]
pub(crate) struct Sent {
    /// Packets at the burst's front that are done with.
    pub(crate) done: usize,
    /// Packets that have left the burst: their buffers are the guest's.
    pub(crate) lent: usize,
    /// Of these, those that were not copied.
    pub(crate) mapped: usize,
    /// Of these, those that could not be sent.
    drops: usize,
    pub(crate) bytes: usize,
    /// The guest wants to be interrupted.
    pub(crate) call: bool,
}

impl Tx {
    pub(crate) fn new(queue: usize, shared: &Arc<Shared>, pool: &Mempool, copying: Copying, serving: &Serving) -> Self {
        let taken = Taken::with_capacity(MAX_BATCH);
        let sender = Sender { queue, taken, copying, shared: shared.clone(), _serving: serving.clone() };
        let takes = Takes::Plain;
        Self { sender: Software::new(sender, takes.requests(), pool), takes, shared: shared.clone() }
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let takes = self.shared.takes();
        if takes != self.takes {
            self.takes = takes;
            self.sender.set_hardware(takes.requests());
        }
        self.sender.tx_burst(burst)
    }
}

impl TxQueue for Sender {
    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let Self { queue, taken, copying, shared, .. } = self;
        let Some((number, vring)) = shared.route(*queue).filter(|_| !burst.is_empty()) else { return 0 };
        let mut state = vring.in_turn();
        let Some(running) = state.moving() else { return 0 };
        let (mut sent, size) = (Sent::default(), running.size);
        taken.begin(Taken::BUDGET);
        let burst_to = To { agreed: running.agreed, longest: shared.longest(), size, copied: copying.mask() };
        let result = match &mut running.mapped {
            None => with_ring!(&mut running.ring, ring => burst_to.send(ring, taken, burst, &mut sent)),
            Some(mapped) => {
                with_ring!(&mut running.ring, ring => mapped.send(ring, &burst_to, (taken, burst), &mut sent))
            }
        };
        if sent.call {
            running.call();
        }
        if let Err(fault) = result {
            running.broken = true;
            shared.report(number, &fault);
        }
        drop(state);
        burst.discard(sent.done);
        let done = sent.done + sent.lent;
        if sent.mapped > 0 {
            shared.counters.mapped.fetch_add(sent.mapped as u64, Relaxed);
        }
        shared.counters.tx[*queue].count_alone(done - sent.drops, sent.bytes, sent.drops);
        done
    }
}

/// What frames to the guest are made by.
pub(crate) struct To {
    pub(crate) agreed: Agreed,
    /// Longest frame without a VLAN tag.
    longest: usize,
    /// Of the ring.
    size: usize,
    /// Mask of the lengths that are copied.
    copied: usize,
}

/// What needs more than that the frame is copied behind a header.
const SPECIAL: Flags = Flags::CHAINED.or(Flags::VLAN).or(Flags::CHECKSUM).or(Flags::L3_CHECKSUM).or(Flags::TSO);

impl To {
    /// Takes chains, copies frames, gives the chains back.
    pub(crate) fn send<Q: Virtqueue>(
        &self,
        ring: &mut Q,
        taken: &mut Taken,
        packets: &[Packet],
        sent: &mut Sent,
    ) -> Result<(), Fault> {
        taken.clear();
        let enough = ring.take(Access::Write, packets.len(), taken)? == packets.len();
        let (mut used, mut result) = (0, Ok(()));
        loop {
            let (rest, chains) = (&packets[sent.done..], &taken.chains[used..]);
            let (run, bytes) = if self.agreed.header == net_header::LEN {
                self.copy_run::<{ net_header::LEN }>(rest, chains)
            } else {
                self.copy_run::<{ net_header::LEN + 2 }>(rest, chains)
            };
            let given = chains[..run].iter().zip(rest);
            ring.give_all(given.map(|(chain, packet)| chain.used((self.agreed.header + packet.len()) as u32)));
            (sent.done, used, sent.bytes) = (sent.done + run, used + run, sent.bytes + bytes);
            let Some(packet) = packets.get(sent.done) else { break };
            if used == taken.chains.len() {
                // Frames in several chains may have used up those of the others.
                match enough.then(|| ring.take(Access::Write, packets.len() - sent.done, taken)) {
                    None | Some(Ok(0)) => break,
                    Some(Ok(_)) => continue,
                    Some(Err(broken)) => {
                        result = Err(broken.into());
                        break;
                    }
                }
            }
            let alone = sent.done + sent.lent == 0;
            let special = Special { agreed: &self.agreed, longest: self.longest, size: self.size, alone };
            match special.send(ring, packet, taken, used) {
                Ok(Outcome::Sent { bytes, chains }) => (used, sent.bytes) = (used + chains, sent.bytes + bytes),
                Ok(Outcome::Never) => sent.drops += 1,
                Ok(Outcome::Later) => break,
                Err(fault) => {
                    result = Err(fault);
                    break;
                }
            }
            sent.done += 1;
        }
        let left = taken.chains.len() - used;
        ring.put_back(taken, left);
        sent.call |= used > 0 && ring.publish();
        result
    }

    /// Whether the guest may have a packet without anything being done to it.
    #[inline(always)]
    pub(crate) fn has_as_is(&self, packet: &Packet) -> bool {
        !packet.flags().any(SPECIAL) && self.passes(packet.len())
    }

    /// Whether a frame of this length is one that the guest may have.
    #[inline(always)]
    fn passes(&self, len: usize) -> bool {
        len.wrapping_sub(SHORTEST) <= self.longest.wrapping_sub(SHORTEST)
    }

    /// What is known of a frame that the guest wants to know.
    #[inline(always)]
    pub(crate) fn verdicts(&self) -> Flags {
        if self.agreed.takes == Takes::Plain { Flags::default() } else { Flags::L4_GOOD }
    }

    /// Copies packets that are plain, each to the first piece of a chain. Returns how many, and their bytes.
    #[inline(always)]
    fn copy_run<const HEADER: usize>(&self, packets: &[Packet], chains: &[Chain]) -> (usize, usize) {
        let verdicts = self.verdicts();
        let (mut run, mut bytes) = (0, 0);
        for (packet, chain) in packets.iter().zip(chains) {
            let len = packet.len();
            let room = chain.first.len as usize;
            if !self.has_as_is(packet) || HEADER + len > room {
                break;
            }
            let known = packet.flags().any(verdicts);
            let to = chain.first.start.as_ptr();
            // SAFETY: `HEADER + len` bytes are there, mapped (`Virtqueue`) as long as the ring is borrowed. They are the
            // guest's, never lent out as a reference, and no part of the packet.
            unsafe {
                write_header::<HEADER>(to, known);
                copy(packet.as_ptr(), to.add(HEADER), len & self.copied);
            }
            run += 1;
            bytes += len;
        }
        (run, bytes)
    }
}

/// Writes the header of a frame in one buffer, of which nothing is asked.
///
/// # Safety
/// There are so many bytes to write.
#[inline(always)]
pub(crate) unsafe fn write_header<const HEADER: usize>(to: *mut u8, valid: bool) {
    const DATA_VALID: u64 = 2;
    // SAFETY: 10 or 12 bytes, says the caller.
    unsafe {
        to.cast::<u64>().write_unaligned(if valid { DATA_VALID } else { 0 });
        if HEADER == net_header::LEN {
            to.add(8).cast::<u16>().write_unaligned(0);
        } else {
            // In one buffer.
            to.add(8).cast::<u32>().write_unaligned(1 << 16);
        }
    }
}
