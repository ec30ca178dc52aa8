//! The card behind its lock, and one round of its work.

use std::sync::atomic::Ordering;

use ringpass_memory::Burst;
use ringpass_port::{Link, Queues};
use ringpass_registers::RegisterFile;
use ringpass_registers::ixgbe::{bits::*, *};

use super::CardConfig;
use super::bits::*;
use super::crc::crc32;
use super::decode::Settings;
use super::doorbells::Doorbells;
use super::eeprom::Eeprom;
use super::fifo::Fifo;
use super::filter::{Cast, destination};
use super::rss::{Class, classify};
use super::rx::{self, RxRing};
use super::stats::{Batch, Counters, count, count_octets, count_rx, count_tx};
use super::tx::{self, BURST, Buffers, Context, TxRing};
use crate::dma::DmaMap;

/// Frames without CRC are at least this long.
const SHORTEST: usize = 60;

pub(super) struct Device {
    pub(super) registers: RegisterFile,
    pub(super) eeprom: Eeprom,
    pub(super) dma: DmaMap,
    pub(super) bus_master: bool,
    pub(super) link: Link,
    pub(super) rx: Box<[RxRing]>,
    pub(super) tx: Box<[TxRing]>,
    /// Which rings are enabled, a bit each.
    pub(super) rx_enabled: u64,
    pub(super) tx_enabled: u128,
    /// A register that `settings` depend on was written.
    pub(super) stale: bool,
    pub(super) counters: Counters,
    mac: [u8; 6],
    /// Whether the card may access memory in this step.
    masters: bool,
    /// The Tx queue that is served first.
    tx_turn: usize,
    settings: Settings,
    fifo: Fifo,
    buffers: Buffers,
    /// Frames that the wire has not taken yet.
    to_wire: Burst,
    received: Batch,
    /// Rx rings with something to count, a bit each.
    rx_touched: u64,
    /// Where a frame gets its CRC.
    scratch: Vec<u8>,
}

impl Device {
    pub(super) fn new(config: &CardConfig) -> Self {
        let registers = RegisterFile::new(TABLE);
        let mut device = Self {
            settings: Settings::decode(&registers),
            registers,
            eeprom: Eeprom::new(config.mac),
            dma: DmaMap::default(),
            bus_master: false,
            link: config.link,
            rx: (0..rx::QUEUES).map(|_| RxRing::default()).collect(),
            tx: (0..tx::QUEUES).map(|_| TxRing::default()).collect(),
            rx_enabled: 0,
            tx_enabled: 0,
            stale: true,
            counters: Counters::default(),
            mac: config.mac.0,
            masters: false,
            tx_turn: 0,
            fifo: Fifo::default(),
            buffers: Buffers::new(),
            to_wire: Burst::new(BURST),
            received: Batch::default(),
            rx_touched: 0,
            scratch: Vec::with_capacity(16 << 10),
        };
        device.load_eeprom();
        device
    }

    /// A reset by software (4.2.1): all but what comes from outside.
    pub(super) fn reset(&mut self, doorbells: &Doorbells) {
        self.registers.reset();
        doorbells.reset();
        self.rx.fill_with(RxRing::default);
        self.tx.fill_with(TxRing::default);
        (self.rx_enabled, self.tx_enabled) = (0, 0);
        self.fifo.clear();
        self.to_wire.clear();
        self.stale = true;
        self.load_eeprom();
    }

    /// What the card reads from its EEPROM after a reset (chapter 6): the MAC address goes to the first receive address.
    fn load_eeprom(&mut self) {
        let [a, b, c, d, e, f] = self.mac;
        self.registers.set(RAL.at(0).offset, u32::from_le_bytes([a, b, c, d]));
        self.registers.set(RAH.at(0).offset, u32::from_le_bytes([e, f, 0, 0]) | RAH_AV);
        let auto_negotiation = self.registers.get(AUTOC.offset) & !AUTOC_LMS_MASK;
        self.registers.set(AUTOC.offset, auto_negotiation | AUTOC_LMS_10G_SERIAL);
        (0..rx::QUEUES).for_each(|queue| self.rx[queue].configure(self.registers.get(SRRCTL.at(queue).offset)));
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn set_link(&mut self, up: bool) {
        if self.link.up != up {
            self.link.up = up;
            self.registers.set(EICR.offset, self.registers.get(EICR.offset) | EICR_LSC);
        }
    }

    /// Whether the card may access memory now.
    fn may_master(&self) -> bool {
        self.bus_master && self.registers.get(CTRL.offset) & CTRL_MASTER_DISABLE == 0
    }

    /// See [`Card::step`](super::Card::step).
    pub(super) fn step(&mut self, wire: &mut Queues, doorbells: &Doorbells) -> usize {
        if std::mem::take(&mut self.stale) {
            self.settings = Settings::decode(&self.registers);
        }
        self.masters = self.may_master();
        // All tails first: the descriptors of one direction come from the driver's core while the other is worked on.
        for queue in bits(self.rx_enabled.into()) {
            self.rx[queue].set_tail(doorbells.rx(queue).load(Ordering::Acquire));
        }
        for queue in bits(self.tx_enabled) {
            self.tx[queue].set_tail(doorbells.tx(queue).load(Ordering::Acquire));
        }
        let moved = self.receive(wire) + self.transmit(wire);
        self.count_received();
        moved
    }

    fn receive(&mut self, wire: &mut Queues) -> usize {
        // Until the driver listens, the frames stay with the wire, so that none is lost while it starts.
        if !self.settings.receive || self.rx_enabled == 0 {
            return 0;
        }
        let waited = self.drain_fifo();
        if self.settings.loopback {
            return waited;
        }
        let mut burst = Burst::new(BURST);
        let arrived = wire.rx.rx_burst(&mut burst);
        if self.link.up {
            burst.iter().for_each(|packet| self.arrive(packet));
        } else {
            self.counters.rx_no_link += arrived as u64;
        }
        waited + arrived
    }

    fn drain_fifo(&mut self) -> usize {
        let mut drained = 0;
        while drained < BURST
            && let Some((frame, class)) = self.fifo.front()
        {
            if !self.rx[class.queue as usize].place(frame, class, &self.dma, self.masters) {
                break;
            }
            self.rx_touched |= 1 << class.queue;
            self.fifo.pop();
            drained += 1;
        }
        drained
    }

    /// A frame from the wire: filters, classification, then a ring or the packet buffer.
    #[inline]
    fn arrive(&mut self, frame: &[u8]) {
        if frame.len() >= SHORTEST {
            return self.take(frame);
        }
        // Ports of the kernel hand over frames without the padding that a wire would carry.
        let mut padded = [0; SHORTEST];
        padded[..frame.len()].copy_from_slice(frame);
        self.take(&padded);
    }

    #[inline]
    fn take(&mut self, frame: &[u8]) {
        let address = destination(frame);
        let cast = Cast::of(address);
        let tag = self.settings.filter.tag(frame);
        let Some(passed) = self.settings.filter.check(address, cast, tag) else {
            self.counters.rx_filtered += 1;
            if cast == Cast::Broadcast {
                // Of those rejected, only these count as received (8.2.3.23.59).
                count(&mut self.registers, TPR.offset, 1);
            }
            return;
        };
        let type_offset = if tag.is_some() { 16 } else { 12 };
        if frame.len() > self.settings.longest + (type_offset - 12) {
            self.counters.rx_oversize += 1;
            count(&mut self.registers, TPR.offset, 1);
            return count(&mut self.registers, ROC.offset, 1);
        }
        if self.settings.check_length && length_is_wrong(frame, type_offset) {
            count(&mut self.registers, RLEC.offset, 1);
        }
        let mut class = classify(self.settings.rss.as_ref(), frame, type_offset);
        if passed.inexact {
            class.status |= RX_PIF;
        }
        let kept = if self.settings.strip_crc { self.put(frame, class) } else { self.put_with_crc(frame, class) };
        if kept {
            self.received.add(frame.len(), cast);
        }
    }

    #[cold]
    fn put_with_crc(&mut self, frame: &[u8], class: Class) -> bool {
        let mut whole = std::mem::take(&mut self.scratch);
        whole.clear();
        whole.extend_from_slice(frame);
        whole.extend_from_slice(&crc32(frame).to_le_bytes());
        let kept = self.put(&whole, class);
        self.scratch = whole;
        kept
    }

    /// Puts a frame into its ring, or behind the frames that wait; `false` if the packet buffer is full.
    #[inline(always)]
    fn put(&mut self, frame: &[u8], class: Class) -> bool {
        if self.fifo.is_empty() {
            self.rx_touched |= 1 << class.queue;
            if self.rx[class.queue as usize].place(frame, class, &self.dma, self.masters) {
                return true;
            }
        }
        let kept = self.fifo.push(frame, class, self.settings.packet_buffer);
        if !kept {
            self.counters.rx_buffer_full += 1;
            count(&mut self.registers, MPC.at(0).offset, 1);
        }
        kept
    }

    /// Brings what a step has received into the registers.
    fn count_received(&mut self) {
        let received = std::mem::take(&mut self.received);
        if received.packets > 0 {
            count_rx(&mut self.registers, &received);
        }
        for queue in bits(std::mem::take(&mut self.rx_touched).into()) {
            let tally = std::mem::take(&mut self.rx[queue].tally);
            let counters = &mut self.counters;
            counters.rx_packets += tally.packets;
            counters.rx_bytes += tally.bytes - if self.settings.strip_crc { 0 } else { 4 * tally.packets };
            counters.rx_no_descriptor += tally.no_descriptor;
            counters.rx_queue_disabled += tally.disabled;
            counters.dma_faults += tally.faults;
            let map = self.registers.get(RQSMR.at(queue / 4).offset);
            let counter = (map >> (queue % 4 * 8) & 0xf) as usize;
            count(&mut self.registers, QPRC.at(counter).offset, tally.packets);
            count_octets(&mut self.registers, QBRC_L.at(counter).offset, QBRC_H.at(counter).offset, tally.bytes);
            count(&mut self.registers, QPRDC.at(counter).offset, tally.no_descriptor + tally.disabled);
        }
    }

    fn transmit(&mut self, wire: &mut Queues) -> usize {
        if !self.link.up {
            return 0;
        }
        let mut sent = self.flush(wire);
        if !self.settings.transmit || !self.masters {
            return sent;
        }
        // From the queue behind the last one served, so that each has its turn on a slow wire.
        let later = u128::MAX << self.tx_turn;
        for queue in bits(self.tx_enabled & later).chain(bits(self.tx_enabled & !later)) {
            if !self.to_wire.is_empty() {
                break;
            }
            let mut context = Context {
                dma: &self.dma,
                settings: &self.settings,
                buffers: &mut self.buffers,
                counters: &mut self.counters,
            };
            self.tx[queue].fetch(&mut self.to_wire, &mut context);
            if !self.to_wire.is_empty() {
                self.tx_turn = (queue + 1) % tx::QUEUES;
                let counter = self.registers.get(TQSM.at(queue / 4).offset) >> (queue % 4 * 8) & 0xf;
                count(&mut self.registers, QPTC.at(counter as usize).offset, self.to_wire.len() as u64);
                self.count_sent();
                sent += self.flush(wire);
            }
        }
        sent
    }

    fn count_sent(&mut self) {
        let mut batch = Batch::default();
        for packet in self.to_wire.iter() {
            batch.add(packet.len(), Cast::of(destination(packet)));
        }
        self.counters.tx_packets += batch.packets;
        self.counters.tx_bytes += batch.octets - 4 * batch.packets;
        count_tx(&mut self.registers, &batch);
    }

    /// Hands frames to the wire, or with loopback to the receiver. What the wire does not take stays for the next step.
    fn flush(&mut self, wire: &mut Queues) -> usize {
        if self.to_wire.is_empty() {
            return 0;
        }
        if !self.settings.loopback {
            return wire.tx.tx_burst(&mut self.to_wire);
        }
        let mut burst = std::mem::replace(&mut self.to_wire, Burst::new(BURST));
        if self.settings.receive {
            burst.iter().for_each(|packet| self.arrive(packet));
        }
        let count = burst.len();
        burst.clear();
        count
    }
}

/// The bits that are set, by their numbers.
fn bits(mut mask: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (bit < u128::BITS).then_some(bit as usize)
    })
}

/// Whether the length field of a frame says more than the frame has (8.2.3.22.8, RXLNGTHERREN). Values from 1536 on are types.
fn length_is_wrong(frame: &[u8], offset: usize) -> bool {
    let Some(&[high, low]) = frame.get(offset..offset + 2) else { return false };
    let length = u16::from_be_bytes([high, low]) as usize;
    length < 1536 && length > frame.len() - offset - 2
}
