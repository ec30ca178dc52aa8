//! A netmap port that this program has open, as a [`Port`].

use std::path::Path;
use std::sync::Arc;

use ringpass_memory::Mempool;
use ringpass_port::{Error, Link, Port, PortConfig, PortStatus, QueuePair, State, Stats};

use crate::client::{self, shared_error};
use crate::queues::{RECEIVING, SENDING, queues};
use crate::request::{Mode, PortName, Register, register};

/// A port of a VALE switch or an end of a pipe, whose frames are copied between slots and packets.
struct NetmapPort {
    name: String,
    /// One registration for each queue, whose rings the queues have.
    registered: Vec<client::Port>,
    queues: Vec<QueuePair>,
    status: Arc<PortStatus>,
    notes: Vec<String>,
    /// Programs that had the port before, in words.
    others: String,
}

/// Opens a port of a VALE switch, an end of a pipe or a native port by name at the socket of the serving process.
/// Frames are copied between slots and packets. A single queue uses all rings that the name covers. Of several
/// queues, each uses one Tx ring and one Rx ring, and the port must have that many.
pub fn open(name: &str, socket: &Path, config: &PortConfig, pool: &Mempool) -> Result<Box<dyn Port>, Error> {
    Ok(Box::new(NetmapPort::open(name, socket, config, pool)?))
}

impl NetmapPort {
    fn open(name: &str, socket: &Path, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let mut parsed: PortName =
            name.parse().map_err(|error: crate::request::InvalidRequest| Error::Address(error.to_string()).of(name))?;
        let directions = register::RX_ONLY | register::TX_ONLY;
        if parsed.flags & directions == directions {
            return Err(Error::Config(format!("{name}: R and T together leave no ring; write one of them")));
        }
        if config.queues > 1 && parsed.mode != Mode::AllNic {
            return Err(Error::Config(format!("{name}: one ring is for one queue, not {}", config.queues)));
        }
        let is_monitor = parsed.flags & (register::MONITOR_RX | register::MONITOR_TX) != 0;
        let status = Arc::new(PortStatus::new(config.queues));
        let queues_of = Default::default();
        let others = Default::default();
        let mut port = Self {
            name: name.into(),
            registered: Default::default(),
            queues: queues_of,
            status,
            notes: Default::default(),
            others,
        };
        let mut tx_rings = Vec::new();
        let mut rx_rings = Vec::new();
        let mut places = None;
        for queue in 0..config.queues {
            let mut more = Register::default();
            if config.queues > 1 {
                (parsed.mode, parsed.ring, more.rings) = (Mode::OneNic, queue as u16, [config.queues as u16; 2]);
            }
            let opened = client::Port::open(&parsed, socket, more);
            let mut opened = opened.map_err(|error| Error::from(error).of(name))?;
            port.others = opened.others().to_owned();
            if queue == 0 {
                let Register { memory_id: memory, slots: [sending, receiving], .. } = *opened.granted();
                let only = if is_monitor || parsed.flags & register::RX_ONLY != 0 {
                    "; it only receives, and drops frames to be sent"
                } else if parsed.flags & register::TX_ONLY != 0 {
                    "; it only sends"
                } else {
                    ""
                };
                port.notes.push(format!(
                    "netmap port in memory {memory}, {sending} slots to send, {receiving} to receive; frames are copied{only}"
                ));
            }
            let [tx, rx] = opened.take_rings();
            for ring in rx {
                let call_event = opened.new_waiter().map_err(|error| Error::os(name, error))?;
                rx_rings.push((ring, Some(call_event)));
            }
            tx_rings.extend(tx);
            places = Some(opened.buffers().clone());
            port.registered.push(opened);
        }
        let places = places.ok_or_else(|| Error::Config(format!("{name}: a port without queues")))?;
        let opened = queues(tx_rings, rx_rings, &places, config, pool, &port.status);
        port.queues = opened.map_err(|error| Error::Busy(shared_error(&error.to_string(), &port.others)).of(name))?;
        Ok(port)
    }
}

impl Port for NetmapPort {
    fn name(&self) -> &str {
        &self.name
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
        if self.registered.iter().any(client::Port::is_lost) {
            self.status.set_gone(|| "the process that serves netmap ports is gone".into());
        }
        match self.status.state() {
            State::Gone(why) if why.starts_with(SENDING) || why.starts_with(RECEIVING) => {
                State::Gone(shared_error(&why, &self.others))
            }
            state => state,
        }
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
