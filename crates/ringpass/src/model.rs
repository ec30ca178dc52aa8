//! A software card as a port: the card, its driver, and the port at the other end of its wire.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ringpass_intel::ixgbe::Ixgbe;
use ringpass_memory::Mempool;
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_models::virtio::{Interface, VirtioCard, VirtioConfig};
use ringpass_models::{Model as SteppedModel, Runner, Stepper};
use ringpass_pci::{DeviceId, PciDevice};
use ringpass_port::{Error, Idle, MacAddress, ModelConfig, Port, PortConfig, PortDecorator, QueuePair, State};
use ringpass_virtio::features::{MQ, MTU, offer};

/// A `model:WIRE` port. The order of the fields matters: they are dropped in this order.
pub struct Model {
    driver: Box<dyn Port>,
    card: ModelCard,
    /// Thread that runs the card.
    runner: Option<Arc<Runner>>,
    /// How that thread waits, until it is started.
    idle: Option<Idle>,
    wire: Box<dyn Port>,
}

impl Model {
    /// Brings up the driver on a new card whose wire ends at the port `wire`. The card's thread waits as
    /// `idle` does.
    pub fn open(
        name: &str,
        model: &ModelConfig,
        wire: Box<dyn Port>,
        (config, pool): (&PortConfig, &Mempool),
        idle: Idle,
    ) -> Result<Self, Error> {
        static COUNTER: AtomicU8 = AtomicU8::new(1);
        let mac = model.mac.unwrap_or_else(|| MacAddress([2, 0, 0, 0, 0, COUNTER.fetch_add(1, Ordering::Relaxed)]));
        let wrong = |why| Error::Address(format!("{name}: {why}"));
        let card = ModelCard::new(model, mac, config).map_err(wrong)?;
        let driver = crate::drivers::open(card.bus(), name, config, pool)?;
        Ok(Self { driver, card, runner: None, idle: Some(idle), wire })
    }

    /// Returns whether the card's driver accepts packets whose buffers have no headroom.
    pub fn works_without_headroom(model: &ModelConfig) -> bool {
        !VIRTIO.contains(&model.device)
            && crate::drivers::works_without_headroom(DeviceId { vendor: INTEL, device: model.device })
    }
}

const INTEL: u16 = 0x8086;
/// Device IDs of virtio cards: modern, transitional.
const VIRTIO: [u16; 2] = [MODERN, TRANSITIONAL];
const MODERN: u16 = 0x1041;
const TRANSITIONAL: u16 = 0x1000;

/// The software card behind a model port.
enum ModelCard {
    Ixgbe(Arc<Card>),
    Virtio(Arc<VirtioCard>),
}

impl ModelCard {
    fn new(model: &ModelConfig, mac: MacAddress, config: &PortConfig) -> Result<Self, String> {
        let &ModelConfig { device, ref features, ref lie, .. } = model;
        let id = DeviceId { vendor: INTEL, device };
        let interface = match device {
            MODERN => Interface::Modern,
            TRANSITIONAL => Interface::Transitional,
            _ if Ixgbe::supports(id).is_some() => {
                if let Some(features) = features {
                    return Err(format!("features={features} is for virtio cards; write device=1041"));
                }
                let lies = lie.as_deref().map_or(Ok(Default::default()), str::parse)?;
                return Ok(Self::Ixgbe(Card::new(&CardConfig { device, mac, lies, ..Default::default() })));
            }
            _ => {
                return Err(format!(
                    "there is no model of the device {device:04x}; write device=10fb (82599), 1528 (X540), 1041 (virtio)"
                ));
            }
        };
        let lies = lie.as_deref().map_or(Ok(Default::default()), str::parse)?;
        let several = if config.queues > 1 { MQ } else { 0 };
        Ok(Self::Virtio(VirtioCard::new(&VirtioConfig {
            mac,
            interface,
            features: offer(VirtioConfig::DEFAULT_FEATURES, features.as_deref().unwrap_or_default())? | several | MTU,
            queue_pairs: config.queues as u16,
            queue_size: config.rx_ring.max(config.tx_ring) as u16,
            mtu: config.mtu as u16,
            lies,
            ..Default::default()
        })))
    }

    fn bus(&self) -> Arc<dyn PciDevice> {
        match self {
            Self::Ixgbe(card) => card.clone(),
            Self::Virtio(card) => card.clone(),
        }
    }

    fn as_model(&self) -> Arc<dyn SteppedModel> {
        match self {
            Self::Ixgbe(card) => card.clone(),
            Self::Virtio(card) => card.clone(),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Ixgbe(card) => ixgbe_counters(card),
            Self::Virtio(card) => virtio_counters(card),
        }
    }
}

/// Returns the counters of an 82599.
pub fn ixgbe_counters(card: &Card) -> Vec<(&'static str, u64)> {
    let counters = card.counters();
    vec![
        ("model_rx_packets", counters.rx_packets),
        ("model_rx_bytes", counters.rx_bytes),
        ("model_tx_packets", counters.tx_packets),
        ("model_tx_bytes", counters.tx_bytes),
        ("model_rx_filtered", counters.rx_filtered),
        ("model_rx_oversize", counters.rx_oversize),
        ("model_rx_no_descriptor", counters.rx_no_descriptor),
        ("model_rx_queue_disabled", counters.rx_queue_disabled),
        ("model_rx_buffer_full", counters.rx_buffer_full),
        ("model_rx_no_link", counters.rx_no_link),
        ("model_tx_malformed", counters.tx_malformed),
        ("model_tx_no_buffer", counters.tx_no_buffer),
        ("model_dma_faults", counters.dma_faults),
    ]
}

/// Returns the counters of a virtio card.
pub fn virtio_counters(card: &VirtioCard) -> Vec<(&'static str, u64)> {
    let counters = card.counters();
    vec![
        ("model_rx_packets", counters.rx_packets),
        ("model_rx_bytes", counters.rx_bytes),
        ("model_tx_packets", counters.tx_packets),
        ("model_tx_bytes", counters.tx_bytes),
        ("model_rx_filtered", counters.rx_filtered),
        ("model_rx_unfit", counters.rx_unfit),
        ("model_tx_malformed", counters.tx_malformed),
        ("model_tx_odd_headers", counters.tx_odd_headers),
        ("model_notifications", counters.notifications),
        ("model_wrong_notifications", counters.wrong_notifications),
        ("model_wrong_accesses", counters.wrong_accesses),
        ("model_faults", counters.faults),
        ("model_dma_faults", counters.dma_faults),
    ]
}

impl PortDecorator for Model {
    fn inner(&self) -> &dyn Port {
        &*self.driver
    }

    fn inner_mut(&mut self) -> &mut dyn Port {
        &mut *self.driver
    }

    /// Returns the driver's counters followed by the model's own.
    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        self.driver.extended().into_iter().chain(self.card.counters()).collect()
    }

    fn state(&mut self) -> State {
        // A stopped card sends nothing, which its driver would take for a hang.
        if self.runner.as_ref().is_some_and(|runner| runner.stepper().is_stopped() == Some(true)) {
            return self.wire.state();
        }
        match self.driver.state() {
            State::Running => self.wire.state(),
            other => other,
        }
    }

    /// Starts the card's thread. It starts no earlier, because frames from the wire would only be dropped until
    /// the queues are in use.
    fn take_queues(&mut self) -> Vec<QueuePair> {
        let runner = self.runner.get_or_insert_with(|| runner(self.idle.take().unwrap_or_default()));
        self.wire.take_queues().into_iter().for_each(|wire| runner.add(self.card.as_model(), wire));
        self.driver.take_queues()
    }

    fn finish(&mut self) -> Result<(), Error> {
        // The card's thread owns the wire's queues. If it also runs other cards, it ends with the last of them.
        self.runner = None;
        self.driver.finish().and(self.wire.finish())
    }

    fn notes(&self) -> Vec<String> {
        self.driver.notes().into_iter().chain(self.wire.notes()).collect()
    }
}

/// The thread that runs the cards, while there are any.
static RUNNER: Mutex<Weak<Runner>> = Mutex::new(Weak::new());

/// Returns what stops the cards of all `model:` ports of this process, and lets them handle one descriptor at a time; `None` while no such port is in
/// use.
pub fn model_stepper() -> Option<Stepper> {
    RUNNER.lock().unwrap_or_else(PoisonError::into_inner).upgrade().map(|runner| runner.stepper())
}

/// Returns the thread that runs the cards. The process has only one, so that a frame that passes from card to
/// card wakes a thread only once.
fn runner(idle: Idle) -> Arc<Runner> {
    let mut shared = RUNNER.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let runner = Arc::new(Runner::spawn::<Card>(Vec::new(), None, idle));
        *shared = Arc::downgrade(&runner);
        runner
    })
}
