//! The receiving queue: frames that the guest sends are copied into buffers of the pool.

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_memory::{Borrower, Burst, Cache, Lending, MAGAZINE, MAX_BATCH, Mempool};
use ringpass_port::{Error, RxQueue, Wake, Wakeable};
use ringpass_virtio::device::{Access, Taken, Virtqueue};

use crate::agreed::{Agreed, LONGEST, SHORTEST, TAG};
use crate::bytes::copy;
use crate::fault::Fault;
use crate::pause::Pause;
use crate::port::{Copying, Serving};
use crate::rx_chain::{Frame, read_chain};
use crate::shared::Shared;
use crate::vring::{Running, with_ring};

/// The guest's queue `2 * queue + 1`.
pub(crate) struct Rx {
    queue: usize,
    receiver: Receiver,
    pause: Pause,
    /// The last look left chains in the queue: no kick comes for these.
    left: bool,
    shared: Arc<Shared>,
    _serving: Serving,
}

/// What receives, whatever the ring.
pub(crate) struct Receiver {
    cache: Cache,
    /// What the next guest of a service chain lends.
    pub(crate) next: Option<Borrower>,
    pub(crate) taken: Taken,
    /// Longest frame without a VLAN tag.
    longest: usize,
    /// Of these the plain path takes so many bytes more than the shortest: what fits into a buffer, too.
    pub(crate) span: usize,
    /// Buffers that the longest frame takes.
    most: usize,
    pub(crate) copying: Copying,
}

/// What became of a burst.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    drops: usize,
    /// The guest wants to be interrupted.
    call: bool,
    /// There are no more.
    all: bool,
}

impl Rx {
    pub(crate) fn new(queue: usize, shared: &Arc<Shared>, pool: &Mempool, copying: Copying, serving: &Serving) -> Self {
        let (longest, size) = (SHORTEST + shared.mtu, pool.buffer_size());
        let span = longest.min(size) - SHORTEST;
        let most = longest_frame(shared).div_ceil(size);
        let receiver = Receiver {
            cache: pool.cache(),
            next: None,
            taken: Taken::with_capacity(MAX_BATCH),
            longest,
            span,
            most,
            copying,
        };
        Self {
            queue,
            receiver,
            pause: Pause::default(),
            left: false,
            shared: shared.clone(),
            _serving: serving.clone(),
        }
    }

    /// The guest's queue.
    fn number(&self) -> usize {
        2 * self.queue + 1
    }

    /// A queue that is not enabled takes what the guest sends and drops it (vhost-user, "Ring states").
    #[cold]
    fn discard(&mut self) {
        let Some(mut state) = self.shared.vrings[self.number()].for_packets() else { return };
        let Some(running) = state.running.as_mut().filter(|running| !running.broken) else { return };
        let taken = &mut self.receiver.taken;
        taken.begin(Taken::BUDGET);
        let result = with_ring!(&mut running.ring, ring => {
            let result = ring.take(Access::Read, MAGAZINE, taken);
            ring.give_all(taken.chains.iter().map(|chain| chain.used(0)));
            result.map(|_| ring.publish())
        });
        self.shared.counters.rx[self.queue].count_alone(0, 0, taken.chains.len());
        match result {
            Ok(true) => running.call(),
            Ok(false) => {}
            Err(broken) => {
                running.broken = true;
                self.shared.report(self.number(), &broken.into());
            }
        }
    }
}

/// The longest frame that a guest may send.
pub(crate) fn longest_frame(shared: &Shared) -> usize {
    if shared.offloads.tso { LONGEST } else { SHORTEST + TAG + shared.mtu }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        if self.pause.lasts() {
            return 0;
        }
        let (before, shared) = (burst.len(), &*self.shared);
        let Some(mut state) = shared.vrings[self.number()].for_packets() else { return 0 };
        let mut received = Received::default();
        self.left = false;
        if let Some(running) = state.moving() {
            let agreed = running.agreed;
            let result =
                with_ring!(&mut running.ring, ring => self.receiver.receive(ring, &agreed, burst, &mut received));
            if received.call {
                running.call();
            }
            self.left = result.is_ok() && !received.all;
            if let Err(fault) = result {
                running.broken = true;
                shared.report(self.number(), &fault);
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
        self.pause.after(packets, received.all);
        shared.counters.rx[self.queue].count_alone(packets, received.bytes, received.drops);
        packets
    }

    fn has_link(&self) -> bool {
        self.shared.is_up()
    }

    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        self.receiver.chain_to(lending).map_err(Error::Other)
    }
}

impl Receiver {
    /// Takes chains, copies frames, gives the chains back.
    ///
    /// Takes at most as many chains as the burst has room for, whether or not their frames can pass, and reads at most
    /// [`Taken::BUDGET`] descriptors: a guest that adds chains as fast as they are dropped does not keep the caller here,
    /// who holds the queue's lock.
    fn receive<Q: Virtqueue>(
        &mut self,
        ring: &mut Q,
        agreed: &Agreed,
        burst: &mut Burst,
        received: &mut Received,
    ) -> Result<(), Fault> {
        let mut room = burst.room();
        self.taken.begin(Taken::BUDGET);
        while room > 0 {
            self.taken.clear();
            let want = room.min(MAGAZINE);
            let taken = ring.take(Access::Read, want, &mut self.taken)?;
            received.all = taken < want && !self.taken.is_spent();
            if taken == 0 {
                break;
            }
            let first = self.copy_to_next(agreed, burst, received);
            let (done, result) = self.copy_all(first, agreed, burst, received);
            received.all &= done == taken;
            // With the pool dry, frames wait in the guest's queue.
            ring.put_back(&mut self.taken, taken - done);
            ring.give_all(self.taken.chains.iter().map(|chain| chain.used(0)));
            received.call |= ring.publish();
            result?;
            if done < want {
                break;
            }
            room -= done;
        }
        Ok(())
    }

    /// Copies the frames of all chains from `first` on, until the pool is dry. Returns how many chains are done.
    #[inline]
    fn copy_all(
        &mut self,
        first: usize,
        agreed: &Agreed,
        burst: &mut Burst,
        received: &mut Received,
    ) -> (usize, Result<(), Fault>) {
        let Self { cache, taken: Taken { chains, pieces, .. }, longest, span, most, copying, .. } = self;
        let copied = copying.mask();
        let (header, tells) = (agreed.header, agreed.tells.is_some());
        let (mut done, mut bytes) = (first, 0);
        let mut result = Ok(());
        while done < chains.len() {
            // Frames in several buffers may have used up those that were for the others.
            let mut buffers = cache.packets(chains.len() - done + *most - 1);
            let mut places = burst.spare().iter_mut();
            let before = (done, places.len());
            for chain in &chains[done..] {
                let len = (chain.first.len as usize).wrapping_sub(header);
                let plain = chain.more.1 == 0 && len.wrapping_sub(SHORTEST) <= *span;
                // SAFETY: longer than a header, and mapped (`Virtqueue`) as long as the ring is borrowed.
                if plain && !(tells && unsafe { says_something(chain.first.start.as_ptr()) }) {
                    let Some(packet) = buffers.next() else { break };
                    // SAFETY: `len` bytes behind the header in the guest's piece; as many in the buffer, as `span` is at
                    // most what it takes. The packet is forgotten once it was copied; a burst has as many places as
                    // chains were taken, and each takes one at most.
                    unsafe {
                        copy(chain.first.start.as_ptr().add(header), packet.as_ptr(), len & copied);
                        places.next().unwrap_unchecked().write(packet.copy_received(0, len));
                    }
                    std::mem::forget(packet);
                    bytes += len;
                } else {
                    match read_chain(chain, pieces, agreed, *longest, &mut buffers) {
                        Ok(Frame::Whole(packet)) => {
                            bytes += packet.total_len();
                            // SAFETY: as above.
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
            // SAFETY: as many places were written, from the first on.
            unsafe { burst.commit(written) };
            if done == before.0 || result.is_err() {
                break;
            }
        }
        received.bytes += bytes;
        (done, result)
    }
}

/// Whether a header asks for anything: flags and kind of segments are not 0.
///
/// # Safety
/// A header is there.
#[inline(always)]
pub(crate) unsafe fn says_something(header: *const u8) -> bool {
    // SAFETY: says the caller.
    unsafe { header.cast::<[u8; 2]>().read_unaligned() != [0; 2] }
}

impl Wakeable for Rx {
    fn arm(&mut self) {
        self.pause.end();
        if let Some(running) = &mut self.shared.vrings[self.number()].lock().running {
            // What is available already, the look finds that follows.
            with_ring!(&mut running.ring, ring => ring.arm());
        }
    }

    fn disarm(&mut self) {
        if let Some(running) = &mut self.shared.vrings[self.number()].lock().running {
            with_ring!(&mut running.ring, ring => ring.disarm());
        }
        self.shared.kicks[self.queue].clear();
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        let silent = |running: &Running| running.kick.is_none();
        // Chains were left for the next turn, or the guest does not kick.
        let turns = self.left || self.shared.vrings[self.number()].lock().running.as_ref().is_some_and(silent);
        each(if turns { Wake::Turns } else { Wake::Readable(self.shared.kicks[self.queue].as_fd()) });
    }
}
