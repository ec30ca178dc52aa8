//! Offloads in software, for queues whose hardware cannot do them.

mod checksum;
mod fill;
mod parse;
mod segmenter;
#[cfg(test)]
mod tests;

pub use checksum::{Sum, complete_checksum};
pub use fill::fill_checksum;
pub use parse::{ethertype, parse_headers};

use ringpass_memory::{Burst, Cache, Flags, L4, MAX_BATCH, Mempool, Packet};

use crate::TxQueue;
use segmenter::{Next, Segmenter, fill_l3_checksum};

/// A Tx queue that does in software, for each packet, what the packet requests and the inner queue cannot do.
/// Packets without requests pass unchanged.
///
/// A packet with an invalid request reaches the inner queue as an empty frame, which it drops and counts.
pub struct SoftwareOffload<T: TxQueue> {
    inner: T,
    work: Flags,
    cache: Cache,
    /// Packets on their way to the inner queue. They wait while it is full.
    ready: Burst,
    /// The packet from which further frames are segmented. It waits while the inner queue is full.
    segmenter: Option<Segmenter>,
}

impl<T: TxQueue> SoftwareOffload<T> {
    /// Creates a queue that does everything in software except `hardware`, which `inner` does. Frames are
    /// segmented into buffers of `pool`.
    pub fn new(inner: T, hardware: Flags, pool: &Mempool) -> Self {
        let work = ALL.without(hardware);
        Self { inner, work, cache: pool.cache(), ready: Burst::new(MAX_BATCH), segmenter: None }
    }

    /// Changes what the inner queue does in hardware. Packets that are waiting were prepared for the previous setting.
    pub fn set_hardware(&mut self, hardware: Flags) {
        self.work = ALL.without(hardware);
    }
}

/// All requests that a packet can make.
const ALL: Flags = Flags::CHECKSUM.or(Flags::L3_CHECKSUM).or(Flags::VLAN).or(Flags::TSO);

impl<T: TxQueue> TxQueue for SoftwareOffload<T> {
    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let waits = !self.ready.is_empty() || self.segmenter.is_some();
        let requests = burst.iter().fold(Flags::default(), |all, packet| all | packet.flags());
        if waits || requests.any(self.work) { self.work(burst) } else { self.inner.tx_burst(burst) }
    }
}

impl<T: TxQueue> SoftwareOffload<T> {
    #[inline(never)]
    fn work(&mut self, burst: &mut Burst) -> usize {
        let mut taken = 0;
        loop {
            let whole = self.segment_more();
            if !self.ready.is_empty() {
                self.inner.tx_burst(&mut self.ready);
            }
            // The inner queue is full, the pool is dry, or everything is done.
            if !self.ready.is_empty() || !whole || (burst.is_empty() && self.segmenter.is_none()) {
                return taken;
            }
            if self.segmenter.is_some() {
                continue;
            }
            for mut packet in burst.drain() {
                taken += 1;
                if packet.flags().any(self.work.and(Flags::TSO)) {
                    match Segmenter::new(packet) {
                        Ok(segmenter) => {
                            self.segmenter = Some(segmenter);
                            break;
                        }
                        Err(wrong) => packet = wrong,
                    }
                    invalidate(&mut packet);
                } else if !complete(&mut packet, self.work) {
                    invalidate(&mut packet);
                }
                self.ready.push(packet);
            }
        }
    }

    /// Segments as many frames as `ready` has room for. Returns `false` if the pool has run dry.
    fn segment_more(&mut self) -> bool {
        while self.ready.room() > 0
            && let Some(segmenter) = &mut self.segmenter
        {
            match segmenter.next(|| self.cache.take(1).next()) {
                Next::Frame(mut frame) => {
                    if !complete(&mut frame, self.work) {
                        invalidate(&mut frame);
                    }
                    self.ready.push(frame);
                }
                Next::Done => self.segmenter = None,
                Next::NoBuffer => return false,
            }
        }
        true
    }
}

impl<T: TxQueue> Drop for SoftwareOffload<T> {
    /// Sends the packets that still wait, as they were taken for sending. What cannot be sent is dropped and counted.
    fn drop(&mut self) {
        self.work(&mut Burst::new(1));
        self.ready.iter_mut().for_each(invalidate);
        self.inner.tx_burst(&mut self.ready);
    }
}

/// Turns a packet into an empty frame, which no queue sends.
fn invalidate(packet: &mut Packet) {
    packet.take_rest();
    packet.clear_flags(packet.flags());
    packet.set_len(0);
}

/// Fulfils a packet's requests as far as they are in `work`, except segmentation. Returns `false` if they are invalid.
fn complete(packet: &mut Packet, work: Flags) -> bool {
    let flags = packet.flags().and(work);
    let done = (!flags.any(Flags::L3_CHECKSUM) || l3_checksum(packet))
        && (!flags.any(Flags::CHECKSUM) || l4_checksum(packet))
        && (!flags.any(Flags::VLAN) || insert_tag(packet));
    packet.clear_flags(flags);
    done
}

fn l3_checksum(packet: &mut Packet) -> bool {
    let Some((0x0800, at)) = parse::ethertype(packet.bytes()) else { return false };
    let len = packet.array(at).map_or(0, |[byte]| usize::from(byte & 15) * 4);
    let whole = len >= 20 && at + len <= packet.len();
    if whole {
        fill_l3_checksum(packet, at, at + len);
    }
    whole
}

fn l4_checksum(packet: &mut Packet) -> bool {
    let headers = packet.headers().unwrap_or_default();
    let offset = match headers.protocol {
        L4::Tcp => 16,
        L4::Udp => 6,
    };
    complete_checksum(packet, headers.l4_start(), offset)
}

/// Inserts the tag that is kept outside of the frame. Header positions in other requests are moved accordingly.
fn insert_tag(packet: &mut Packet) -> bool {
    const ADDRESSES: usize = 12;
    let Some([high, low]) = packet.vlan().map(u16::to_be_bytes) else { return false };
    let Some(addresses) = packet.array::<ADDRESSES>(0) else { return false };
    if !packet.prepend(4) {
        return false;
    }
    packet.write(0, &addresses);
    packet.write(ADDRESSES, &[0x81, 0, high, low]);
    if let Some(mut headers) = packet.headers() {
        headers.l2 = headers.l2.saturating_add(4);
        match packet.mss() {
            Some(mss) => packet.request_segmentation(mss, headers),
            None => packet.request_checksum(headers),
        }
    }
    true
}
