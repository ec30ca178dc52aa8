//! A netmap port passed into this machine, as a [`Port`].

use std::sync::Arc;

use ringpass_memory::Mempool;
use ringpass_netmap::queues::queues;
use ringpass_pci::PciDevice;
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, PortStatus, QueuePair, State, Stats};

use super::device::{Device, Rings};

/// A netmap port that was passed into this machine.
pub struct PtnetPort {
    name: String,
    mac: MacAddress,
    device: Arc<Device>,
    queues: Vec<QueuePair>,
    status: Arc<PortStatus>,
    notes: Vec<String>,
}

impl PtnetPort {
    /// Starts the port's device; `memory` opens the device whose memory has the number that it is given.
    ///
    /// The port can have at most as many queues as it has rings of either direction; the rings have the length that
    /// the host gave them. The MTU must be 68 to 9710 bytes. Frames are copied, so packets of any pool may be sent.
    pub fn open(
        bus: Arc<dyn PciDevice>,
        memory: &dyn Fn(u16) -> Result<Arc<dyn PciDevice>, Error>,
        name: &str,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Self, Error> {
        let named = |error: Error| error.of(name);
        if !(68..=9710).contains(&config.mtu) {
            return Err(named(Error::Config(format!("an MTU of {}; take 68 to 9710", config.mtu))));
        }
        let opened = Rings::open(bus, memory, pool.region().config()).map_err(named)?;
        let Rings { rings: [tx, rx], interrupts, buffers, mac, device } = opened;
        let lengths = [&tx, &rx].map(|rings| rings.first().map_or(0, |ring| ring.ring().slots()));
        let (counts, woken) = ([tx.len(), rx.len()], !interrupts.is_empty());
        // Interrupts of Tx rings are not used, because a sender does not wait.
        let mut waits = interrupts.into_iter().skip(tx.len());
        let rx = rx.into_iter().map(|ring| (ring, waits.next())).collect();
        let status = Arc::new(PortStatus::new(config.queues));
        let queues = queues(tx, rx, &buffers, config, pool, &status).map_err(named)?;
        let mut notes = vec![
            format!("netmap port passed through, {}", device.describe()),
            format!(
                "{} rings of {} slots to send, {} of {} to receive; frames are copied",
                counts[0], lengths[0], counts[1], lengths[1]
            ),
        ];
        if !woken {
            notes.push("no interrupts over this bus: an idle queue is polled every 50 µs; VFIO has interrupts".into());
        }
        Ok(Self { name: name.to_owned(), mac, device, queues, status, notes })
    }
}

impl Port for PtnetPort {
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

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.status.queue_stats()
    }

    fn state(&mut self) -> State {
        if !self.device.is_there() {
            self.status.set_gone(|| "the device is gone; its registers read as ones".into());
        }
        self.status.state()
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
