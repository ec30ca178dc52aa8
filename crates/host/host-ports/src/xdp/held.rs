//! Buffers that the kernel has, and the socket by which it has them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use ringpass_memory::Packet;

/// A buffer that the kernel has, and its address there.
pub(super) struct Held {
    pub(super) address: u64,
    pub(super) packet: Packet,
}

/// Takes out the buffer with an address. The kernel mostly returns the oldest; it reuses those of frames that it has dropped.
#[inline]
pub(super) fn take_held(held: &mut VecDeque<Held>, address: u64) -> Option<Packet> {
    if held.front()?.address != address {
        let at = held.iter().position(|one| one.address == address)?;
        held.swap(0, at);
    }
    held.pop_front().map(|one| one.packet)
}

/// The socket of a port and its queues. The kernel writes to buffers until it is closed, and the rings, which keep it open, are unmapped; so
/// the buffers of queues that were dropped before are returned to the pool after that.
pub(super) struct SharedSocket {
    /// Closed first.
    fd: OwnedFd,
    held: Mutex<Vec<Packet>>,
}

impl SharedSocket {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd, held: Mutex::default() }
    }

    #[inline]
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Keeps the buffers of a queue that is dropped.
    pub(super) fn keep(&self, held: &mut VecDeque<Held>) {
        let packets = held.drain(..).map(|held| held.packet);
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(packets);
    }
}

#[cfg(test)]
mod tests {
    use ringpass_memory::{Mempool, MempoolConfig};

    use super::*;

    #[test]
    fn buffers_come_back_in_any_order() {
        let pool = Mempool::new(&MempoolConfig { buffers: 4, ..Default::default() }).expect("a pool");
        let mut held: VecDeque<Held> =
            (0..4).map(|address| Held { address, packet: pool.alloc().expect("a buffer") }).collect();
        let places: Vec<_> = held.iter().map(|held| held.packet.as_ptr()).collect();
        for address in [0, 2, 1, 3] {
            let packet = take_held(&mut held, address).expect("it is there");
            assert_eq!(packet.as_ptr(), places[address as usize]);
            assert!(take_held(&mut held, address).is_none(), "a second time");
        }
        assert!(held.is_empty());
    }
}
