//! A ring whose writes to the guest's memory are logged, while the guest migrates (vhost-user, "Migration").

use std::collections::VecDeque;
use std::sync::Arc;

use ringpass_memory::Error;
use ringpass_vhost_user::DirtyLog;
use ringpass_virtio::device::{
    Broken, Chain, ChainBatch, DeviceAccess, GuestMemory, Piece, Used, Virtqueue, VringConfig,
};
use ringpass_virtio::features::RING_PACKED;

use crate::bytes::pieces;

/// The log of a queue's writes.
pub(crate) struct QueueLog {
    log: Arc<DirtyLog>,
    memory: Arc<GuestMemory>,
    /// Guest addresses and lengths of the parts of the ring that the device writes to.
    parts: Vec<(u64, u64)>,
    /// Pieces of the chains that were taken to be written to, in the order in which they are given back.
    taken: VecDeque<TakenPiece>,
}

/// A piece of a chain that was taken.
struct TakenPiece {
    /// Id of the chain.
    chain: u16,
    /// Guest address and length.
    address: u64,
    len: u32,
}

impl QueueLog {
    /// Begins to log the writes of a queue, and marks its ring, which may have just been started.
    pub(crate) fn new(log: &Arc<DirtyLog>, memory: &Arc<GuestMemory>, setup: &VringConfig) -> Self {
        let size = u64::from(setup.size);
        let parts = if setup.features & RING_PACKED == 0 {
            // With the index at which the device wants to be notified.
            vec![(setup.device, 4 + 8 * size + 2)]
        } else {
            vec![(setup.descriptors, 16 * size), (setup.device, 4)]
        };
        let guest = |(user, len)| Some((memory.guest_address_of_user(user)?, len));
        let parts = parts.into_iter().filter_map(guest).collect();
        let own = Self { log: log.clone(), memory: memory.clone(), parts, taken: VecDeque::new() };
        own.mark_ring();
        own
    }

    /// Returns the ring with this log.
    pub(crate) fn around<'a, Q: Virtqueue>(&'a mut self, ring: &'a mut Q) -> Logged<'a, Q> {
        self.taken.clear();
        Logged { ring, log: self }
    }

    fn mark_ring(&self) {
        self.parts.iter().for_each(|&(address, len)| self.log.mark(address, len));
    }

    /// Notes the pieces of chains that were taken.
    fn note(&mut self, chains: &[Chain], batch: &ChainBatch) {
        for chain in chains {
            let known = |piece: Piece| {
                let address = self.memory.guest_address(piece.start)?;
                Some(TakenPiece { chain: chain.id, address, len: piece.len })
            };
            self.taken.extend(pieces(chain, &batch.pieces).filter_map(known));
        }
    }

    /// Marks what was written to a chain, which is the first of those that were taken and not given back.
    fn mark(&mut self, used: Used) {
        let mut left = used.written;
        while let Some(piece) = self.taken.front().filter(|piece| piece.chain == used.id) {
            let here = left.min(piece.len);
            self.log.mark(piece.address, here.into());
            left -= here;
            self.taken.pop_front();
        }
    }
}

/// A ring that is logged, during one burst. Chains must be given back in the order in which they were taken.
pub(crate) struct Logged<'a, Q> {
    ring: &'a mut Q,
    log: &'a mut QueueLog,
}

// SAFETY: all pieces are handed out by `ring`, which keeps their memory.
unsafe impl<Q: Virtqueue> Virtqueue for Logged<'_, Q> {
    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), Error> {
        self.ring.set_memory(memory)
    }

    fn take(&mut self, access: DeviceAccess, most: usize, taken: &mut ChainBatch) -> Result<usize, Broken> {
        let count = self.ring.take(access, most, taken)?;
        if access == DeviceAccess::Write {
            self.log.note(&taken.chains[taken.chains.len() - count..], taken);
        }
        Ok(count)
    }

    fn put_back(&mut self, taken: &mut ChainBatch, n: usize) {
        for chain in &taken.chains[taken.chains.len() - n..] {
            self.log.taken.retain(|piece| piece.chain != chain.id);
        }
        self.ring.put_back(taken, n);
    }

    fn push_used(&mut self, used: impl Iterator<Item = Used>) {
        let log = &mut *self.log;
        self.ring.push_used(used.inspect(|used| log.mark(*used)));
    }

    fn push_rest_unwritten(&mut self) {
        self.ring.push_rest_unwritten();
    }

    fn publish(&mut self) -> bool {
        let call = self.ring.publish();
        self.log.mark_ring();
        call
    }

    fn arm(&mut self) -> bool {
        let more = self.ring.arm();
        self.log.mark_ring();
        more
    }

    fn disarm(&mut self) {
        self.ring.disarm();
        self.log.mark_ring();
    }

    fn base(&self) -> u32 {
        self.ring.base()
    }
}
