//! The receive queue: copies frames that the guest sends into buffers of the pool.

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_memory::{Burst, Cache, MAGAZINE, MAX_BATCH, Mempool};
use ringpass_port::lending::{Borrower, Lending};
use ringpass_port::{Error, RxQueue, WakeSource, Wakeable};
use ringpass_virtio::device::{ChainBatch, DeviceAccess, Virtqueue};

use crate::backoff::PollBackoff;
use crate::bytes::copy;
use crate::copy_mode::CopyMode;
use crate::fault::Fault;
use crate::negotiated::{MAX_FRAME_LEN, MIN_FRAME_LEN, Negotiated, VLAN_TAG_LEN};
use crate::rx_chain::{Frame, read_chain};
use crate::shared::{Shared, SharedServer};
use crate::vring::{Running, with_logged_ring};

/// Receive queue of the port, fed by the guest's virtqueue `2 * queue + 1`.
pub(crate) struct Rx {
    queue: usize,
    receiver: Receiver,
    backoff: PollBackoff,
    /// Whether the last poll left chains in the virtqueue, for which no further kick comes.
    has_leftover: bool,
    shared: Arc<Shared>,
    _serving: SharedServer,
}

/// Receives frames from either kind of ring.
pub(crate) struct Receiver {
    cache: Cache,
    /// Buffers lent by the next guest of a service chain.
    pub(crate) next: Option<Borrower>,
    pub(crate) taken: ChainBatch,
    /// Longest frame in bytes, without a VLAN tag.
    longest: usize,
    /// Bytes beyond `MIN_FRAME_LEN` that a frame may have on the fast path: it fits into one buffer and the
    /// MTU.
    pub(crate) span: usize,
    /// Number of buffers that the longest frame takes.
    most: usize,
    pub(crate) copying: CopyMode,
}

/// Result of receiving a burst.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    drops: usize,
    /// Whether the guest wants to be interrupted.
    call: bool,
    /// Whether the virtqueue has no more chains.
    drained: bool,
}

impl Rx {
    pub(crate) fn new(
        queue: usize,
        shared: &Arc<Shared>,
        pool: &Mempool,
        copying: CopyMode,
        serving: &SharedServer,
    ) -> Self {
        let (longest, size) = (MIN_FRAME_LEN + shared.mtu, pool.buffer_size());
        let span = longest.min(size) - MIN_FRAME_LEN;
        let most = longest_frame(shared).div_ceil(size);
        let receiver = Receiver {
            cache: pool.cache(),
            next: None,
            taken: ChainBatch::with_capacity(MAX_BATCH),
            longest,
            span,
            most,
            copying,
        };
        Self {
            queue,
            receiver,
            backoff: PollBackoff::default(),
            has_leftover: false,
            shared: shared.clone(),
            _serving: serving.clone(),
        }
    }

    /// Returns the index of the guest's virtqueue.
    fn number(&self) -> usize {
        2 * self.queue + 1
    }

    /// Takes and drops what the guest sends on a queue that is not enabled (vhost-user, "Ring states").
    #[cold]
    fn discard(&mut self) {
        let Some(mut state) = self.shared.vrings[self.number()].try_lock_datapath() else { return };
        let Some(running) = state.running.as_mut().filter(|running| !running.broken) else { return };
        let taken = &mut self.receiver.taken;
        taken.begin(ChainBatch::BUDGET);
        let turn = running.turns.begin();
        let result = with_logged_ring!(running, ring => {
            let result = ring.take(DeviceAccess::Read, MAGAZINE, taken);
            ring.push_used(taken.chains.iter().map(|chain| chain.used(0)));
            result.map(|_| ring.publish()).map_err(Fault::from)
        });
        let result = running.turns.end(turn).and(result);
        self.shared.counters.rx[self.queue].count_single_writer(0, 0, taken.chains.len());
        match result {
            Ok(true) => running.call(),
            Ok(false) => {}
            Err(fault) => {
                running.broken = true;
                self.shared.faults.report(self.number(), &fault);
            }
        }
    }
}

/// Returns the length in bytes of the longest frame that a guest may send.
pub(crate) fn longest_frame(shared: &Shared) -> usize {
    if shared.offloads.tso { MAX_FRAME_LEN } else { MIN_FRAME_LEN + VLAN_TAG_LEN + shared.mtu }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        if self.backoff.is_active() {
            return 0;
        }
        let (before, shared) = (burst.len(), &*self.shared);
        let Some(mut state) = shared.vrings[self.number()].try_lock_datapath() else { return 0 };
        let mut received = Received::default();
        self.has_leftover = false;
        if let Some(running) = state.active() {
            let (negotiated, turn) = (running.negotiated, running.turns.begin());
            let result =
                with_logged_ring!(running, ring => self.receiver.receive(ring, &negotiated, burst, &mut received));
            let result = result.and(running.turns.end(turn));
            if received.call {
                running.call();
            }
            self.has_leftover = result.is_ok() && !received.drained;
            if let Err(fault) = result {
                running.broken = true;
                shared.faults.report(self.number(), &fault);
            }
        } else if state.running.is_some() {
            drop(state);
            self.discard();
        }
        let (shared, receiver) = (&*self.shared, &mut self.receiver);
        if shared.announcement.is_due() {
            received.bytes += shared.announcement.deliver(&mut receiver.cache, burst).unwrap_or(0);
        }
        let packets = burst.len() - before;
        self.backoff.record_poll(packets, received.drained);
        shared.counters.rx[self.queue].count_single_writer(packets, received.bytes, received.drops);
        packets
    }

    fn has_link(&self) -> bool {
        self.shared.is_up()
    }

    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        self.receiver.chain_to(lending).map_err(Error::Unsupported)
    }
}

impl Receiver {
    /// Takes chains, copies their frames and returns the chains to the guest.
    ///
    /// Takes at most as many chains as the burst has room for, whether or not their frames are valid, and
    /// reads at most [`ChainBatch::BUDGET`] descriptors. A guest that adds chains as fast as they are dropped
    /// therefore cannot keep the caller here, which holds the queue's lock.
    fn receive<Q: Virtqueue>(
        &mut self,
        ring: &mut Q,
        negotiated: &Negotiated,
        burst: &mut Burst,
        received: &mut Received,
    ) -> Result<(), Fault> {
        let mut room = burst.room();
        self.taken.begin(ChainBatch::BUDGET);
        while room > 0 {
            self.taken.clear();
            let want = room.min(MAGAZINE);
            let taken = ring.take(DeviceAccess::Read, want, &mut self.taken)?;
            received.drained = taken < want && !self.taken.is_spent();
            if taken == 0 {
                break;
            }
            let first = self.copy_to_next(negotiated, burst, received);
            let (done, result) = self.copy_all(first, negotiated, burst, received);
            received.drained &= done == taken;
            // With the pool empty, frames wait in the guest's queue.
            ring.put_back(&mut self.taken, taken - done);
            ring.push_used(self.taken.chains.iter().map(|chain| chain.used(0)));
            received.call |= ring.publish();
            result?;
            if done < want {
                break;
            }
            room -= done;
        }
        Ok(())
    }

    /// Copies the frames of all chains from `first` on, until the pool is empty. Returns the number of chains
    /// that are done, counted from the start of the batch.
    #[inline]
    fn copy_all(
        &mut self,
        first: usize,
        negotiated: &Negotiated,
        burst: &mut Burst,
        received: &mut Received,
    ) -> (usize, Result<(), Fault>) {
        let Self { cache, taken: ChainBatch { chains, pieces, .. }, longest, span, most, copying, .. } = self;
        let copied = copying.mask();
        let (header, host_offloads) = (negotiated.header, negotiated.host_offloads.is_some());
        let (mut done, mut bytes) = (first, 0);
        let mut result = Ok(());
        while done < chains.len() {
            // Frames in several buffers may have used up the buffers meant for other chains.
            let mut buffers = cache.packets(chains.len() - done + *most - 1);
            let mut places = burst.spare().iter_mut();
            let before = (done, places.len());
            for chain in &chains[done..] {
                let len = (chain.first.len as usize).wrapping_sub(header);
                let plain = chain.more.1 == 0 && len.wrapping_sub(MIN_FRAME_LEN) <= *span;
                // SAFETY: `plain` means that `first.len` is at least a header and `MIN_FRAME_LEN` bytes. The
                // piece is mapped by the contract of `Virtqueue`, as the ring stays borrowed and so keeps its
                // memory.
                if plain && !(host_offloads && unsafe { requests_offload(chain.first.start.as_ptr()) }) {
                    let Some(packet) = buffers.next() else { break };
                    // SAFETY: the first piece has `len` bytes behind the header, with `len <= MIN_FRAME_LEN +
                    // span`, which is at most the size of the packet's buffer. `packet` comes from
                    // `Cache::packets` and is forgotten after `copy_received`. `places` has a free place: the
                    // batch has at most as many chains as the burst had room for (`receive`), and each chain
                    // takes at most one place.
                    unsafe {
                        copy(chain.first.start.as_ptr().add(header), packet.as_ptr(), len & copied);
                        places.next().unwrap_unchecked().write(packet.copy_received(0, len));
                    }
                    std::mem::forget(packet);
                    bytes += len;
                } else {
                    match read_chain(chain, pieces, negotiated, *longest, &mut buffers) {
                        Ok(Frame::Whole(packet)) => {
                            bytes += packet.total_len();
                            // SAFETY: `places` has a free place: the batch has at most as many chains as the
                            // burst had room for (`receive`), and each chain takes at most one place.
                            unsafe { places.next().unwrap_unchecked() }.write(packet);
                        }
                        Ok(Frame::Faulty) => received.drops += 1,
                        Ok(Frame::NoBuffers) => break,
                        Err(fault) => {
                            result = Err(fault);
                            break;
                        }
                    }
                }
                done += 1;
            }
            let written = before.1 - places.len();
            drop(buffers);
            // SAFETY: `written` is the number of places taken from the front of `spare`, and each was written
            // when taken.
            unsafe { burst.commit(written) };
            if done == before.0 || result.is_err() {
                break;
            }
        }
        received.bytes += bytes;
        (done, result)
    }
}

/// Returns whether a virtio-net header requests an offload: its `flags` or `gso_type` is not 0.
///
/// # Safety
/// `header` must be valid for reads of 2 bytes.
#[inline(always)]
pub(crate) unsafe fn requests_offload(header: *const u8) -> bool {
    // SAFETY: `header` is valid for reads of 2 bytes by this function's contract.
    unsafe { header.cast::<[u8; 2]>().read_unaligned() != [0; 2] }
}

impl Wakeable for Rx {
    fn arm(&mut self) {
        self.backoff.end();
        if let Some(running) = &mut self.shared.vrings[self.number()].lock().running {
            // Chains that are already available are found by the poll that follows.
            with_logged_ring!(running, ring => ring.arm());
        }
    }

    fn disarm(&mut self) {
        if let Some(running) = &mut self.shared.vrings[self.number()].lock().running {
            with_logged_ring!(running, ring => ring.disarm());
        }
        self.shared.kicks[self.queue].clear();
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        let silent = |running: &Running| running.kick.is_none();
        // Poll if chains were left for the next burst, or if the guest gave no kick descriptor.
        let turns = self.has_leftover || self.shared.vrings[self.number()].lock().running.as_ref().is_some_and(silent);
        each(if turns { WakeSource::Polled } else { WakeSource::Readable(self.shared.kicks[self.queue].as_fd()) });
    }
}
