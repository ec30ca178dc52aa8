//! Steps of one descriptor, for people who look on: what the driver wrote since the last one, and what the NIC does.

use std::sync::atomic::Ordering;

use ringpass_memory::{FrameBatch, LookupHint};
use ringpass_pci::registers::ixgbe::{descriptor::*, *};
use ringpass_port::{Direction, QueuePair};

use super::bits::*;
use super::decode::Settings;
use super::device::Device;
use super::doorbells::Doorbells;
use super::limits::{MAX_FRAME_LEN, MIN_FRAME_LEN};
use super::trace::{Trace, name};
use crate::dma::Ring;
use crate::step::{Step, StepLine, Who};

/// An Rx ring before a step.
struct RxHead {
    queue: usize,
    head: usize,
    descriptor: [u64; 2],
}

/// Returns a descriptor of 16 bytes.
fn words(ring: Option<&Ring>, at: usize) -> [u64; 2] {
    let descriptor = ring.and_then(|ring| ring.get(at));
    descriptor.map_or([0; 2], |[first, second]| [first.load(Ordering::Acquire), second.load(Ordering::Acquire)])
}

/// Returns the names of those of a word's bits that are set.
fn flags(word: u64, names: &[(u64, &'static str)]) -> String {
    let set: Vec<_> = names.iter().filter(|(bit, _)| word & bit != 0).map(|&(_, name)| name).collect();
    if set.is_empty() { "no flags".into() } else { set.join(", ") }
}

impl Device {
    /// Begins or ends to keep what the driver writes.
    pub(super) fn trace(&mut self, on: bool, doorbells: &Doorbells) {
        self.trace = on.then(|| Box::new(Trace::new(self.tails(doorbells))));
    }

    /// Returns the tails of all enabled rings.
    fn tails(&self, doorbells: &Doorbells) -> Vec<(u32, u32)> {
        let rx = set_bits(self.rx_enabled).map(|q| (RDT.at(q).offset, doorbells.rx(q).load(Ordering::Acquire)));
        let tx = set_bits(self.tx_enabled).map(|q| (TDT.at(q).offset, doorbells.tx(q).load(Ordering::Acquire)));
        rx.chain(tx).collect()
    }

    /// Returns what the driver has written since the last call.
    pub(super) fn written(&mut self, doorbells: &Doorbells) -> Vec<StepLine> {
        let tails = self.tails(doorbells);
        let Some(trace) = &mut self.trace else { return Vec::new() };
        let mut lines = std::mem::take(&mut trace.writes);
        for &(offset, now) in &tails {
            let before = trace.tails.iter().find(|(other, _)| *other == offset).map_or(0, |(_, before)| *before);
            if now != before
                && let Some(register) = self.registers.find(offset)
            {
                let text = format!("{} = {now} (before: {before})", name(register));
                lines.push(StepLine { who: Who::Driver, text, source: TABLE[register.row].description });
            }
        }
        trace.tails = tails;
        lines
    }

    /// Delivers interrupts that are due, and does nothing else.
    pub(super) fn settle(&mut self) {
        self.interrupts.queues(0, 0, &self.registers);
    }

    /// Handles one descriptor of a direction: sends what the next one of a Tx ring describes, or receives a frame from the wire. `None` if there is
    /// nothing to do.
    pub(super) fn step_one(
        &mut self,
        wire: &mut QueuePair,
        direction: Direction,
        doorbells: &Doorbells,
    ) -> Option<Step> {
        if std::mem::take(&mut self.stale) {
            self.settings = Settings::decode(&self.registers);
            self.tuples.clear();
        }
        match direction {
            Direction::Tx => self.send_one(wire, doorbells),
            Direction::Rx => self.receive_one(wire, doorbells),
        }
    }

    fn send_one(&mut self, wire: &mut QueuePair, doorbells: &Doorbells) -> Option<Step> {
        const COMMANDS: [(u64, &str); 6] =
            [(TX_EOP, "EOP"), (TX_IFCS, "IFCS"), (TX_RS, "RS"), (TX_DEXT, "DEXT"), (TX_VLE, "VLE"), (TX_TSE, "TSE")];
        if !self.link.up || !self.settings.transmit || !self.may_dma() {
            return None;
        }
        // What the wire had no room for before comes first.
        self.flush(wire, doorbells);
        if !self.to_wire.is_empty() {
            return None;
        }
        let queues = self.tx_enabled & self.settings.tx_queues;
        let queue = set_bits(queues).find(|&q| self.tx[q].set_tail(doorbells.tx(q).load(Ordering::Acquire)))?;
        self.tx[queue].limit_to_one();
        let head = self.tx[queue].head;
        let [address, command] = words(self.tx[queue].memory(), head);
        let len = (command as usize & 0xffff).min(MAX_FRAME_LEN);
        let is_context = command & (TX_DTYP_MASK | TX_DEXT) == TX_DTYP_CONTEXT | TX_DEXT;
        let mut bytes = vec![0; if is_context { 0 } else { len }];
        if !self.dma.read(address, &mut bytes, &mut LookupHint::default()) {
            bytes.clear();
        }
        let sent = self.counters.tx_packets;
        let mut step = Step::new(self.written(doorbells), &bytes);
        self.work(1 << queue, 0, wire, doorbells);
        if self.tx[queue].head == head && self.counters.tx_packets == sent {
            return None;
        }
        let what = match self.counters.tx_packets - sent {
            0 if is_context => "took a context for the next frames",
            0 => "took a part of a frame",
            _ => "sent a frame",
        };
        step.what = format!("{what}: descriptor {head} of Tx ring {queue}");
        let flags = flags(command, &COMMANDS);
        let asked = format!("read descriptor {head}: {len} bytes at {address:#x}, {flags}");
        step.card(
            asked,
            if is_context {
                "Advanced Transmit Context Descriptor, 7.2.3.2.3"
            } else {
                "Advanced Transmit Data Descriptor, 7.2.3.2.4"
            },
        );
        let [_, after] = words(self.tx[queue].memory(), head);
        if after != command && after & TX_DD != 0 {
            step.card(format!("descriptor {head}: DD, done"), "Transmit Descriptor Write-Back, 7.2.3.5");
        }
        step.card(format!("TDH[{queue}] = {}", self.tx[queue].head), self.source(TDH.at(queue).offset));
        Some(step)
    }

    fn receive_one(&mut self, wire: &mut QueuePair, doorbells: &Doorbells) -> Option<Step> {
        if !self.fifo.is_empty() {
            return self.receive_waiting(doorbells);
        }
        let many = std::mem::replace(&mut self.frames, FrameBatch::new(1, MIN_FRAME_LEN));
        let arrived = self.take_from_wire(wire);
        let Some(frame) = self.frames.iter().next().map(<[u8]>::to_vec) else {
            self.frames = many;
            return None;
        };
        let step = Step::new(self.written(doorbells), &frame);
        let rings = self.rx_heads();
        self.work(0, arrived, wire, doorbells);
        self.frames = many;
        Some(self.received(step, frame.len(), &rings))
    }

    /// Receives the first of the frames that wait in the packet buffer for a descriptor.
    fn receive_waiting(&mut self, doorbells: &Doorbells) -> Option<Step> {
        self.set_rx_tails(doorbells);
        self.dma_allowed = self.may_dma();
        let (frame, class) = self.fifo.front().map(|(frame, class)| (frame.to_vec(), class))?;
        let rings = self.rx_heads();
        if !self.rx[class.queue as usize].place(&frame, class, &self.dma, self.dma_allowed) {
            return None;
        }
        self.rx_touched |= 1 << class.queue;
        self.fifo.pop();
        self.write_back();
        let rx = self.count_received();
        self.interrupts.queues(rx, 0, &self.registers);
        let step = Step::new(self.written(doorbells), &frame);
        Some(self.received(step, frame.len(), &rings))
    }

    /// Returns number, head and next descriptor of each Rx ring.
    fn rx_heads(&self) -> Vec<RxHead> {
        let of = |queue: usize| {
            let head = self.rx[queue].head;
            RxHead { queue, head, descriptor: words(self.rx[queue].memory(), head) }
        };
        set_bits(self.rx_enabled).map(of).collect()
    }

    /// Tells what has become of a frame of `len` bytes, given the rings before.
    fn received(&self, mut step: Step, len: usize, rings: &[RxHead]) -> Step {
        const STATUS: [(u64, &str); 4] = [(RX_DD, "DD"), (RX_EOP, "EOP"), (RX_VP, "VP"), (RX_PIF, "PIF")];
        let used = rings.iter().find(|ring| self.rx[ring.queue].head != ring.head);
        let Some(&RxHead { queue, head, descriptor: [address, _] }) = used else {
            step.what = match self.fifo.is_empty() {
                true => "dropped a frame from the wire: no filter took it, or there is no link or no descriptor".into(),
                false => "keeps a frame from the wire in its packet buffer: no descriptor is free".into(),
            };
            return step;
        };
        step.what = format!("received a frame: descriptor {head} of Rx ring {queue}");
        step.card(
            format!("wrote {len} bytes to the buffer at {address:#x} of descriptor {head}"),
            "Advanced Receive Descriptor, Read Format, 7.1.6.1",
        );
        let [_, after] = words(self.rx[queue].memory(), head);
        let flags = flags(after, &STATUS);
        step.card(
            format!("descriptor {head}: length {}, {flags}", after >> RX_LENGTH_SHIFT & 0xffff),
            "Advanced Receive Descriptor, Write-Back Format, 7.1.6.2",
        );
        step.card(format!("RDH[{queue}] = {}", self.rx[queue].head), self.source(RDH.at(queue).offset));
        step
    }

    /// Returns name and section of a register.
    fn source(&self, offset: u32) -> &'static str {
        self.registers.find(offset).map_or("", |register| TABLE[register.row].description)
    }
}
