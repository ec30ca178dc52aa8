//! The device behind its registers: status, feature negotiation, queues, and the step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Mempool, Packet};
use ringpass_port::QueuePair;
use ringpass_virtio::features::*;
use ringpass_virtio::layout::LEGACY_ALIGN;

use super::config::VirtioConfig;
use super::counters::Counters;
use super::filter::Filter;
use super::interrupts::Interrupts;
use super::kicks::Kicks;
use super::liar::Liar;
use super::lies::Lie;
use super::queue::Queue;
use super::ring::{Chain, Fault, NOT_MAPPED, Packed, Ring, RingFeatures, Split};
use super::steer::Flows;
use super::tx_path::TxPath;
use crate::model::Interest;
use ringpass_memory::DmaMap;

/// Device status bits (2.1).
pub(super) const DRIVER_OK: u8 = 4;
pub(super) const FEATURES_OK: u8 = 8;
pub(super) const NEEDS_RESET: u8 = 0x40;

pub(super) struct Device {
    pub(super) config: VirtioConfig,
    pub(super) dma: DmaMap,
    pub(super) bus_master: bool,
    pub(super) interrupts: Interrupts,
    pub(super) counters: Counters,
    pub(super) liar: Option<Arc<Liar>>,
    pub(super) status: u8,
    /// Why the device needs a reset.
    pub(super) fault: Option<Fault>,
    pub(super) accepted: u64,
    pub(super) offered_select: u32,
    pub(super) accepted_select: u32,
    pub(super) queue_select: u16,
    pub(super) generation: u8,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u16,
    pub(super) config_pairs: u16,
    pub(super) link_up: bool,
    pub(super) queues: Box<[Queue]>,
    /// Queue pairs that the driver uses.
    pub(super) pairs: u16,
    pub(super) filter: Filter,
    pub(super) flows: Flows,
    /// Frames that wait for a receive buffer, each with its queue pair.
    pub(super) pending_rx: VecDeque<(u16, Packet)>,
    pub(super) tx_path: TxPath,
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
            config_pairs: config.queue_pairs,
            link_up: true,
            queues,
            pairs: 1,
            filter: Filter::default(),
            flows: Flows::default(),
            pending_rx: VecDeque::new(),
            tx_path: TxPath::new(pool),
            chains: VecDeque::new(),
            bytes: Vec::new(),
            config: *config,
        };
        device.filter.reset(device.mac);
        device
    }

    /// Returns all features that a modern driver may choose from.
    pub(super) fn offered(&self) -> u64 {
        self.config.offered()
    }

    pub(super) fn has(&self, feature: u64) -> bool {
        self.accepted & feature != 0
    }

    /// Returns whether the driver uses the device as a modern one.
    pub(super) fn is_modern(&self) -> bool {
        self.has(VERSION_1)
    }

    /// Returns whether the driver must put a frame's header in a descriptor of its own: a legacy driver without
    /// ANY_LAYOUT (5.1.6.3.1).
    pub(super) fn requires_legacy_layout(&self) -> bool {
        !self.is_modern() && !self.has(ANY_LAYOUT)
    }

    /// Returns the length of the header in front of each frame, in bytes (5.1.6.1).
    pub(super) fn header_len(&self) -> usize {
        if self.is_modern() || self.has(MRG_RXBUF) { 12 } else { 10 }
    }

    /// Returns the index of the control queue, if it was negotiated (5.1.2).
    pub(super) fn control_queue(&self) -> Option<usize> {
        let pairs = if self.has(MQ) { self.config.queue_pairs } else { 1 };
        self.has(CTRL_VQ).then_some(2 * usize::from(pairs))
    }

    /// Returns a queue if it exists with the negotiated features.
    pub(super) fn queue(&mut self, number: u16) -> Option<&mut Queue> {
        let pairs = if self.has(MQ) { self.config.queue_pairs } else { 1 };
        let exists = number < 2 * pairs || self.control_queue() == Some(number.into());
        self.queues.get_mut(usize::from(number)).filter(|_| exists)
    }

    /// Carries out a write to the device status (2.1.1, 3.1.1). Bits stay set until a reset.
    pub(super) fn set_status(&mut self, status: u8, kicks: &Kicks) {
        if status == 0 {
            return self.reset(kicks);
        }
        let asks = status & FEATURES_OK != 0 && self.status & FEATURES_OK == 0;
        let features_valid = !asks || self.features_valid();
        self.status |= if features_valid { status } else { status & !FEATURES_OK } & !NEEDS_RESET;
        if asks && features_valid {
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

    /// Returns whether the accepted features are a valid set (2.2.1, 5.1.3.1).
    fn features_valid(&self) -> bool {
        let known = self.accepted & !self.offered() == 0;
        let whole = DEPENDENCIES.iter().all(|&(feature, needs)| !self.has(feature) || self.has(needs));
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
        self.pending_rx.clear();
    }

    /// Enables a queue with the ring that its registers describe.
    pub(super) fn enable(&mut self, number: u16) {
        let ring_features = RingFeatures {
            event_idx: self.has(EVENT_IDX),
            indirect: self.has(INDIRECT_DESC),
            in_order: self.has(IN_ORDER),
            on_empty: !self.is_modern() && self.has(NOTIFY_ON_EMPTY),
        };
        let packed = self.has(RING_PACKED);
        let Some(queue) = self.queue(number) else { return };
        let (areas, size) = (queue.areas, queue.size);
        let ring = match packed {
            true => Ok(Box::new(Packed::new(areas, size, ring_features)) as Box<dyn Ring>),
            false => Split::new(areas, size, ring_features).map(|ring| Box::new(ring) as Box<dyn Ring>),
        };
        // Rx queues start awake: the device looks for receive buffers when a frame arrives, whether or not it
        // was notified.
        (queue.enabled, queue.awake) = (true, number.is_multiple_of(2));
        match ring {
            Ok(ring) => queue.ring = Some(ring),
            Err(why) => self.set_needs_reset(why),
        }
        if self.control_queue() == Some(number.into()) {
            self.queues[usize::from(number)].awake = false;
        }
    }

    /// Returns the areas of a legacy queue that begins in page `page` (2.7.2).
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

    /// Stops all traffic because the driver violated the specification, until it resets the device (2.1.2).
    pub(super) fn set_needs_reset(&mut self, why: Fault) {
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

    /// Reports a change of the configuration space: new generation, and an interrupt.
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

    /// Works on a queue's ring, then publishes the used buffers and interrupts the driver if it wants that. An
    /// error means that the driver violated the specification; the device then needs a reset.
    pub(super) fn with_ring<R: Default>(
        &mut self,
        queue: usize,
        act: impl FnOnce(&mut Self, &mut dyn Ring) -> Result<R, Fault>,
    ) -> R {
        let Some(mut ring) = self.queues[queue].ring.take() else { return R::default() };
        let result = act(self, &mut *ring).and_then(|result| {
            ring.publish(&self.dma, self.liar.as_deref())?;
            if ring.interrupts(&self.dma)? && !self.triggers(Lie::InterruptLost) {
                self.counters.interrupts += 1;
                self.interrupts.queue(self.queues[queue].vector);
            }
            Ok(result)
        });
        self.queues[queue].ring = Some(ring);
        result.unwrap_or_else(|why| {
            self.set_needs_reset(why);
            R::default()
        })
    }

    /// Takes a queue's next chain. If there is none, enables notifications, and the queue sleeps until one
    /// arrives.
    pub(super) fn next(&mut self, queue: usize, ring: &mut dyn Ring, chain: &mut Chain) -> Result<bool, Fault> {
        if !self.queues[queue].awake {
            return Ok(false);
        }
        if ring.next(&self.dma, chain)? {
            return Ok(true);
        }
        if self.triggers(Lie::EventReserved) {
            // The queue stays awake: a driver that cannot read valid event suppression cannot notify the
            // device.
            ring.scramble(&self.dma, self.liar.as_deref().map_or(0, |liar| liar.random()))?;
            return Ok(false);
        }
        if ring.enable_notification(&self.dma)? {
            ring.disable_notification(&self.dma)?;
            return ring.next(&self.dma, chain);
        }
        self.queues[queue].awake = false;
        Ok(false)
    }

    /// Wakes the queues that were notified.
    fn wake(&mut self, kicks: &Kicks) {
        for queue in 0..self.queues.len() {
            if let Some(position) = kicks.take(queue)
                && let Some(mut ring) = self.queues[queue].ring.take()
            {
                if self.has(NOTIFICATION_DATA) && !ring.is_plausible_position(&self.dma, position) {
                    self.counters.wrong_notifications += 1;
                }
                let slept = !std::mem::replace(&mut self.queues[queue].awake, true);
                let disable_notification = if slept { ring.disable_notification(&self.dma) } else { Ok(()) };
                self.queues[queue].ring = Some(ring);
                disable_notification.unwrap_or_else(|why| self.set_needs_reset(why));
            }
        }
    }

    /// Runs one step: commands, then frames in both directions. Returns how many packets moved.
    pub(super) fn step(&mut self, wire: &mut QueuePair, kicks: &Kicks) -> usize {
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

    /// Carries out the posted commands. Also called at a notification of the control queue, because the driver
    /// may spin until the command is done.
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

    pub(super) fn interest(&self) -> Interest {
        Interest {
            frames: self.is_removed() || self.is_running() && self.pending_rx.is_empty(),
            room: self.tx_path.has_pending(),
            turn: self.liar.as_ref().filter(|liar| liar.is_step_due()).map(|_| std::time::Instant::now()),
        }
    }
}
