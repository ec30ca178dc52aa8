//! Buffers that the kernel has, and the socket by which it has them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use ringpass_memory::Packet;

use super::socket::Umem;

/// A buffer that the kernel has, and its address there.
pub(super) struct Held {
    pub(super) address: u64,
    pub(super) packet: Packet,
}

/// Buffers that the kernel may fill, each in the place of its [number](Umem::number): it returns them in any order, because it reuses those of frames
/// that did not come here.
pub(super) struct Posted {
    by_number: Box<[Option<Held>]>,
    len: usize,
}

impl Posted {
    pub(super) fn new(umem: &Umem) -> Self {
        Self { by_number: (0..umem.numbers()).map(|_| None).collect(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn push(&mut self, held: Held) {
        self.len += 1;
        let number = Umem::number(held.address);
        self.by_number[number] = Some(held);
    }

    /// Takes out the buffer that starts at an address.
    #[inline]
    pub(super) fn take(&mut self, address: u64) -> Option<Packet> {
        let place = self.by_number.get_mut(Umem::number(address))?;
        let held = place.take_if(|held| held.address == address)?;
        self.len -= 1;
        Some(held.packet)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Packet> {
        self.len = 0;
        self.by_number.iter_mut().filter_map(|place| Some(place.take()?.packet))
    }
}

/// Takes out the frame that was sent from an address. The kernel mostly returns the oldest.
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
    pub(super) fn keep(&self, packets: impl Iterator<Item = Packet>) {
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
