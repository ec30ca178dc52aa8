//! A software card as a port: the card, its driver, and the port at the far end of its wire.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ringpass_bus::{Bus, DeviceId};
use ringpass_ixgbe::Ixgbe;
use ringpass_memory::Mempool;
use ringpass_models::Runner;
use ringpass_models::ixgbe::{Card, CardConfig, Lies};
use ringpass_port::{Error, Link, MacAddress, ModelConfig, Port, PortConfig, Queues, Rule, State, Stats};

/// `model:WIRE`. Dropped in the order of its fields.
pub struct Model {
    driver: Ixgbe,
    card: Arc<Card>,
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
        let lies = model.lie.as_deref().map_or(Ok(Lies::default()), str::parse);
        let lies = lies.map_err(|why| Error::Address(format!("{name}: {why}")))?;
        let card = Card::new(&CardConfig { device: model.device, mac, lies, ..Default::default() });
        let DeviceId { vendor, device } = card.id();
        if ringpass_ixgbe::supports(card.id()).is_none() {
            return Err(Error::Address(format!("{name}: no model of a {vendor:04x}:{device:04x}; write device=10fb")));
        }
        let driver = Ixgbe::open(card.clone(), name, config, pool)?;
        Ok(Self { driver, card, runner: None, poll, wire })
    }
}

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
        let counters = self.card.counters();
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

    fn state(&mut self) -> State {
        match self.driver.state() {
            State::Running => self.wire.state(),
            other => other,
        }
    }

    /// The wire comes to life with the first look at the queues: what it brings before would only be dropped.
    fn take_queues(&mut self) -> Vec<Queues> {
        let runner = self.runner.get_or_insert_with(|| runner(self.poll));
        self.wire.take_queues().into_iter().for_each(|wire| runner.add(self.card.clone(), wire));
        self.driver.take_queues()
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        self.driver.set_promiscuous(on)
    }

    fn steer(&mut self, rule: &Rule, queue: usize) -> Result<(), Error> {
        self.driver.steer(rule, queue)
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
