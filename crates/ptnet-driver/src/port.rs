//! The port.

use std::sync::Arc;

use ringpass_bus::Bus;
use ringpass_memory::Mempool;
use ringpass_netmap::queues::{self, queues};
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, Queues, State, Stats, Status};

use crate::Rings;
use crate::device::Device;

/// A netmap port that was passed into this machine.
pub struct Ptnet {
    name: String,
    mac: MacAddress,
    device: Arc<Device>,
    queues: Vec<Queues>,
    status: Arc<Status>,
    notes: Vec<String>,
}

impl Ptnet {
    /// Starts the port's device on a bus; `memory` finds the device with the memory of a number. As many queues at most as the
    /// port has rings of either direction; the rings are as long as its host made them. An MTU of 68 to 9710 bytes.
    ///
    /// Frames are copied, so that packets of any pool may be sent.
    pub fn open(
        bus: Arc<dyn Bus>,
        memory: &dyn Fn(u16) -> Result<Arc<dyn Bus>, Error>,
        name: &str,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Self, Error> {
        let named = |error| match error {
            Error::Other(why) => Error::Other(format!("{name}: {why}")),
            error => error,
        };
        if !(68..=9710).contains(&config.mtu) {
            return Err(named(Error::Other(format!("an MTU of {}; take 68 to 9710", config.mtu))));
        }
        let opened = Rings::open(bus, memory, pool.region().config()).map_err(named)?;
        let Rings { rings: [tx, rx], interrupts, buffers, mac, device } = opened;
        let lengths = [&tx, &rx].map(|rings| rings.first().map_or(0, |ring| ring.ring().slots()));
        let (counts, woken) = ([tx.len(), rx.len()], !interrupts.is_empty());
        // Those of rings to send are not used: a sender does not wait.
        let mut waits = interrupts.into_iter().skip(tx.len());
        let rx = rx.into_iter().map(|ring| (ring, waits.next())).collect();
        let status = Arc::new(Status::new(config.queues));
        let queues = queues(queues::Rings { tx, rx }, &buffers, config, pool, &status).map_err(named)?;
        let mut notes = vec![
            format!("netmap port passed through, {}", device.describe()),
            format!(
                "{} rings of {} slots to send, {} of {} to receive; frames are copied",
                counts[0], lengths[0], counts[1], lengths[1]
            ),
        ];
        if !woken {
            notes.push("no interrupts over this bus: an idle queue is looked at in turns; VFIO has interrupts".into());
        }
        Ok(Self { name: name.to_owned(), mac, device, queues, status, notes })
    }
}

impl Port for Ptnet {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn link(&mut self) -> Link {
        Link { up: matches!(self.state(), State::Running), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.status.stats()
    }

    fn state(&mut self) -> State {
        if !self.device.is_there() {
            self.status.set_gone(|| "the device is gone; its registers read as ones".into());
        }
        self.status.state()
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, _: bool) -> Result<(), Error> {
        // Whatever the port's other side sends is received.
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
