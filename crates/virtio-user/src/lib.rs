//! The vhost-user front-end: a virtio network card for programs and containers, which another process plays.
//!
//! The driver is that of PCI cards; what is different is the transport. Its rings and packets lie in memory files, which
//! the back-end is handed over a unix socket. No privilege is needed. A back-end may die, and another take its place.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod card;
mod control;
mod door;
mod session;
mod transport;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_bus::Bus;
use ringpass_memory::{Lending, Mempool};
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, Queues, Rule, State, Stats, VirtioUserConfig};
use ringpass_virtio_net::VirtioNet;

use card::Card;
use transport::Backend;

/// A virtio network card that a vhost-user back-end plays, as a port.
pub struct VirtioUser {
    driver: VirtioNet,
    card: Arc<Card>,
}

impl VirtioUser {
    /// Meets a back-end and has it play a card. As a client, the back-end must listen already; as a server, it has some
    /// seconds to come.
    ///
    /// Received packets are the pool's; so must be those that are sent, which the back-end is shown no other memory of.
    pub fn open(name: &str, config: &VirtioUserConfig, port: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let port = PortConfig { queues: config.queues.unwrap_or(port.queues), ..*port };
        let card = Card::open(name, config, &port)?;
        let bus: Arc<dyn Bus> = card.clone();
        let driver = VirtioNet::open_over(Box::new(Backend::new(&card)), bus, name, &port, pool);
        // What went wrong in the session is the cause of what the driver says.
        match card.failure() {
            Some(why) => Err(Error::Other(format!("{name}: {why}"))),
            None => Ok(Self { driver: driver?, card }),
        }
    }
}

impl Port for VirtioUser {
    fn name(&self) -> &str {
        self.driver.name()
    }

    fn mac(&self) -> MacAddress {
        self.driver.mac()
    }

    /// Down while there is no back-end.
    fn link(&mut self) -> Link {
        self.driver.link()
    }

    fn stats(&mut self) -> Stats {
        self.driver.stats()
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        let mut all = self.driver.extended();
        all.push(("reconnects", self.card.reconnects.load(Relaxed)));
        all
    }

    fn state(&mut self) -> State {
        match self.card.failure() {
            Some(why) => State::Gone(format!("{}: {why}", self.driver.name())),
            None => self.driver.state(),
        }
    }

    /// From now on a back-end that dies may come back. Not before, as that takes a thread, which is to be started without
    /// privileges.
    fn take_queues(&mut self) -> Vec<Queues> {
        control::start(&self.card);
        self.driver.take_queues()
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        self.driver.set_promiscuous(on)
    }

    fn steer(&mut self, rule: &Rule, queue: usize) -> Result<(), Error> {
        self.driver.steer(rule, queue)
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.driver.finish()
    }

    fn lending(&self, pair: usize) -> Option<Arc<Lending>> {
        self.driver.lending(pair)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.driver.notes();
        notes.push(self.card.note());
        notes
    }
}
