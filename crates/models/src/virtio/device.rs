//! What there is of the card behind its registers: status, negotiation, queues, the round.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Mempool, Packet};
use ringpass_port::Queues;
use ringpass_virtio::features::*;
use ringpass_virtio::layout::LEGACY_ALIGN;

use super::VirtioConfig;
use super::counters::Counters;
use super::filter::Filter;
use super::interrupts::Interrupts;
use super::kicks::Kicks;
use super::liar::Liar;
use super::lies::Lie;
use super::outlet::Outlet;
use super::queue::Queue;
use super::ring::{Chain, Fault, NOT_MAPPED, Packed, Ring, Rules, Split};
use super::steer::Flows;
use crate::dma::DmaMap;
use crate::runner::Wants;

/// Packets of a queue in one round.
pub(super) const BURST: usize = 64;

/// Device status (2.1).
pub(super) const DRIVER_OK: u8 = 4;
pub(super) const FEATURES_OK: u8 = 8;
pub(super) const NEEDS_RESET: u8 = 0x40;

/// What the legacy interface can offer (2.2.2): the lower half.
pub(super) const LEGACY_FEATURES: u64 = 0xffff_ffff;

pub(super) struct Device {
    pub(super) config: VirtioConfig,
    pub(super) dma: DmaMap,
    pub(super) bus_master: bool,
    pub(super) interrupts: Interrupts,
    pub(super) counters: Counters,
    pub(super) liar: Option<Arc<Liar>>,
    pub(super) status: u8,
    /// Why the card needs a reset.
    pub(super) fault: Option<Fault>,
    pub(super) accepted: u64,
    pub(super) offered_select: u32,
    pub(super) accepted_select: u32,
    pub(super) queue_select: u16,
    pub(super) generation: u8,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u16,
    pub(super) pairs_said: u16,
    pub(super) link_up: bool,
    pub(super) queues: Box<[Queue]>,
    /// Pairs that the driver uses.
    pub(super) pairs: u16,
    pub(super) filter: Filter,
    pub(super) flows: Flows,
    /// Frames that wait for a receive buffer, each with the pair that it is for.
    pub(super) held: VecDeque<(u16, Packet)>,
    pub(super) outlet: Outlet,
    pub(super) chains: VecDeque<Chain>,
    pub(super) bytes: Vec<u8>,
}

impl Device {
    pub(super) fn new(config: &VirtioConfig, pool: &Mempool) -> Self {
        let queues = (0..config.queues()).map(|_| Queue::new(config.queue_size)).collect();
        let mut device = Self {
            dma: DmaMap::default(),
            bus_master: false,
            interrupts: Interrupts::new(config.vectors()),
            counters: Counters::default(),
            liar: Liar::new(&config.lies),
            status: 0,
            fault: None,
            accepted: 0,
            offered_select: 0,
            accepted_select: 0,
            queue_select: 0,
            generation: 0,
            mac: config.mac.0,
            mtu: config.mtu,
            pairs_said: config.queue_pairs,
            link_up: true,
            queues,
            pairs: 1,
            filter: Filter::default(),
            flows: Flows::default(),
            held: VecDeque::new(),
            outlet: Outlet::new(pool),
            chains: VecDeque::new(),
            bytes: Vec::new(),
            config: *config,
        };
        device.filter.reset(device.mac);
        device
    }

    /// All features that a modern driver may choose from.
    pub(super) fn offered(&self) -> u64 {
        self.config.offered()
    }

    pub(super) fn has(&self, feature: u64) -> bool {
        self.accepted & feature != 0
    }

    /// The driver has read that the card is a modern one.
    pub(super) fn is_modern(&self) -> bool {
        self.has(VERSION_1)
    }

    /// A driver that treats the card as legacy, without the licence to lay buffers out as it likes (5.1.6.3.1).
    pub(super) fn is_strict(&self) -> bool {
        !self.is_modern() && !self.has(ANY_LAYOUT)
    }

    /// Length of a frame's header (5.1.6.1).
    pub(super) fn header_len(&self) -> usize {
        if self.is_modern() || self.has(MRG_RXBUF) { 12 } else { 10 }
    }

    /// The queue of commands (5.1.2).
    pub(super) fn control_queue(&self) -> Option<usize> {
        let pairs = if self.has(MQ) { self.config.queue_pairs } else { 1 };
        self.has(CTRL_VQ).then_some(2 * usize::from(pairs))
    }

    /// A queue that exists with what was negotiated.
    pub(super) fn queue(&mut self, number: u16) -> Option<&mut Queue> {
        let pairs = if self.has(MQ) { self.config.queue_pairs } else { 1 };
        let exists = number < 2 * pairs || self.control_queue() == Some(number.into());
        self.queues.get_mut(usize::from(number)).filter(|_| exists)
    }

    /// A write to the device status (2.1.1, 3.1.1). Bits stay until all are cleared.
    pub(super) fn set_status(&mut self, status: u8, kicks: &Kicks) {
        if status == 0 {
            return self.reset(kicks);
        }
        let asks = status & FEATURES_OK != 0 && self.status & FEATURES_OK == 0;
        let agrees = !asks || self.agrees();
        self.status |= if agrees { status } else { status & !FEATURES_OK } & !NEEDS_RESET;
        if asks && agrees {
            kicks.data.store(self.has(NOTIFICATION_DATA), Ordering::Relaxed);
            kicks.config_data.store(self.has(NOTIF_CONFIG_DATA), Ordering::Relaxed);
        }
        if self.status & DRIVER_OK != 0 {
            kicks.control.store(self.control_queue().unwrap_or(usize::MAX), Ordering::Relaxed);
            if self.has(CTRL_VLAN) {
                self.filter.filter_vlans();
            }
        }
    }

    /// Whether the features that the driver chose make sense together (2.2.1, 5.1.3.1).
    fn agrees(&self) -> bool {
        let known = self.accepted & !self.offered() == 0;
        let whole = NEEDS.iter().all(|&(feature, needs)| !self.has(feature) || self.has(needs));
        known && whole && self.is_modern() && !self.pretends(Lie::FeaturesNever)
    }

    pub(super) fn reset(&mut self, kicks: &Kicks) {
        if self.pretends(Lie::ResetNever) {
            return;
        }
        self.queues.iter_mut().for_each(Queue::reset);
        kicks.clear();
        kicks.control.store(usize::MAX, Ordering::Relaxed);
        kicks.data.store(false, Ordering::Relaxed);
        kicks.config_data.store(false, Ordering::Relaxed);
        self.interrupts.reset();
        (self.status, self.fault, self.accepted) = (0, None, 0);
        (self.offered_select, self.accepted_select, self.queue_select) = (0, 0, 0);
        self.mac = self.config.mac.0;
        self.pairs = 1;
        self.filter.reset(self.mac);
        self.flows = Flows::default();
        self.held.clear();
    }

    /// A queue is enabled: its registers describe its ring.
    pub(super) fn enable(&mut self, number: u16) {
        let rules = Rules {
            event_idx: self.has(EVENT_IDX),
            indirect: self.has(INDIRECT_DESC),
            in_order: self.has(IN_ORDER),
            on_empty: !self.is_modern() && self.has(NOTIFY_ON_EMPTY),
        };
        let packed = self.has(RING_PACKED);
        let Some(queue) = self.queue(number) else { return };
        let (areas, size) = (queue.areas, queue.size);
        let ring = match packed {
            true => Ok(Box::new(Packed::new(areas, size, rules)) as Box<dyn Ring>),
            false => Split::new(areas, size, rules).map(|ring| Box::new(ring) as Box<dyn Ring>),
        };
        // The card looks for receive buffers when a frame comes, whether or not it was notified of them.
        (queue.enabled, queue.awake) = (true, number.is_multiple_of(2));
        match ring {
            Ok(ring) => queue.ring = Some(ring),
            Err(why) => self.break_down(why),
        }
        if self.control_queue() == Some(number.into()) {
            self.queues[usize::from(number)].awake = false;
        }
    }

    /// Where a legacy queue lies (2.7.2).
    pub(super) fn legacy_areas(page: u32, size: u16) -> [u64; 3] {
        let (table, size) = (u64::from(page) << 12, u64::from(size));
        let available = table + 16 * size;
        [table, available, (available + 6 + 2 * size).next_multiple_of(LEGACY_ALIGN as u64)]
    }

    pub(super) fn reset_queue(&mut self, number: u16) {
        let stuck = self.pretends(Lie::QueueResetNever);
        let Some(queue) = self.queue(number) else { return };
        queue.reset();
        queue.resetting = stuck;
    }

    /// The driver broke the rules: nothing moves until it resets the card (2.1.2).
    pub(super) fn break_down(&mut self, why: Fault) {
        self.counters.faults += 1;
        self.counters.dma_faults += u64::from(why == NOT_MAPPED);
        self.fault = Some(why);
        if self.is_modern() {
            self.status |= NEEDS_RESET;
        }
        if self.status & DRIVER_OK != 0 {
            self.changed();
        }
    }

    /// The configuration has changed.
    pub(super) fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        if self.status & DRIVER_OK != 0 {
            self.interrupts.config();
        }
    }

    pub(super) fn set_link(&mut self, up: bool) {
        if std::mem::replace(&mut self.link_up, up) != up && self.has(STATUS) {
            self.changed();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.status & DRIVER_OK != 0 && self.status & NEEDS_RESET == 0 && self.fault.is_none() && self.bus_master
    }

    /// Does something with a queue's ring, which may show that the driver broke the rules. Afterwards the driver sees
    /// what was given back.
    pub(super) fn with_ring<R: Default>(
        &mut self,
        queue: usize,
        act: impl FnOnce(&mut Self, &mut dyn Ring) -> Result<R, Fault>,
    ) -> R {
        let Some(mut ring) = self.queues[queue].ring.take() else { return R::default() };
        let result = act(self, &mut *ring).and_then(|result| {
            ring.publish(&self.dma, self.liar.as_deref())?;
            if ring.interrupts(&self.dma)? && !self.tells(Lie::InterruptLost) {
                self.counters.interrupts += 1;
                self.interrupts.queue(self.queues[queue].vector);
            }
            Ok(result)
        });
        self.queues[queue].ring = Some(ring);
        result.unwrap_or_else(|why| {
            self.break_down(why);
            R::default()
        })
    }

    /// Takes a queue's next chain; if there is none, the queue sleeps until it is notified.
    pub(super) fn next(&mut self, queue: usize, ring: &mut dyn Ring, chain: &mut Chain) -> Result<bool, Fault> {
        if !self.queues[queue].awake {
            return Ok(false);
        }
        if ring.next(&self.dma, chain)? {
            return Ok(true);
        }
        if self.tells(Lie::EventReserved) {
            // It goes on to look: who cannot know what it asks for cannot notify it.
            ring.scramble(&self.dma, self.liar.as_deref().map_or(0, |liar| liar.random()))?;
            return Ok(false);
        }
        if ring.listen(&self.dma)? {
            ring.quiet(&self.dma)?;
            return ring.next(&self.dma, chain);
        }
        self.queues[queue].awake = false;
        Ok(false)
    }

    /// Queues that were notified are looked at again.
    fn wake(&mut self, kicks: &Kicks) {
        for queue in 0..self.queues.len() {
            if let Some(position) = kicks.take(queue)
                && let Some(mut ring) = self.queues[queue].ring.take()
            {
                if self.has(NOTIFICATION_DATA) && !ring.may_be_at(&self.dma, position) {
                    self.counters.wrong_notifications += 1;
                }
                let slept = !std::mem::replace(&mut self.queues[queue].awake, true);
                let quiet = if slept { ring.quiet(&self.dma) } else { Ok(()) };
                self.queues[queue].ring = Some(ring);
                quiet.unwrap_or_else(|why| self.break_down(why));
            }
        }
    }

    /// One round.
    pub(super) fn step(&mut self, wire: &mut Queues, kicks: &Kicks) -> usize {
        if self.liar.is_some()
            && let Some(lost) = self.lie(wire)
        {
            return lost;
        }
        self.command(kicks);
        if !self.is_running() {
            return self.flush(wire);
        }
        self.send(wire) + self.receive(wire)
    }

    /// Carries out commands, at a driver's notification of them already: it may wait for the answer.
    pub(super) fn command(&mut self, kicks: &Kicks) {
        if self.status & DRIVER_OK == 0 || !self.bus_master {
            return;
        }
        self.wake(kicks);
        if self.is_running()
            && let Some(queue) = self.control_queue().filter(|&queue| self.queues[queue].awake)
        {
            self.carry_out_all(queue);
        }
    }

    pub(super) fn wants(&self) -> Wants {
        Wants {
            frames: self.is_removed() || self.is_running() && self.held.is_empty(),
            room: self.outlet.waits(),
            turn: self.lies_on().then(std::time::Instant::now),
        }
    }
}
