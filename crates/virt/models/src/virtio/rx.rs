//! Frames from the wire to the driver's buffers (5.1.6.3, 5.1.6.4).

use ringpass_memory::{Burst, Packet};
use ringpass_port::QueuePair;
use ringpass_virtio::features::*;

use super::device::Device;
use super::header::Header;
use super::lies::Lie;
use super::queue::BURST;
use super::ring::{Chain, Fault, Ring};

/// Result of a frame's delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// The frame was written, or dropped.
    Done,
    /// The frame waits for a buffer.
    Wait,
}

impl Device {
    /// Receives up to a burst from the wire. A frame without a buffer waits, and so do all frames after it.
    pub(super) fn receive(&mut self, wire: &mut QueuePair) -> usize {
        let mut moved = 0;
        if self.pending_rx.is_empty() {
            let mut burst = Burst::new(BURST);
            moved = wire.rx.rx_burst(&mut burst);
            burst.drain().for_each(|packet| self.classify(packet));
        }
        while let Some(&(pair, _)) = self.pending_rx.front() {
            let queue = 2 * usize::from(pair);
            if self.queues[queue].ring.is_none() {
                self.counters.rx_disabled += 1;
                self.pending_rx.pop_front();
                continue;
            }
            let delivered = self.with_ring(queue, |device, ring| device.deliver_run(ring, pair));
            moved += delivered;
            if delivered == 0 || !self.is_running() {
                break;
            }
        }
        moved
    }

    /// Filters a frame and appends it to the pending ones with its queue pair.
    fn classify(&mut self, packet: Packet) {
        let counter = match () {
            () if !self.link_up => &mut self.counters.rx_no_link,
            () if !self.filter.takes(&packet) => &mut self.counters.rx_filtered,
            () => return self.pending_rx.push_back((self.flows.pair(&packet, self.pairs), packet)),
        };
        *counter += 1;
    }

    /// Delivers the frames at the front that belong to queue pair `pair`. Returns how many.
    fn deliver_run(&mut self, ring: &mut dyn Ring, pair: u16) -> Result<usize, Fault> {
        let mut count = 0;
        while let Some((its, mut packet)) = self.pending_rx.pop_front() {
            if its != pair || self.deliver(ring, 2 * usize::from(pair), &mut packet)? == Delivery::Wait {
                self.pending_rx.push_front((its, packet));
                break;
            }
            count += 1;
        }
        Ok(count)
    }

    fn deliver(&mut self, ring: &mut dyn Ring, queue: usize, packet: &mut Packet) -> Result<Delivery, Fault> {
        if self.triggers(Lie::RxStuck) {
            return Ok(Delivery::Done);
        }
        let len = packet.total_len();
        let Some(mut header) = Header::received(packet, self.accepted) else {
            self.counters.rx_unfit += 1;
            return Ok(Delivery::Done);
        };
        let (header_len, mark) = (self.header_len(), ring.mark());
        let total = header_len + len;
        let (mut used, mut room) = (0, 0);
        while room < total {
            if used == self.chains.len() {
                self.chains.push_back(Chain::default());
            }
            let mut chain = std::mem::take(&mut self.chains[used]);
            let more = self.next(queue, ring, &mut chain)?;
            if !more {
                ring.rewind(mark);
                self.chains[used] = chain;
                return Ok(Delivery::Wait);
            }
            self.check_buffer(&chain, header_len)?;
            room += chain.writable();
            self.chains[used] = chain;
            used += 1;
            if room < total && !self.has(MRG_RXBUF) {
                ring.rewind(mark);
                self.counters.rx_unfit += 1;
                return Ok(Delivery::Done);
            }
        }
        // The field is 1 without mergeable buffers too (5.1.6.4.1).
        header.buffers = used as u16;
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.extend(&header.encode()[..header_len]);
        bytes.resize(total, 0);
        packet.copy_to(&mut bytes[header_len..]);
        if let Some(liar) = &self.liar {
            liar.count(1);
            liar.header(&mut bytes[..header_len]);
            let missing = u16::from(liar.triggers(Lie::BuffersMissing));
            if header_len == 12 {
                bytes[10..12].copy_from_slice(&liar.buffers(used as u16 + missing).to_le_bytes());
            }
        }
        let mut rest = &bytes[..];
        for chain in self.chains.iter_mut().take(used) {
            let room = chain.writable();
            let written = chain.write(&self.dma, &rest[..rest.len().min(room)])?;
            rest = &rest[written..];
            ring.put(chain, written as u32, written == room);
        }
        self.bytes = bytes;
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += len as u64;
        Ok(Delivery::Done)
    }

    /// Checks a receive buffer against the requirements for drivers (5.1.6.3.1).
    fn check_buffer(&self, chain: &Chain, header_len: usize) -> Result<(), Fault> {
        if chain.readable() > 0 {
            return Err("a receive buffer that is to be read");
        }
        if chain.writable() < header_len {
            return Err("a receive buffer that is shorter than the header");
        }
        if self.requires_legacy_layout() && !self.has(MRG_RXBUF) && chain.first_len() != header_len {
            return Err("a legacy receive buffer whose header is not in a descriptor of its own");
        }
        Ok(())
    }
}
