//! Buffers that the kernel has, and the socket by which it has them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use ringpass_memory::Packet;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::socket::Umem;

/// Buffers that the kernel has, each in the place of its [number](Umem::number): it returns them in any order.
pub(super) struct Held {
    umem: Umem,
    by_number: Box<[Option<Packet>]>,
    len: usize,
}

impl Held {
    pub(super) fn new(umem: Umem) -> Self {
        Self { umem, by_number: (0..umem.numbers()).map(|_| None).collect(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Keeps the packet in the buffer at an address. It must be the only one there.
    #[inline]
    pub(super) fn put(&mut self, address: u64, packet: Packet) {
        self.len += 1;
        let before = self.by_number[self.umem.number(address)].replace(packet);
        debug_assert!(before.is_none(), "a buffer has one owner");
        // Spares the check whether there is one to be dropped.
        std::mem::forget(before);
    }

    /// Takes out the packet in the buffer at an address, or with an offset in it.
    #[inline]
    pub(super) fn take(&mut self, address: u64) -> Option<Packet> {
        let packet = self.by_number.get_mut(self.umem.number(address))?.take()?;
        self.len -= 1;
        Some(packet)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Packet> {
        self.len = 0;
        self.by_number.iter_mut().filter_map(Option::take)
    }
}

/// The socket of a port and its queues. The kernel writes to buffers until it is closed, and the rings, which keep it open, are unmapped; so
/// the buffers of queues that were dropped before are returned to the pool after that.
pub(super) struct SharedSocket {
    /// Closed first.
    fd: OwnedFd,
    /// Whether the kernel has left frames on the Tx ring, because it could not send them at once.
    stalled: AtomicBool,
    /// System calls of the queues.
    wakeups: AtomicU64,
    held: Mutex<Vec<Packet>>,
}

impl SharedSocket {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd, stalled: AtomicBool::new(false), wakeups: AtomicU64::new(0), held: Mutex::default() }
    }

    #[inline]
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Makes the kernel send what is on the Tx ring, or a part of it.
    pub(super) fn send(&self) -> Result<(), Errno> {
        self.wakeups.fetch_add(1, Relaxed);
        let sent = send(&self.fd, &[], SendFlags::DONTWAIT);
        let stalled = matches!(sent, Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::NOMEM | Errno::INTR));
        self.stalled.store(stalled, Relaxed);
        sent.map(drop)
    }

    /// Makes the kernel receive.
    pub(super) fn receive(&self) {
        self.wakeups.fetch_add(1, Relaxed);
        // It does, whatever this returns.
        let _ = recv(&self.fd, &mut [0; 0], RecvFlags::DONTWAIT);
    }

    /// Number of system calls of the queues.
    pub(super) fn wakeups(&self) -> u64 {
        self.wakeups.load(Relaxed)
    }

    /// Sends what was left on the Tx ring before, if anything was.
    #[inline]
    pub(super) fn send_rest(&self) {
        if self.stalled.load(Relaxed) {
            let _ = self.send();
        }
    }

    /// Keeps the buffers of a queue that is dropped.
    pub(super) fn keep(&self, packets: impl Iterator<Item = Packet>) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(packets);
    }
}

#[cfg(test)]
mod tests {
    use ringpass_memory::{Mempool, MempoolConfig, PAGE_BUFFER_SIZE, PageSize, RegionConfig};

    use super::*;

    #[test]
    fn buffers_come_back_in_any_order_and_once() {
        let page = MempoolConfig { size: PAGE_BUFFER_SIZE, buffers: 64, ..Default::default() };
        let odd = MempoolConfig {
            buffers: 64,
            region: RegionConfig { pages: PageSize::Ordinary, ..Default::default() },
            ..Default::default()
        };
        for config in [page, odd] {
            let pool = Mempool::new(&config).expect("a pool");
            let umem = Umem::new(&pool, 1500).expect("buffers that are large enough");
            let mut held = Held::new(umem);
            let packets = (0..64).map(|_| pool.alloc().expect("a buffer"));
            let places: Vec<_> = packets
                .map(|packet| {
                    let base = umem.base(&packet).expect("a buffer of the pool");
                    let place = packet.as_ptr();
                    held.put(base, packet);
                    (base, place)
                })
                .collect();
            for (number, (base, place)) in places.iter().enumerate().rev() {
                let address = umem.with_offset(*base, 300);
                let packet = held.take(address).expect("it is there");
                assert_eq!((packet.as_ptr(), held.len()), (*place, number));
                assert_eq!(umem.offset(address), base + 300);
                assert!(held.take(address).is_none(), "a second time");
            }
            assert!(held.take(1 << 40).is_none() && held.take(u64::MAX).is_none(), "outside of the memory");
        }
    }
}
