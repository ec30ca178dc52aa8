//! The NIC behind its lock, and one step of its work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ringpass_memory::{Burst, DmaMap, FrameBatch};
use ringpass_pci::registers::RegisterFile;
use ringpass_pci::registers::ixgbe::{bits::*, *};
use ringpass_port::{Link, QueuePair};

use super::bits::*;
use super::common::Tuples;
use super::config::CardConfig;
use super::decode::Settings;
use super::director::Director;
use super::doorbells::Doorbells;
use super::eeprom::Eeprom;
use super::fifo::Fifo;
use super::filter::{Cast, destination};
use super::interrupts::Interrupts;
use super::liar::Liar;
use super::limits::{BURST, MIN_FRAME_LEN, QUEUES};
use super::mdio::Phy;
use super::media::Media;
use super::rss::Class;
use super::rx::RxRing;
use super::sfp::Sfp;
use super::spi::Spi;
use super::stats::{Batch, Counters, count, count_octets, count_tx};
use super::trace::Trace;
use super::tx::TxRing;
use super::tx_context::{Buffers, Context};
use crate::model::Interest;

pub(super) struct Device {
    pub(super) registers: RegisterFile,
    pub(super) eeprom: Eeprom,
    pub(super) dma: DmaMap,
    pub(super) interrupts: Interrupts,
    pub(super) bus_master: bool,
    pub(super) link: Link,
    pub(super) rx: Box<[RxRing]>,
    pub(super) tx: Box<[TxRing]>,
    /// Enabled rings, a bit each.
    pub(super) rx_enabled: u128,
    pub(super) tx_enabled: u128,
    /// A register that `settings` depend on was written.
    pub(super) stale: bool,
    pub(super) counters: Counters,
    pub(super) media: Media,
    pub(super) sfp: Sfp,
    pub(super) phy: Phy,
    pub(super) spi: Spi,
    mac: [u8; 6],
    /// Whether the NIC may access memory in this step.
    pub(super) dma_allowed: bool,
    /// The Tx queue that is served first.
    pub(super) tx_turn: usize,
    pub(super) settings: Settings,
    /// Results of RSS under the present settings.
    pub(super) tuples: Tuples,
    pub(super) director: Director,
    pub(super) liar: Option<Arc<Liar>>,
    pub(super) fifo: Fifo,
    pub(super) buffers: Buffers,
    /// Frames that the wire had no room for yet.
    pub(super) to_wire: Burst,
    /// Frames on their way from a wire, or to one that needs no packets. Empty between the steps.
    pub(super) frames: FrameBatch,
    /// Classes of frames that are received together.
    pub(super) classes: Box<[Class; BURST]>,
    pub(super) received: Batch,
    /// Rx rings with something to count, a bit each.
    pub(super) rx_touched: u128,
    /// Tx rings that reported sent frames in this step, a bit each.
    tx_reported: u128,
    /// Buffer for assembling frames.
    pub(super) scratch: Vec<u8>,
    /// What the driver writes, if somebody looks on.
    pub(super) trace: Option<Box<Trace>>,
}

impl Device {
    pub(super) fn new(config: &CardConfig) -> Self {
        let registers = RegisterFile::new(TABLE);
        let mut device = Self {
            settings: Settings::decode(&registers),
            registers,
            eeprom: Eeprom::new(config.mac),
            dma: DmaMap::default(),
            interrupts: Interrupts::default(),
            bus_master: false,
            link: config.link,
            rx: (0..QUEUES).map(|_| RxRing::default()).collect(),
            tx: (0..QUEUES).map(|_| TxRing::default()).collect(),
            rx_enabled: 0,
            tx_enabled: 0,
            stale: true,
            counters: Counters::default(),
            media: Media::of(config.device),
            sfp: Sfp::new(Media::of(config.device) == Media::Fiber),
            phy: Phy::new(),
            spi: Spi::default(),
            mac: config.mac.0,
            dma_allowed: false,
            tuples: Tuples::default(),
            director: Director::default(),
            liar: Liar::new(&config.lies).map(Arc::new),
            tx_turn: 0,
            fifo: Fifo::default(),
            buffers: Buffers::new(),
            to_wire: Burst::new(BURST),
            frames: FrameBatch::new(BURST, MIN_FRAME_LEN),
            classes: Box::new([Class::default(); BURST]),
            received: Batch::default(),
            rx_touched: 0,
            tx_reported: 0,
            scratch: Vec::with_capacity(16 << 10),
            trace: None,
        };
        device.interrupts.liar = device.liar.clone();
        device.attach_liar();
        device.load_eeprom();
        device
    }

    /// Resets the NIC by software (4.2.1): everything except external state.
    pub(super) fn reset(&mut self, doorbells: &Doorbells) {
        self.registers.reset();
        self.interrupts.reset();
        doorbells.reset();
        self.rx.fill_with(RxRing::default);
        self.tx.fill_with(TxRing::default);
        self.attach_liar();
        (self.rx_enabled, self.tx_enabled) = (0, 0);
        self.fifo.clear();
        self.to_wire.clear();
        self.stale = true;
        self.load_eeprom();
    }

    /// Loads what the NIC reads from its EEPROM after a reset (chapter 6): the MAC address goes to the first
    /// receive address.
    fn load_eeprom(&mut self) {
        let [a, b, c, d, e, f] = self.mac;
        self.registers.set(RAL.at(0).offset, u32::from_le_bytes([a, b, c, d]));
        self.registers.set(RAH.at(0).offset, u32::from_le_bytes([e, f, 0, 0]) | RAH_AV);
        let auto_negotiation = self.registers.get(AUTOC.offset) & !AUTOC_LMS_MASK;
        self.registers.set(AUTOC.offset, auto_negotiation | self.media.link_mode());
        (0..QUEUES).for_each(|queue| self.configure_rx_queue(queue));
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// See [`Card::interest`](super::Card::interest).
    pub(super) fn interest(&self) -> Interest {
        let frames = self.settings.receive && self.rx_enabled != 0 && !self.settings.loopback;
        let is_step_due = self.liar.as_ref().is_some_and(|liar| liar.is_step_due());
        Interest {
            frames,
            room: !self.to_wire.is_empty(),
            turn: if is_step_due { Some(Instant::now()) } else { self.interrupts.due() },
        }
    }

    /// See [`Card::rx_posted`](super::Card::rx_posted).
    pub(super) fn rx_posted(&self, doorbells: &Doorbells) -> usize {
        let posted = |queue: usize| {
            let ring = &self.rx[queue];
            Some(ring.memory()?.distance(ring.head, doorbells.rx(queue).load(Ordering::Acquire) as usize))
        };
        set_bits(self.rx_enabled).filter_map(posted).sum()
    }

    /// Returns whether the NIC may access memory now.
    pub(super) fn may_dma(&self) -> bool {
        self.bus_master && self.registers.get(CTRL.offset) & CTRL_MASTER_DISABLE == 0
    }

    /// See [`Card::step`](super::Card::step).
    pub(super) fn step(&mut self, wire: &mut QueuePair, doorbells: &Doorbells) -> usize {
        if self.liar.is_some()
            && let Some(moved) = self.lie(wire)
        {
            return moved;
        }
        if std::mem::take(&mut self.stale) {
            self.settings = Settings::decode(&self.registers);
            self.tuples.clear();
        }
        // First, so that descriptors to be sent arrive from the driver's core while frames are received.
        let mut to_send = 0;
        set_bits(self.tx_enabled).for_each(|queue| {
            if self.tx[queue].set_tail(doorbells.tx(queue).load(Ordering::Acquire)) {
                to_send |= 1 << queue;
            }
        });
        let arrived = self.take_from_wire(wire);
        let waits = !self.fifo.is_empty() || !self.to_wire.is_empty() || self.interrupts.are_throttled();
        if to_send == 0 && arrived == 0 && !waits { 0 } else { self.work(to_send, arrived, wire, doorbells) }
    }

    /// Receives the frames that arrived from the wire and sends those of the rings `to_send`.
    // Out of line, so that a step without work saves no registers.
    #[inline(never)]
    pub(super) fn work(&mut self, to_send: u128, arrived: usize, wire: &mut QueuePair, doorbells: &Doorbells) -> usize {
        self.dma_allowed = self.may_dma();
        let drains = !self.fifo.is_empty() && self.settings.receive && self.rx_enabled != 0;
        let mut moved = if arrived > 0 || drains { self.receive(arrived, doorbells) } else { 0 };
        if to_send != 0 || !self.to_wire.is_empty() {
            moved += self.transmit(to_send, wire, doorbells);
        }
        let rx = self.count_received();
        self.interrupts.queues(rx, std::mem::take(&mut self.tx_reported), &self.registers);
        moved
    }

    /// Takes over the driver's tails of the Rx rings.
    pub(super) fn set_rx_tails(&mut self, doorbells: &Doorbells) {
        for queue in set_bits(self.rx_enabled) {
            self.rx[queue].set_tail(doorbells.rx(queue).load(Ordering::Acquire));
        }
    }

    /// Sends what the wire had no room for, then from the rings of `queues`.
    fn transmit(&mut self, queues: u128, wire: &mut QueuePair, doorbells: &Doorbells) -> usize {
        if !self.link.up {
            return 0;
        }
        let mut sent = self.flush(wire, doorbells);
        if !self.settings.transmit || !self.dma_allowed {
            return sent;
        }
        // Start after the queue served last, so that all queues get a turn on a slow wire.
        let later = u128::MAX << self.tx_turn;
        let queues = queues & self.settings.tx_queues;
        for queue in set_bits(queues & later).chain(set_bits(queues & !later)) {
            if !self.to_wire.is_empty() {
                break;
            }
            let mut context = Context {
                dma: &self.dma,
                settings: &self.settings,
                buffers: &mut self.buffers,
                counters: &mut self.counters,
                segment: &mut self.scratch,
            };
            let sink = if self.settings.loopback { None } else { wire.tx.frame_sink() };
            let mut batch = Batch::default();
            if let Some(sink) = sink
                && self.tx[queue].fetch_frames(&mut self.frames, &mut batch, &mut context)
            {
                sink.send(&self.frames);
                self.frames.clear();
                sent += batch.packets as usize;
            } else {
                self.tx[queue].fetch(&mut self.to_wire, &mut context);
                self.to_wire.iter().for_each(|packet| batch.add(packet.len(), Cast::of(destination(packet))));
            }
            self.tx_reported |= u128::from(std::mem::take(&mut self.tx[queue].reported)) << queue;
            if batch.packets > 0 {
                self.tx_turn = (queue + 1) % QUEUES;
                self.count_sent(queue, batch);
                sent += self.flush(wire, doorbells);
            }
        }
        sent
    }

    fn count_sent(&mut self, queue: usize, batch: Batch) {
        let counter = (self.registers.get(TQSM.at(queue / 4).offset) >> (queue % 4 * 8) & 0xf) as usize;
        self.counters.tx_packets += batch.packets;
        let bytes = batch.octets - 4 * batch.packets;
        self.counters.tx_bytes += bytes;
        count(&mut self.registers, QPTC.at(counter).offset, batch.packets);
        count_octets(&mut self.registers, QBTC_L.at(counter).offset, QBTC_H.at(counter).offset, bytes);
        count_tx(&mut self.registers, &batch);
    }

    /// Sends frames to the wire, or with loopback to the receiver. What the wire has no room for stays until
    /// the next step.
    pub(super) fn flush(&mut self, wire: &mut QueuePair, doorbells: &Doorbells) -> usize {
        if self.to_wire.is_empty() {
            return 0;
        }
        if !self.settings.loopback {
            return wire.tx.tx_burst(&mut self.to_wire);
        }
        let mut burst = std::mem::replace(&mut self.to_wire, Burst::new(BURST));
        if self.settings.receive {
            burst.iter().for_each(|packet| self.frames.push_packet(packet));
            self.set_rx_tails(doorbells);
            self.receive_frames();
        }
        let count = burst.len();
        burst.clear();
        count
    }
}
