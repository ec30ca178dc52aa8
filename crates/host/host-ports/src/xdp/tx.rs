//! The sending queue: names frames on the Tx ring, and takes their buffers back from the completion ring.

use std::sync::Arc;

use ringpass_memory::{Burst, Cache, Flags, Packet, Reclaimer};
use ringpass_port::{PortStatus, TxQueue, copy_packet, fits_mtu};
use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::BROKEN;
use super::held::{Held, SharedSocket};
use super::ring::{Consumer, Producer};
use super::socket::{MAX_PIECES, Umem};
use super::tx_metadata::{PRESENT, request_checksum};
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
    pub(super) in_flight: Held,
    /// Number of frames that may be in flight.
    pub(super) limit: usize,
    /// Buffers of frames that were sent, to be freed together.
    pub(super) sent: Reclaimer,
    /// Set if the interface was down when frames were to be sent last.
    pub(super) down: bool,
    /// Bytes in front of each frame that the kernel wants for metadata.
    pub(super) front: usize,
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
            match self.in_flight.take(self.completion.take()) {
                Some(packet) => self.sent.add_one(packet.into_buffer()),
                None => self.status.set_gone(|| BROKEN.into()),
            }
        }
        if filled > 0 {
            self.completion.release();
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
            // What has more pieces than the kernel takes is copied.
            let pieces = packet.segments().count().min(MAX_PIECES);
            let needed = pieces.max(packet.total_len().div_ceil(size));
            free.checked_sub(needed).inspect(|left| free = *left).is_some()
        };
        burst.iter().take_while(fits).count()
    }

    /// Returns the kernel's address of a packet's buffer, if it is in memory that the kernel knows and has room for metadata.
    #[inline]
    fn base(&self, packet: &Packet) -> Option<u64> {
        self.umem.base(packet).filter(|_| packet.headroom() >= self.front)
    }

    /// Puts a frame in one buffer on the ring, if it can be sent from where it is.
    ///
    /// # Errors
    /// The packet, if it is not.
    #[inline]
    fn push(&mut self, packet: Packet, options: XdpDescOptions) -> Result<(), Packet> {
        let Some(base) = self.base(&packet) else { return Err(packet) };
        let addr = self.umem.with_offset(base, packet.headroom());
        self.ring.push(XdpDesc { addr, len: packet.len() as u32, options });
        self.in_flight.put(base, packet);
        Ok(())
    }

    /// Puts a frame in several buffers, in memory that the kernel does not know, or with a request on the ring. Returns whether it is there.
    #[cold]
    fn push_chain(&mut self, packet: Packet) -> bool {
        let knows = |packet: &Packet| self.base(packet).is_some();
        let is_chain = self.umem.is_in_pieces();
        let fits = is_chain && packet.segments().all(knows) && packet.segments().count() <= MAX_PIECES;
        let mut packet = match fits {
            true => packet,
            false => {
                let copy = copy_packet(&packet, &mut self.cache);
                let Some(copy) = copy.filter(|copy| is_chain || !copy.is_chained()) else { return false };
                copy
            }
        };
        let mut first = XdpDescOptions::empty();
        if packet.flags().any(Flags::CHECKSUM) {
            if !request_checksum(&mut packet) {
                return false;
            }
            first = PRESENT;
        }
        let mut next = Some(packet);
        while let Some(mut packet) = next {
            // Empty buffers, which the kernel refuses, are left out.
            next = packet.take_rest().filter(|rest| rest.total_len() > 0);
            let goes_on = next.as_ref().map_or(XdpDescOptions::empty(), |_| XdpDescOptions::XDP_PKT_CONTD);
            let options = std::mem::replace(&mut first, XdpDescOptions::empty()) | goes_on;
            if !packet.is_empty() {
                self.push(packet, options).expect("memory that the kernel knows");
            }
        }
        true
    }

    /// Makes the kernel send what is on the ring.
    fn kick(&mut self) {
        // A call sends some frames. Those that cannot be sent now stay on the ring until the next burst, or until nothing is received.
        for _ in 0..=self.ring.pending() / FRAMES_PER_CALL {
            match self.socket.send() {
                Err(Errno::AGAIN) => {}
                Ok(()) | Err(Errno::BUSY | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
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
        self.socket.keep(self.in_flight.drain());
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
            let is_chained = packet.flags().any(Flags::CHAINED);
            let len = if is_chained { packet.total_len() } else { packet.len() };
            let is_plain = !packet.flags().any(Flags::CHAINED | Flags::CHECKSUM);
            let pushed = if is_plain { self.push(packet, XdpDescOptions::empty()) } else { Err(packet) };
            if pushed.map_or_else(|packet| self.push_chain(packet), |()| true) {
                (packets, bytes) = (packets + 1, bytes + len);
            }
        }
        if packets > 0 {
            self.ring.submit();
        }
        if !self.down && self.in_flight.len() > 0 && self.ring.needs_wakeup() {
            self.kick();
        }
        self.status.tx(self.queue).count(packets, bytes, taken - packets);
        taken
    }
}
