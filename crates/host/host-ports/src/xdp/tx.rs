//! The sending queue: names frames on the Tx ring, and takes their buffers back from the completion ring.

use std::collections::VecDeque;
use std::sync::Arc;

use ringpass_memory::{Burst, Cache, Flags, Packet};
use ringpass_port::{PortStatus, TxQueue, copy_packet, fits_mtu};
use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use rustix::net::{SendFlags, send};

use super::BROKEN;
use super::held::{Held, SharedSocket, take_held};
use super::ring::{Consumer, Producer};
use super::socket::Umem;
use crate::presence::GONE;

/// Frames that the kernel sends in one system call (`TX_BATCH_SIZE`).
const FRAMES_PER_CALL: u32 = 32;

pub(super) struct Tx {
    pub(super) ring: Producer<XdpDesc>,
    pub(super) completion: Consumer<u64>,
    pub(super) umem: Umem,
    /// Buffers for frames that are not in the memory that the kernel knows.
    pub(super) cache: Cache,
    /// Frames that the kernel has not sent yet.
    pub(super) in_flight: VecDeque<Held>,
    /// Number of frames that may be in flight.
    pub(super) limit: usize,
    /// Frames that were sent, to be freed together.
    pub(super) sent: Burst,
    /// Set if the interface was down when frames were to be sent last.
    pub(super) down: bool,
    pub(super) status: Arc<PortStatus>,
    pub(super) queue: usize,
    pub(super) mtu: usize,
    /// Dropped behind the rings.
    pub(super) socket: Arc<SharedSocket>,
}

impl Tx {
    /// Takes back the buffers of frames that were sent.
    fn reclaim(&mut self) {
        let filled = self.completion.filled(self.in_flight.len() as u32);
        for _ in 0..filled {
            match take_held(&mut self.in_flight, self.completion.take()) {
                Some(packet) => self.sent.push(packet),
                None => self.status.set_gone(|| BROKEN.into()),
            }
            if self.sent.room() == 0 {
                self.sent.clear();
            }
        }
        if filled > 0 {
            self.completion.release();
            self.sent.clear();
        }
    }

    /// Number of the first packets whose buffers, copies included, find room on the ring.
    fn fitting(&mut self, burst: &Burst) -> usize {
        let free = |ring: u32, in_flight: usize| (ring as usize).min(self.limit.saturating_sub(in_flight));
        if !self.umem.is_in_pieces() {
            return free(self.ring.free(burst.len() as u32), self.in_flight.len());
        }
        let mut free = free(self.ring.free(u32::MAX), self.in_flight.len());
        let size = self.cache.pool().buffer_size();
        let fits = |packet: &&Packet| {
            let needed = packet.segments().count().max(packet.total_len().div_ceil(size));
            free.checked_sub(needed).inspect(|left| free = *left).is_some()
        };
        burst.iter().take_while(fits).count()
    }

    /// Returns the packet, or a copy of it in memory that the kernel knows; `None` if it cannot be sent.
    #[inline]
    fn in_umem(&mut self, packet: Packet) -> Option<Packet> {
        let knows = |packet: &Packet| self.umem.address(packet.as_ptr(), packet.len()).is_some();
        let is_chained = |packet: &Packet| packet.flags().any(Flags::CHAINED);
        if !is_chained(&packet) && knows(&packet) || self.umem.is_in_pieces() && packet.segments().all(knows) {
            return Some(packet);
        }
        copy_packet(&packet, &mut self.cache).filter(|copy| self.umem.is_in_pieces() || !is_chained(copy))
    }

    /// Puts the buffers of a frame on the ring. Empty ones, which the kernel refuses, are left out.
    #[inline]
    fn push(&mut self, packet: Packet) {
        let mut next = Some(packet);
        while let Some(mut packet) = next {
            next = packet.take_rest().filter(|rest| rest.total_len() > 0);
            if packet.is_empty() {
                continue;
            }
            let (addr, len) = (self.umem.address(packet.as_ptr(), packet.len()), packet.len() as u32);
            let addr = addr.expect("memory that the kernel knows");
            let options = next.as_ref().map_or(XdpDescOptions::empty(), |_| XdpDescOptions::XDP_PKT_CONTD);
            self.ring.push(XdpDesc { addr, len, options });
            self.in_flight.push_back(Held { address: addr, packet });
        }
    }

    /// Makes the kernel send what is on the ring.
    fn kick(&mut self) {
        // A call sends some frames; those that cannot be sent now stay on the ring.
        for _ in 0..=self.ring.pending() / FRAMES_PER_CALL {
            match send(self.socket.fd(), &[], SendFlags::DONTWAIT) {
                Err(Errno::AGAIN) => {}
                Ok(_) | Err(Errno::BUSY | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
                    self.down = false;
                    break;
                }
                Err(errno) => {
                    self.down = true;
                    if matches!(errno, Errno::NXIO | Errno::NODEV) {
                        self.status.set_gone(|| GONE.into());
                    }
                    break;
                }
            }
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.socket.keep(self.in_flight.drain(..).map(|held| held.packet));
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.reclaim();
        if burst.is_empty() {
            return 0;
        }
        if self.down {
            // Frames of before are on the ring still; the kernel tells whether the interface is up again.
            self.kick();
        }
        let room = self.fitting(burst);
        let mut taken = 0;
        let mut packets = 0;
        let mut bytes = 0;
        for packet in burst.drain().take(room) {
            taken += 1;
            if self.down || !fits_mtu(&packet, self.mtu) {
                continue;
            }
            if let Some(packet) = self.in_umem(packet) {
                (packets, bytes) = (packets + 1, bytes + packet.total_len());
                self.push(packet);
            }
        }
        if packets > 0 {
            self.ring.submit();
        }
        if !self.down && !self.in_flight.is_empty() && self.ring.needs_wakeup() {
            self.kick();
        }
        self.status.tx(self.queue).count(packets, bytes, taken - packets);
        taken
    }
}
