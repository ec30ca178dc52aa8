//! A software card as a port: the card, its driver, and the port at the far end of its wire.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ringpass_bus::{Bus, DeviceId};
use ringpass_memory::{Lending, Mempool};
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_models::virtio::{Interface, VirtioCard, VirtioConfig};
use ringpass_models::{Model as Stepped, Runner};
use ringpass_port::{Error, Link, MacAddress, ModelConfig, Port, PortConfig, Queues, Rule, State, Stats};
use ringpass_virtio::features::{MQ, MTU, offer};

/// `model:WIRE`. Dropped in the order of its fields.
pub struct Model {
    driver: Box<dyn Port>,
    card: Kind,
    /// The thread that plays the card.
    runner: Option<Arc<Runner>>,
    poll: bool,
    wire: Box<dyn Port>,
}

impl Model {
    /// Brings up the driver on a new card with `wire` at the far end. With `poll`, the card's thread never sleeps.
    pub fn open(
        name: &str,
        model: &ModelConfig,
        wire: Box<dyn Port>,
        (config, pool): (&PortConfig, &Mempool),
        poll: bool,
    ) -> Result<Self, Error> {
        static COUNTER: AtomicU8 = AtomicU8::new(1);
        let mac = model.mac.unwrap_or_else(|| MacAddress([2, 0, 0, 0, 0, COUNTER.fetch_add(1, Ordering::Relaxed)]));
        let wrong = |why| Error::Address(format!("{name}: {why}"));
        let card = Kind::new(model, mac, config).map_err(wrong)?;
        let driver = crate::drivers::open(card.bus(), name, config, pool)?;
        Ok(Self { driver, card, runner: None, poll, wire })
    }

    /// Whether its driver takes packets whose buffers have no headroom.
    pub fn takes_bare_buffers(model: &ModelConfig) -> bool {
        !VIRTIO.contains(&model.device)
            && crate::drivers::takes_bare_buffers(DeviceId { vendor: INTEL, device: model.device })
    }
}

const INTEL: u16 = 0x8086;
/// Virtio cards: modern, transitional.
const VIRTIO: [u16; 2] = [MODERN, TRANSITIONAL];
const MODERN: u16 = 0x1041;
const TRANSITIONAL: u16 = 0x1000;

/// The card.
enum Kind {
    Ixgbe(Arc<Card>),
    Virtio(Arc<VirtioCard>),
}

impl Kind {
    fn new(model: &ModelConfig, mac: MacAddress, config: &PortConfig) -> Result<Self, String> {
        let &ModelConfig { device, ref features, ref lie, .. } = model;
        let id = DeviceId { vendor: INTEL, device };
        let interface = match device {
            MODERN => Interface::Modern,
            TRANSITIONAL => Interface::Transitional,
            _ if ringpass_ixgbe::supports(id).is_some() => {
                if let Some(features) = features {
                    return Err(format!("features={features} is for virtio cards; write device=1041"));
                }
                let lies = lie.as_deref().map_or(Ok(Default::default()), str::parse)?;
                return Ok(Self::Ixgbe(Card::new(&CardConfig { device, mac, lies, ..Default::default() })));
            }
            _ => {
                return Err(format!(
                    "no model of a {device:04x}; write device=10fb (82599), 1528 (X540), 1041 (virtio)"
                ));
            }
        };
        let lies = lie.as_deref().map_or(Ok(Default::default()), str::parse)?;
        let several = if config.queues > 1 { MQ } else { 0 };
        Ok(Self::Virtio(VirtioCard::new(&VirtioConfig {
            mac,
            interface,
            features: offer(VirtioConfig::USUAL, features.as_deref().unwrap_or_default())? | several | MTU,
            queue_pairs: config.queues as u16,
            queue_size: config.rx_ring.max(config.tx_ring) as u16,
            mtu: config.mtu as u16,
            lies,
            ..Default::default()
        })))
    }

    fn bus(&self) -> Arc<dyn Bus> {
        match self {
            Self::Ixgbe(card) => card.clone(),
            Self::Virtio(card) => card.clone(),
        }
    }

    fn stepped(&self) -> Arc<dyn Stepped> {
        match self {
            Self::Ixgbe(card) => card.clone(),
            Self::Virtio(card) => card.clone(),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Ixgbe(card) => {
                let counters = card.counters();
                vec![
                    ("model_rx_packets", counters.rx_packets),
                    ("model_rx_bytes", counters.rx_bytes),
                    ("model_tx_packets", counters.tx_packets),
                    ("model_tx_bytes", counters.tx_bytes),
                    ("model_rx_filtered", counters.rx_filtered),
                    ("model_rx_no_descriptor", counters.rx_no_descriptor),
                    ("model_rx_buffer_full", counters.rx_buffer_full),
                    ("model_tx_malformed", counters.tx_malformed),
                    ("model_dma_faults", counters.dma_faults),
                ]
            }
            Self::Virtio(card) => virtio_counters(card),
        }
    }
}

/// What a virtio card has counted.
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

#[deny(clippy::missing_trait_methods)]
impl Port for Model {
    fn name(&self) -> &str {
        self.driver.name()
    }

    fn mac(&self) -> MacAddress {
        self.driver.mac()
    }

    fn link(&mut self) -> Link {
        self.driver.link()
    }

    fn stats(&mut self) -> Stats {
        self.driver.stats()
    }

    /// The model's own counters, beside those of the driver.
    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        self.driver.extended().into_iter().chain(self.card.counters()).collect()
    }

    fn state(&mut self) -> State {
        match self.driver.state() {
            State::Running => self.wire.state(),
            other => other,
        }
    }

    /// The wire comes to life with the first look at the queues: what it brings before would only be dropped.
    fn take_queues(&mut self) -> Vec<Queues> {
        let runner = self.runner.get_or_insert_with(|| runner(self.poll));
        self.wire.take_queues().into_iter().for_each(|wire| runner.add(self.card.stepped(), wire));
        self.driver.take_queues()
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        self.driver.set_promiscuous(on)
    }

    fn steer(&mut self, rule: &Rule, queue: usize) -> Result<(), Error> {
        self.driver.steer(rule, queue)
    }

    fn finish(&mut self) -> Result<(), Error> {
        // The thread that plays the card has the wire's queues. It may play others', too; then those end later.
        self.runner = None;
        self.driver.finish().and(self.wire.finish())
    }

    fn lending(&self, pair: usize) -> Option<Arc<Lending>> {
        self.driver.lending(pair)
    }

    fn notes(&self) -> Vec<String> {
        self.driver.notes().into_iter().chain(self.wire.notes()).collect()
    }
}

/// The thread that plays the cards: one for all of the process, which a frame that goes from one card to the next wakes
/// once.
fn runner(poll: bool) -> Arc<Runner> {
    static RUNNER: Mutex<Weak<Runner>> = Mutex::new(Weak::new());
    let mut shared = RUNNER.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let runner = Arc::new(Runner::spawn::<Card>(Vec::new(), None, poll));
        *shared = Arc::downgrade(&runner);
        runner
    })
}
