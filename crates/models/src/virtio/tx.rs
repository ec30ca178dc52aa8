//! Frames from the driver's buffers to the wire (5.1.6.2).

use ringpass_memory::{Cache, Mempool, MempoolConfig, Packet};
use ringpass_port::{Queues, chain};
use ringpass_virtio::features::*;

use super::device::{BURST, Device};
use super::header::Header;
use super::lies::Lie;
use super::ring::{Chain, Fault, Ring};

/// Ethernet's header with two tags.
const LONGEST_L2: usize = 22;
/// Longest payload of a segment that is to be cut (5.1.6.2): what IP can say.
const LONGEST: usize = 65_535;

/// The card's own memory for frames on their way to the wire.
pub(super) struct Buffers {
    cache: Cache,
    jumbo: Mempool,
}

impl Buffers {
    pub(super) const JUMBO: usize = 9728;

    pub(super) fn new(pool: &Mempool) -> Self {
        let jumbo = MempoolConfig { buffers: 64, size: Self::JUMBO, ..Default::default() };
        Self {
            cache: pool.cache(),
            jumbo: Mempool::new(&jumbo).expect("a MiB of ordinary pages for the model's frames"),
        }
    }

    /// A packet with the frame, in one buffer unless it is longer than any.
    pub(super) fn copy(&mut self, frame: &[u8]) -> Option<Packet> {
        if (self.cache.pool().buffer_size() + 1..=Self::JUMBO).contains(&frame.len()) {
            return chain([frame], || self.jumbo.alloc());
        }
        chain([frame], || self.cache.take(1).next())
    }
}

impl Device {
    /// Up to a burst from each queue.
    pub(super) fn send(&mut self, wire: &mut Queues) -> usize {
        let mut moved = self.flush(wire);
        for pair in 0..self.pairs {
            if !self.is_running() || self.outlet.waits() {
                break;
            }
            self.with_ring(2 * usize::from(pair) + 1, |device, ring| device.fetch(ring, pair));
            moved += self.flush(wire);
        }
        moved
    }

    pub(super) fn flush(&mut self, wire: &mut Queues) -> usize {
        self.outlet.flush(wire, &mut self.counters)
    }

    /// Takes chains from a ring until the burst is full or the ring is empty.
    fn fetch(&mut self, ring: &mut dyn Ring, pair: u16) -> Result<(), Fault> {
        let queue = 2 * usize::from(pair) + 1;
        let (mut chain, mut bytes) = (self.chains.pop_front().unwrap_or_default(), std::mem::take(&mut self.bytes));
        let mut result = Ok(());
        for _ in 0..BURST {
            match self.next(queue, ring, &mut chain) {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => {
                    result = Err(why);
                    break;
                }
            }
            result = self.take(ring, &mut chain, &mut bytes, pair);
            if result.is_err() {
                break;
            }
        }
        self.chains.push_front(chain);
        self.bytes = bytes;
        result
    }

    fn take(&mut self, ring: &mut dyn Ring, chain: &mut Chain, bytes: &mut Vec<u8>, pair: u16) -> Result<(), Fault> {
        let header_len = self.header_len();
        if chain.writable() > 0 {
            return Err("a frame to be sent in a buffer that is to be written");
        }
        if chain.readable() < header_len {
            return Err("a frame to be sent that is shorter than its header");
        }
        if self.is_strict() && chain.first_len() != header_len {
            return Err("a legacy frame whose header is not in a descriptor of its own");
        }
        if self.tells(Lie::TxStuck) {
            return Ok(());
        }
        if chain.readable() > header_len + LONGEST_L2 + LONGEST {
            self.counters.tx_malformed += 1;
        } else {
            chain.read(&self.dma, bytes)?;
            let (header, frame) = bytes.split_at(header_len);
            self.pass_on(Header::decode(header), frame, pair);
        }
        if let Some(liar) = &self.liar {
            liar.count(1);
        }
        ring.put(chain, 0, true);
        Ok(())
    }

    /// A frame with its header is on its way to the wire.
    fn pass_on(&mut self, header: Header, frame: &[u8], pair: u16) {
        self.counters.tx_odd_headers += u64::from(header.is_odd());
        let longest = usize::from(self.config.mtu) + LONGEST_L2;
        let too_long = self.has(MTU) && header.kind == 0 && frame.len() > longest;
        if frame.len() < 14 || too_long {
            self.counters.tx_malformed += 1;
            return;
        }
        if !self.link_up {
            return;
        }
        let Some(mut packet) = self.outlet.buffers.copy(frame) else {
            self.counters.tx_no_buffer += 1;
            return;
        };
        match header.act(&mut packet, self.accepted) {
            Some(()) => {
                self.flows.sent(frame, pair);
                self.outlet.posted.push(packet);
            }
            None => self.counters.tx_malformed += 1,
        }
    }
}
