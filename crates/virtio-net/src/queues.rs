//! Memory of the queues, and the queues in it (VIRTIO 1.3, 5.1.2).

use std::sync::Arc;

use ringpass_memory::{Addressing, DmaRegion, Mempool, RegionConfig};
use ringpass_port::{Error, PortConfig, Queues, RxQueue, Software, TxQueue};
use ringpass_virtio::driver::{Config, Packed, Split, Virtqueue};
use ringpass_virtio::features::{CTRL_VQ, EVENT_IDX, IN_ORDER, INDIRECT_DESC, MQ, RING_PACKED, RING_RESET};

use crate::control::{Control, ControlQueue};
use crate::device::{Device, status};
use crate::negotiate::Agreed;
use crate::ring::{Counters, Memory, Ring};
use crate::rx::Rx;
use crate::shared::Shared;
use crate::tx::Tx;

/// Queues start at multiples of their size, a power of two of at least this: so none straddles a huge page, and legacy
/// devices find them by their page.
const PAGE: usize = 4096;
/// Descriptors of the control queue.
const COMMANDS: u16 = 64;

/// The queues of a port that is up.
#[derive(Default)]
pub(crate) struct Started {
    pub(crate) pairs: Vec<Queues>,
    pub(crate) control: Option<Box<dyn Control>>,
    pub(crate) rx: Vec<Arc<Counters>>,
    pub(crate) tx: Vec<Arc<Counters>>,
    pub(crate) notes: Vec<String>,
}

/// Where the queues of a device come from.
pub(crate) struct Plan<'a> {
    pub(crate) device: &'a Arc<Device>,
    pub(crate) agreed: &'a Agreed,
    pub(crate) config: &'a PortConfig,
    pub(crate) pool: &'a Mempool,
    /// Pairs of queues that the device has.
    pub(crate) pairs: u16,
}

/// A queue to be made.
struct Queue {
    number: u16,
    config: Config,
    offset: usize,
}

impl Plan<'_> {
    /// Makes the queues, tells the device of them, and has it start.
    pub(crate) fn start(&self) -> Result<Started, Error> {
        if self.agreed.has(RING_PACKED) { self.start_as::<Packed>() } else { self.start_as::<Split>() }
    }

    fn start_as<Q: Virtqueue + 'static>(&self) -> Result<Started, Error> {
        let Self { device, agreed, config, pool, .. } = *self;
        let mut end = 0;
        let mut rx = Vec::new();
        let mut tx = Vec::new();
        for pair in 0..config.queues as u16 {
            rx.push(self.queue::<Q>(2 * pair, config.rx_ring, agreed.rx_tables(), &mut end)?);
            tx.push(self.queue::<Q>(2 * pair + 1, config.tx_ring, agreed.tx_tables(), &mut end)?);
        }
        let control = agreed.has(CTRL_VQ).then(|| self.control::<Q>(&mut end)).transpose()?;
        let region = self.map(end)?;
        let start = |queue: &Queue, vector| {
            let memory = Memory { region: &region, offset: queue.offset };
            Ring::<Q>::start(device, queue.number, agreed.features, &memory, &queue.config, vector)
        };
        let events = device.bus.interrupts(config.queues)?;
        let mut started = Started { notes: self.notes(&rx[0], &tx[0], events.len(), &region), ..Started::default() };
        let mut events = events.into_iter();
        let mut receivers = Vec::new();
        for (rx, vector) in rx.iter().zip(0..) {
            let event = events.next().map(Arc::new);
            let ring = start(rx, event.as_ref().map(|_| vector))?;
            started.rx.push(ring.counters.clone());
            receivers.push(Rx::new(ring, agreed, pool, config.rx_ring, event));
        }
        let mut senders = Vec::new();
        for tx in &tx {
            let ring = start(tx, None)?;
            started.tx.push(ring.counters.clone());
            senders.push(Tx::new(ring, agreed, pool));
        }
        if let Some(control) = control {
            let ring = start(&control, None)?;
            started.control = Some(Box::new(ControlQueue { ring, pool: pool.clone() }));
        }
        if agreed.has(RING_RESET) {
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
            let (rx, tx) = (Shared::receiving(rx), Shared::sending(tx));
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

    /// Queues as the port has them: what the device does not do is done before.
    fn pair(&self, rx: impl RxQueue + 'static, tx: impl TxQueue + 'static) -> Queues {
        let tx: Box<dyn TxQueue> = match self.config.offloads.any() {
            true => Box::new(Software::new(tx, self.agreed.hardware(), self.pool)),
            false => Box::new(tx),
        };
        Queues { rx: Box::new(rx), tx }
    }

    /// The control queue comes behind all pairs that there are, or that there could be (5.1.2).
    fn control<Q: Virtqueue>(&self, end: &mut usize) -> Result<Queue, Error> {
        let pairs = if self.agreed.has(MQ) { self.pairs } else { 1 };
        self.queue::<Q>(2 * pairs, COMMANDS.into(), 2, end)
    }

    /// A queue of so many descriptors, if the device has them and a choice, behind `end`, which moves past it.
    fn queue<Q: Virtqueue>(&self, number: u16, wanted: usize, tables: usize, end: &mut usize) -> Result<Queue, Error> {
        let agreed = self.agreed;
        let mut transport = self.device.transport();
        let largest = transport.queue_size(number);
        let size = match largest {
            0 => return Err(Error::Other(format!("the card has no queue {number}; ask for fewer queues"))),
            largest if transport.is_legacy() => largest,
            // Packed rings may have any size; a power of two is as good.
            largest => 1 << largest.min(wanted as u16).ilog2(),
        };
        let config = Config {
            size,
            event_idx: agreed.has(EVENT_IDX),
            in_order: agreed.has(IN_ORDER),
            indirect: if agreed.has(INDIRECT_DESC) { tables as u16 } else { 0 },
            header: if agreed.header_apart { agreed.header as u16 } else { 0 },
        };
        let bytes = Q::bytes(&config).next_power_of_two().max(PAGE);
        let offset = end.next_multiple_of(bytes);
        *end = offset + bytes;
        Ok(Queue { number, config, offset })
    }

    /// Memory for the queues, shown to the device with that of the packets.
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
        let waiting = if events > 0 { "interrupts" } else { "no interrupts: idle queues are looked at in turns" };
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
        notes.extend(self.agreed.notes(self.config));
        notes
    }
}
