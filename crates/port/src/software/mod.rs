//! Offloads in software, for queues whose hardware cannot do them.

mod checksum;
mod cut;
mod fill;
mod parse;
#[cfg(test)]
mod tests;

pub use checksum::{Sum, complete_checksum};
pub use fill::fill_checksum;
pub use parse::parse_headers;

use ringpass_memory::{Burst, Cache, Flags, L4, MAX_BATCH, Mempool, Packet};

use crate::TxQueue;
use cut::{Cut, Next, fill_l3_checksum};

/// Before another Tx queue: does for each packet what it asks for and the queue cannot do. Packets that ask for nothing
/// pass as they are.
///
/// A packet whose request makes no sense reaches the queue as an empty frame, which it drops and counts.
pub struct Software<T: TxQueue> {
    inner: T,
    work: Flags,
    cache: Cache,
    /// What is on its way to the queue, and what further frames of it are cut from. Both wait while the queue is full.
    ready: Burst,
    cut: Option<Cut>,
}

impl<T: TxQueue> Software<T> {
    /// Does all that may be asked but `hardware`, which the queue does. Frames are cut into buffers of `pool`.
    pub fn new(inner: T, hardware: Flags, pool: &Mempool) -> Self {
        let work = ALL.without(hardware);
        Self { inner, work, cache: pool.cache(), ready: Burst::new(MAX_BATCH), cut: None }
    }

    /// The queue does something else from now on. What waits was made for what it did before.
    pub fn set_hardware(&mut self, hardware: Flags) {
        self.work = ALL.without(hardware);
    }
}

/// All that may be asked.
const ALL: Flags = Flags::CHECKSUM.or(Flags::L3_CHECKSUM).or(Flags::VLAN).or(Flags::TSO);

impl<T: TxQueue> TxQueue for Software<T> {
    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let waits = !self.ready.is_empty() || self.cut.is_some();
        if waits || burst.iter().any(|packet| packet.flags().any(self.work)) {
            self.work(burst)
        } else {
            self.inner.tx_burst(burst)
        }
    }
}

impl<T: TxQueue> Software<T> {
    #[inline(never)]
    fn work(&mut self, burst: &mut Burst) -> usize {
        let mut taken = 0;
        loop {
            let whole = self.cut_on();
            if !self.ready.is_empty() {
                self.inner.tx_burst(&mut self.ready);
            }
            // The queue is full, the pool is dry, or all is done.
            if !self.ready.is_empty() || !whole || (burst.is_empty() && self.cut.is_none()) {
                return taken;
            }
            if self.cut.is_some() {
                continue;
            }
            for mut packet in burst.drain() {
                taken += 1;
                if packet.flags().any(self.work.and(Flags::TSO)) {
                    match Cut::new(packet) {
                        Ok(cut) => {
                            self.cut = Some(cut);
                            break;
                        }
                        Err(wrong) => packet = wrong,
                    }
                    spoil(&mut packet);
                } else if !complete(&mut packet, self.work) {
                    spoil(&mut packet);
                }
                self.ready.push(packet);
            }
        }
    }

    /// Cuts as many frames as there is room for; `false` if the pool has run dry.
    fn cut_on(&mut self) -> bool {
        while self.ready.room() > 0
            && let Some(cut) = &mut self.cut
        {
            match cut.next(|| self.cache.take(1).next()) {
                Next::Frame(mut frame) => {
                    if !complete(&mut frame, self.work) {
                        spoil(&mut frame);
                    }
                    self.ready.push(frame);
                }
                Next::Done => self.cut = None,
                Next::NoBuffer => return false,
            }
        }
        true
    }
}

impl<T: TxQueue> Drop for Software<T> {
    /// What still waits was taken to be sent: a last try, and what is left is counted as dropped.
    fn drop(&mut self) {
        self.work(&mut Burst::new(1));
        self.ready.iter_mut().for_each(spoil);
        self.inner.tx_burst(&mut self.ready);
    }
}

/// Makes of a packet one that no queue sends.
fn spoil(packet: &mut Packet) {
    packet.take_rest();
    packet.clear_flags(packet.flags());
    packet.set_len(0);
}

/// Does what a packet asks for, as far as it is among `work`, but no cutting. `false` if that makes no sense.
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

/// Puts the tag that lies beside the frame into it. What is asked of the queue besides moves with the headers.
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
