//! Frames from the driver's buffers to the wire (5.1.6.2).

use ringpass_port::QueuePair;
use ringpass_virtio::features::*;

use super::device::Device;
use super::header::Header;
use super::lies::Lie;
use super::queue::BURST;
use super::ring::{Chain, Fault, Ring};

/// Ethernet header with two VLAN tags, in bytes.
const MAX_L2_LEN: usize = 22;
/// Longest packet to be segmented (5.1.6.2), in bytes without Ethernet header: the largest IP length.
const MAX_IP_LEN: usize = 65_535;

impl Device {
    /// Sends up to a burst from each queue.
    pub(super) fn send(&mut self, wire: &mut QueuePair) -> usize {
        let mut moved = self.flush(wire);
        for pair in 0..self.pairs {
            if !self.is_running() || self.tx_path.has_pending() {
                break;
            }
            self.with_ring(2 * usize::from(pair) + 1, |device, ring| device.fetch(ring, pair));
            moved += self.flush(wire);
        }
        moved
    }

    pub(super) fn flush(&mut self, wire: &mut QueuePair) -> usize {
        self.tx_path.flush(wire, &mut self.counters)
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
        if self.requires_legacy_layout() && chain.first_len() != header_len {
            return Err("a legacy frame whose header is not in a descriptor of its own");
        }
        if self.triggers(Lie::TxStuck) {
            return Ok(());
        }
        if chain.readable() > header_len + MAX_L2_LEN + MAX_IP_LEN {
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

    /// Applies a frame's header and posts the frame for the wire, unless it is malformed or the link is down.
    fn pass_on(&mut self, header: Header, frame: &[u8], pair: u16) {
        self.counters.tx_odd_headers += u64::from(header.has_reserved_fields());
        let longest = usize::from(self.config.mtu) + MAX_L2_LEN;
        let too_long = self.has(MTU) && header.kind == 0 && frame.len() > longest;
        if frame.len() < 14 || too_long {
            self.counters.tx_malformed += 1;
            return;
        }
        if !self.link_up {
            return;
        }
        let Some(mut packet) = self.tx_path.buffers.copy(frame) else {
            self.counters.tx_no_buffer += 1;
            return;
        };
        match header.apply(&mut packet, self.accepted) {
            Some(()) => {
                self.flows.sent(frame, pair);
                self.tx_path.posted.push(packet);
            }
            None => self.counters.tx_malformed += 1,
        }
    }
}
