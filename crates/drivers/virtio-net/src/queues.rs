//! The queues of a port and their memory (VIRTIO 1.3, 5.1.2).

use std::sync::Arc;

use ringpass_memory::{Addressing, DmaRegion, Mempool, RegionConfig};
use ringpass_port::{Error, PortConfig, QueuePair, RxQueue, SoftwareOffload, TxQueue};
use ringpass_virtio::driver::{Config, Packed, Split, Virtqueue};
use ringpass_virtio::features::{CTRL_VQ, EVENT_IDX, IN_ORDER, INDIRECT_DESC, MQ, RING_PACKED, RING_RESET};

use crate::control::{Control, ControlQueue};
use crate::device::{Device, status};
use crate::negotiate::Negotiated;
use crate::ring::{Counters, Memory, Ring};
use crate::rx::Rx;
use crate::shared::SharedQueue;
use crate::tx::Tx;

/// Smallest alignment of a queue in bytes. A queue starts at a multiple of its size, rounded up to a power of
/// two, so that none crosses a huge page and legacy devices can find it by its page number.
const PAGE: usize = 4096;
/// Descriptors of the control queue.
const CONTROL_QUEUE_SIZE: u16 = 64;

/// The queues of a port that has been started.
#[derive(Default)]
pub(crate) struct StartedQueues {
    pub(crate) pairs: Vec<QueuePair>,
    pub(crate) control: Option<Box<dyn Control>>,
    pub(crate) rx: Vec<Arc<Counters>>,
    pub(crate) tx: Vec<Arc<Counters>>,
    pub(crate) notes: Vec<String>,
}

/// Parameters for creating and starting a device's queues.
pub(crate) struct QueueBuilder<'a> {
    pub(crate) device: &'a Arc<Device>,
    pub(crate) negotiated: &'a Negotiated,
    pub(crate) config: &'a PortConfig,
    pub(crate) pool: &'a Mempool,
    /// Queue pairs that the device has.
    pub(crate) pairs: u16,
}

/// A queue to be created.
struct Queue {
    number: u16,
    config: Config,
    offset: usize,
}

impl QueueBuilder<'_> {
    /// Creates the queues, registers them with the device and sets DRIVER_OK.
    pub(crate) fn start(&self) -> Result<StartedQueues, Error> {
        if self.negotiated.has(RING_PACKED) { self.start_as::<Packed>() } else { self.start_as::<Split>() }
    }

    fn start_as<Q: Virtqueue + 'static>(&self) -> Result<StartedQueues, Error> {
        let Self { device, negotiated, config, pool, .. } = *self;
        let mut end = 0;
        let mut rx = Vec::new();
        let mut tx = Vec::new();
        for pair in 0..config.queues as u16 {
            rx.push(self.queue::<Q>(2 * pair, config.rx_ring, negotiated.rx_tables(), &mut end)?);
            tx.push(self.queue::<Q>(2 * pair + 1, config.tx_ring, negotiated.tx_tables(), &mut end)?);
        }
        let control = negotiated.has(CTRL_VQ).then(|| self.control::<Q>(&mut end)).transpose()?;
        let region = self.map(end)?;
        let start = |queue: &Queue, vector| {
            let memory = Memory { region: &region, offset: queue.offset };
            Ring::<Q>::start(device, queue.number, negotiated.features, &memory, &queue.config, vector)
        };
        let events = device.bus.interrupts(config.queues)?;
        let mut started =
            StartedQueues { notes: self.notes(&rx[0], &tx[0], events.len(), &region), ..StartedQueues::default() };
        let mut events = events.into_iter();
        let mut receivers = Vec::new();
        for (rx, vector) in rx.iter().zip(0..) {
            let event = events.next().map(Arc::new);
            let ring = start(rx, event.as_ref().map(|_| vector))?;
            started.rx.push(ring.counters.clone());
            receivers.push(Rx::new(ring, negotiated, pool, config.rx_ring, event));
        }
        let mut senders = Vec::new();
        for tx in &tx {
            let ring = start(tx, None)?;
            started.tx.push(ring.counters.clone());
            senders.push(Tx::new(ring, negotiated, pool));
        }
        if let Some(control) = control {
            let ring = start(&control, None)?;
            started.control = Some(Box::new(ControlQueue { ring, pool: pool.clone() }));
        }
        if negotiated.has(RING_RESET) {
            device.reset_queues();
        }
        let pairs = receivers.into_iter().zip(senders);
        let up = device.transport().status() | status::DRIVER_OK;
        if !device.transport().outlives_device() {
            device.transport().set_status(up);
            for (mut rx, tx) in pairs {
                rx.begin();
                started.pairs.push(self.pair(rx, tx));
            }
            return Ok(started);
        }
        let mut shared = Vec::new();
        for ((rx, tx), number) in pairs.zip((0..).step_by(2)) {
            let (rx, tx) = (SharedQueue::receiving(rx), SharedQueue::sending(tx));
            device.transport().adopt(number, rx.handle());
            device.transport().adopt(number + 1, tx.handle());
            shared.push((rx, tx));
        }
        device.transport().set_status(up);
        for (mut rx, tx) in shared {
            rx.begin();
            started.pairs.push(self.pair(rx, tx));
        }
        Ok(started)
    }

    /// Returns a queue pair for the port. Offloads that the device does not support are done in software.
    fn pair(&self, rx: impl RxQueue + 'static, tx: impl TxQueue + 'static) -> QueuePair {
        let tx: Box<dyn TxQueue> = match self.config.offloads.any() {
            true => Box::new(SoftwareOffload::new(tx, self.negotiated.hardware(), self.pool)),
            false => Box::new(tx),
        };
        QueuePair { rx: Box::new(rx), tx }
    }

    /// Lays out the control queue, whose number comes after all queue pairs that the device has, used or not
    /// (5.1.2).
    fn control<Q: Virtqueue>(&self, end: &mut usize) -> Result<Queue, Error> {
        let pairs = if self.negotiated.has(MQ) { self.pairs } else { 1 };
        self.queue::<Q>(2 * pairs, CONTROL_QUEUE_SIZE.into(), 2, end)
    }

    /// Lays out a queue of `wanted` descriptors, or of as many as the device supports, behind `end`, which
    /// moves past it.
    fn queue<Q: Virtqueue>(&self, number: u16, wanted: usize, tables: usize, end: &mut usize) -> Result<Queue, Error> {
        let negotiated = self.negotiated;
        let mut transport = self.device.transport();
        let largest = transport.queue_size(number);
        let size = match largest {
            0 => return Err(Error::Unsupported(format!("the card has no queue {number}; ask for fewer queues"))),
            largest if transport.is_legacy() => largest,
            // Packed rings may have any size, but a power of two is just as good.
            largest => 1 << largest.min(wanted as u16).ilog2(),
        };
        let config = Config {
            size,
            event_idx: negotiated.has(EVENT_IDX),
            in_order: negotiated.has(IN_ORDER),
            indirect: if negotiated.has(INDIRECT_DESC) { tables as u16 } else { 0 },
            header: if negotiated.separate_header { negotiated.header as u16 } else { 0 },
        };
        let bytes = Q::bytes(&config).next_power_of_two().max(PAGE);
        let offset = end.next_multiple_of(bytes);
        *end = offset + bytes;
        Ok(Queue { number, config, offset })
    }

    /// Allocates the queues' memory, and maps it and the pool for the device.
    fn map(&self, bytes: usize) -> Result<Arc<DmaRegion>, Error> {
        let (bus, pool) = (&self.device.bus, self.pool);
        let memory = RegionConfig { numa_node: bus.numa_node(), ..*pool.region().config() };
        if bus.addressing() == Addressing::Physical && memory.addressing != Addressing::Physical {
            return Err(ringpass_memory::Error::PhysicalOnOrdinaryPages.into());
        }
        let region = DmaRegion::new(bytes, &memory)?;
        bus.map(pool.region())?;
        bus.map(&region)?;
        bus.set_bus_master(true)?;
        Ok(region)
    }

    fn notes(&self, rx: &Queue, tx: &Queue, events: usize, region: &DmaRegion) -> Vec<String> {
        let waiting = if events > 0 { "interrupts" } else { "no interrupts: idle queues are polled every 50 µs" };
        let bus = self.device.bus.description();
        let interface = self.device.transport().description();
        let PortConfig { queues, rx_ring, tx_ring, .. } = *self.config;
        let (rx, tx) = (usize::from(rx.config.size), usize::from(tx.config.size));
        let pages = region.config().pages;
        let wanted = match (rx, tx) == (rx_ring, tx_ring) {
            true => String::new(),
            false => format!(" (the card has no others; {rx_ring} and {tx_ring} were asked for)"),
        };
        let mut notes = vec![
            format!("virtio network card, {interface}, {bus}, {waiting}"),
            format!("{queues} queues, rings of {rx} and {tx}{wanted} on {pages} pages"),
        ];
        notes.extend(self.negotiated.notes(self.config));
        notes
    }
}
