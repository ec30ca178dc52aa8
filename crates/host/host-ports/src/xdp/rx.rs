//! The receiving queue: posts buffers of the pool on the fill ring, and takes frames from the Rx ring.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ringpass_memory::{Burst, Cache, MAGAZINE, Packet};
use ringpass_port::{MacAddress, Offloads, PortStatus, RxQueue, WakeSource, Wakeable, fits_mtu};
use rustix::net::sockopt;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::held::{Held, SharedSocket};
use super::hints::finish;
use super::ring::{Consumer, Producer};
use super::socket::Umem;
use super::{BROKEN, Ways};
use crate::capture_file::now;

pub(super) struct Rx {
    pub(super) fill: Producer<u64>,
    pub(super) ring: Consumer<XdpDesc>,
    pub(super) umem: Umem,
    pub(super) cache: Cache,
    /// Buffers that the kernel may fill.
    pub(super) posted: Held,
    /// The first buffers of a frame whose last one has not come yet.
    pub(super) partial: Option<Packet>,
    pub(super) ways: Ways,
    /// Times of the last burst's packets, where they are asked for.
    pub(super) timestamps: Option<Vec<u64>>,
    pub(super) offloads: Offloads,
    /// Number of buffers to post.
    pub(super) target: usize,
    pub(super) mac: MacAddress,
    pub(super) promiscuous: Arc<AtomicBool>,
    pub(super) status: Arc<PortStatus>,
    pub(super) queue: usize,
    pub(super) mtu: usize,
    /// Dropped behind the rings.
    pub(super) socket: Arc<SharedSocket>,
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.socket.keep(self.posted.drain());
    }
}

impl Rx {
    /// Posts as many buffers as are missing, if the pool has them.
    pub(super) fn post(&mut self) {
        let missing = (self.target - self.posted.len()).min(MAGAZINE);
        let room = self.fill.free(missing as u32) as usize;
        let mut posted = false;
        for packet in self.cache.packets(missing.min(room)) {
            let base = self.umem.base(&packet).expect("a buffer of the pool that is registered");
            self.fill.push(base);
            self.posted.put(base, packet);
            posted = true;
        }
        if posted {
            self.fill.submit();
            if self.fill.needs_wakeup() {
                self.socket.receive();
            }
        }
    }

    /// Takes the buffer of a descriptor. `None` if there is no such one, or not that many bytes.
    #[inline]
    fn take(&mut self, addr: u64, len: u32) -> Option<Packet> {
        let mut packet = self.posted.take(addr)?;
        let front = self.umem.behind(&packet, self.umem.offset(addr));
        packet.set_range(front, len as usize).then_some(packet)
    }

    /// Joins a buffer to those of its frame before it; returns the frame if it is whole.
    #[cold]
    fn join(&mut self, packet: Packet, goes_on: bool) -> Option<Packet> {
        match &mut self.partial {
            Some(frame) => frame.append(packet),
            None => self.partial = Some(packet),
        }
        self.partial.take_if(|_| !goes_on)
    }

    #[inline]
    fn is_wanted(&self, packet: &Packet) -> bool {
        let to = packet.array::<6>(0).unwrap_or_default();
        to[0] & 1 != 0 || to == self.mac.0
    }
}

impl Wakeable for Rx {
    fn disarm(&mut self) {
        // An interface that goes down leaves an error on the socket, which would keep waking the queue.
        let _ = sockopt::socket_error(self.socket.fd());
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Readable(self.socket.fd().as_fd()));
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let promiscuous = self.promiscuous.load(Relaxed);
        let mut packets = 0;
        let mut bytes = 0;
        let mut drops = 0;
        let mut filled = self.ring.filled(burst.room() as u32);
        if filled == 0 {
            self.socket.send_rest();
            if self.ways.busy_poll {
                self.socket.receive();
                filled = self.ring.filled(burst.room() as u32);
            }
        }
        let finishes = self.ways.hints || self.offloads.vlan;
        let mut time = 0;
        if let Some(timestamps) = &mut self.timestamps {
            timestamps.clear();
            time = if filled > 0 { now() } else { 0 };
        }
        for _ in 0..filled {
            let XdpDesc { addr, len, options } = self.ring.take();
            let Some(mut packet) = self.take(addr, len) else {
                self.status.set_gone(|| BROKEN.into());
                continue;
            };
            let mut len = len as usize;
            let goes_on = options.contains(XdpDescOptions::XDP_PKT_CONTD);
            if goes_on || self.partial.is_some() {
                let Some(whole) = self.join(packet, goes_on) else { continue };
                (len, packet) = (whole.total_len(), whole);
            }
            let mut arrived = time;
            if finishes {
                let Some(finished) = finish(packet, self.offloads, &mut arrived) else {
                    drops += 1;
                    continue;
                };
                (len, packet) = (finished.total_len(), finished);
            }
            if !promiscuous && !self.is_wanted(&packet) {
                continue;
            }
            if !fits_mtu(&packet, self.mtu) {
                drops += 1;
                continue;
            }
            (packets, bytes) = (packets + 1, bytes + len);
            if let Some(timestamps) = &mut self.timestamps {
                timestamps.push(arrived);
            }
            burst.push(packet);
        }
        if filled > 0 {
            self.ring.release();
        }
        if self.posted.len() < self.target {
            self.post();
        }
        self.status.rx(self.queue).count(packets, bytes, drops);
        packets
    }

    fn rx_timestamps(&self) -> &[u64] {
        self.timestamps.as_deref().unwrap_or_default()
    }
}
