//! A port on a card: bring-up and control, the same for all families.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Mempool, PageSize};
use ringpass_pci::registers::ixgbe::VENDOR;
use ringpass_pci::registers::{RW, RegArray};
use ringpass_pci::{DeviceId, PciDevice};
use ringpass_port::{
    Direction, Error, Link, MacAddress, Port, PortConfig, QueuePair, RingStatus, Rule, Spread, State, Stats,
    TX_HANG_TIMEOUT,
};

use crate::completion::HeadWriteBack;
use crate::device::{Device, QueueContext};
use crate::family::Family;
use crate::interrupt::Interrupt;
use crate::memory::{QueueMemory, ring_memory};
use crate::ring::{Descriptor, Ring};
use crate::rx::Rx;
use crate::tx::Tx;

/// A port on a card of the family `F`.
pub struct IntelPort<F> {
    name: String,
    device: Arc<Device>,
    family: F,
    stats: Stats,
    /// Counters of each queue pair; none if the card has none.
    queue_stats: Vec<Stats>,
    queues: Vec<QueuePair>,
    queue_count: usize,
    notes: Vec<String>,
}

impl<F: Family> IntelPort<F> {
    /// Returns the name of the card if this driver supports the device.
    pub fn supports(id: DeviceId) -> Option<&'static str> {
        F::MODELS.iter().find(|(_, ids)| id.vendor == VENDOR && ids.contains(&id.device)).map(|&(name, _)| name)
    }

    /// Resets the card, initialises it and starts its queues. Supports 1 to 16 queues, rings of 64 to 4096
    /// descriptors (a power of two) and an MTU of 68 bytes to the largest of the family.
    ///
    /// Received packets come from `pool`. Packets to be sent must come from it too: no other packet memory is
    /// mapped for the card.
    pub fn open(bus: Arc<dyn PciDevice>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        check(config, F::MAX_MTU)?;
        let model = Self::supports(bus.id()).unwrap_or("unknown card");
        if config.spread == Spread::Steered && !F::STEERS {
            return Err(Error::Unsupported(format!(
                "{name}: this driver does not steer an {model}'s frames; take --spread hash"
            )));
        }
        let device = Device::new(bus, F::RX_ERRORS, F::stop)?;
        let family = F::init(&device, config)?;
        let mut port = Self {
            name: name.to_owned(),
            device,
            family,
            stats: Default::default(),
            queue_stats: vec![Stats::default(); if F::COUNTS_QUEUES { config.queues } else { 0 }],
            queues: Default::default(),
            queue_count: config.queues,
            notes: Default::default(),
        };
        port.set_promiscuous(config.promiscuous)?;
        port.start_queues(model, config, pool)?;
        Ok(port)
    }

    /// Allocates the rings and starts each queue.
    fn start_queues(&mut self, model: &str, config: &PortConfig, pool: &Mempool) -> Result<(), Error> {
        let PortConfig { queues, rx_ring, tx_ring, .. } = *config;
        let (device, bus) = (&self.device, &self.device.bus);
        let memory = ring_memory(&**bus, config, pool)?;
        let interrupts = Interrupt::enable(device, &F::REGISTERS, queues)?;
        let waiting = Interrupt::note(interrupts.len());
        let mut interrupts = interrupts.into_iter();
        for (queue, memory) in memory.into_iter().enumerate() {
            let q = self.family.hw_queue(queue);
            self.queues.push(start_queue::<F>(q, memory, QueueContext { device, config, pool }, interrupts.next())?);
        }
        F::enable_rx(&device.window);
        let pages = pool.region().config().pages;
        self.notes.push(format!("{model}, {}, {waiting}", bus.description()));
        self.notes.push(format!("{queues} queues, rings of {rx_ring} and {tx_ring} on {pages} pages"));
        self.notes.extend(F::note(&**bus, pages == PageSize::Ordinary));
        Ok(())
    }

    /// Returns whether the registers read as ones, as those of a card that is gone do.
    fn is_gone(&self) -> bool {
        self.device.window.read(F::REGISTERS.status) == u32::MAX
    }

    /// Adds what card and queues have counted since the last call. When the card is gone, the last values stay.
    fn count(&mut self) {
        if !self.is_gone() {
            self.family.count(&self.device.window, &mut self.stats, &mut self.queue_stats);
            self.stats.rx_drops += self.device.rx_faulty.swap(0, Ordering::Relaxed);
            self.stats.tx_drops += self.device.tx_refused.swap(0, Ordering::Relaxed);
        }
    }
}

/// Checks that a card supports the configuration: 1 to 16 queues, rings of a power of two from 64 to 4096
/// descriptors, an MTU of 68 to `largest_mtu` bytes.
fn check(config: &PortConfig, largest_mtu: usize) -> Result<(), Error> {
    let PortConfig { queues, rx_ring, tx_ring, mtu, .. } = *config;
    let ring = |size: usize| size.is_power_of_two() && (64..=4096).contains(&size);
    let ensure = |right, otherwise| if right { Ok(()) } else { Err(Error::Config(otherwise)) };
    let rings = format!("rings of {rx_ring} and {tx_ring} descriptors; take a power of two, 64 to 4096");
    ensure(ring(rx_ring) && ring(tx_ring), rings)?;
    ensure((1..=16).contains(&queues), format!("{queues} queues; the card has 1 to 16"))?;
    ensure((68..=largest_mtu).contains(&mtu), format!("an MTU of {mtu}; take 68 to {largest_mtu}"))
}

/// Starts queue pair `q` of the card (82599: 4.6.7.1, 4.6.8.1; 82576: 4.5.9.2, 4.5.10): base and length, then buffer
/// size and thresholds, then enable.
fn start_queue<F: Family>(
    q: usize,
    memory: QueueMemory,
    context: QueueContext,
    interrupt: Option<Interrupt>,
) -> Result<QueuePair, Error> {
    let QueueContext { device, config, pool } = context;
    let registers = &F::REGISTERS;
    // SAFETY: in the table of each family, `rx` has the registers of Rx queues. `Family::init` leaves queue `q`
    // disabled. `ring_memory` has mapped the array for the card.
    let ring = unsafe { Ring::new(device, memory.rx, &registers.rx, q) };
    let kib = (pool.buffer_size() / 1024) as u32;
    F::set_up_rx(&device.window, q, kib, config);
    interrupt.iter().for_each(|interrupt| interrupt.attach(registers, F::rx_route(q)));
    let rx = Box::new(Rx::start(ring, kib, context, interrupt)?);

    // SAFETY: in the table of each family, `tx` has the registers of Tx queues. `Family::init` leaves queue `q`
    // disabled. `ring_memory` has mapped the array for the card.
    let ring = unsafe { Ring::new(device, memory.tx, &registers.tx, q) };
    let base = registers.head_write_back.map(|row| row.at(q));
    // SAFETY: these are TDWBAL and TDWBAH of queue `q`, the registers for the address. `ring_memory` has mapped the
    // memory; it lies in the same region as the ring, which is kept until `Ring::drop` has stopped the queue.
    let head = memory.head.map(|head| unsafe { HeadWriteBack::start(&device.window, base, head) });
    F::set_up_tx(&device.window, q);
    Ok(QueuePair { rx, tx: Box::new(Tx::start(ring, head, context)?) })
}

impl<F: Family> Port for IntelPort<F> {
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns the first receive address, which a reset loads from the EEPROM.
    fn mac(&self) -> MacAddress {
        let [low, high] = F::REGISTERS.receive_address.map(|row| self.device.window.read(row.at(0)).to_le_bytes());
        let ([a, b, c, d], [e, f, ..]) = (low, high);
        MacAddress([a, b, c, d, e, f])
    }

    fn link(&mut self) -> Link {
        F::link(&self.device.window)
    }

    fn stats(&mut self) -> Stats {
        self.count();
        self.stats
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.count();
        self.queue_stats.clone()
    }

    /// Reads the length, head and tail register of each ring.
    fn rings(&mut self) -> Vec<RingStatus> {
        let window = &self.device.window;
        let read = |row: RegArray<RW>, q: usize| window.read(row.at(q)) as usize;
        let directions = [(Direction::Rx, &F::REGISTERS.rx), (Direction::Tx, &F::REGISTERS.tx)];
        let of = |queue: usize| {
            let q = self.family.hw_queue(queue);
            directions.map(|(direction, registers)| {
                let descriptors = read(registers.len, q) / size_of::<Descriptor>();
                // Meanwhile driver and card go on. In these orders few descriptors are missed, or counted twice, rather than nearly all.
                let (head, tail) = match direction {
                    Direction::Rx => {
                        let tail = read(registers.tail, q);
                        (read(registers.head, q), tail)
                    }
                    Direction::Tx => (read(registers.head, q), read(registers.tail, q)),
                };
                RingStatus::of_card(queue, direction, descriptors, head, tail)
            })
        };
        (0..self.queue_count).flat_map(of).flatten().collect()
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        self.count();
        self.family.extended()
    }

    fn state(&mut self) -> State {
        let (gone, link) = (self.is_gone(), self.link().up);
        if gone {
            State::Gone(format!("{}: the card is gone; its registers read as ones", self.name))
        } else if self.device.hang.is_hung(link) {
            State::Gone(format!(
                "{}: the card has sent nothing for {} s, or does not stop a queue; reset it, or power it off and on",
                self.name,
                TX_HANG_TIMEOUT.as_secs()
            ))
        } else {
            State::Running
        }
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        let (window, (register, modes)) = (&self.device.window, F::REGISTERS.promiscuous);
        if on {
            window.set(register, modes)
        } else {
            window.clear(register, modes)
        }
        Ok(())
    }

    fn steer(&mut self, rule: &Rule, queue: usize) -> Result<(), Error> {
        self.family.steer(&self.device.window, rule, queue)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
