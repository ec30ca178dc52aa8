//! The port: opening, its control side.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, PoisonError};

use ringpass_memory::{Lending, Mempool};
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, Queues, State, Stats, VhostConfig};
use ringpass_vhost_user::{Control, Endpoint, Server};
use ringpass_virtio::features::offer;

use crate::agreed::{USUAL, offered};
use crate::backend::Backend;
use crate::rx::{Rx, longest_frame};
use crate::shared::Shared;
use crate::tx::Tx;

/// A port whose other end is a guest's virtio card.
///
/// It works without a guest, and goes on when one leaves: then it has no link until the next one has come.
pub struct Vhost {
    name: String,
    shared: Arc<Shared>,
    /// Serves guests from when the queues are taken.
    server: Option<Server>,
    control: Serving,
    failed: Option<String>,
    queues: Vec<Queues>,
}

/// What serves guests, as long as the port or one of its queues is there.
pub(crate) type Serving = Arc<OnceLock<Control>>;

/// Whether frames are copied. Only measurements leave it out: the other side then gets what its buffers held before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copying {
    /// They are.
    #[default]
    Real,
    /// Only lengths and headers are told.
    LeftOut,
}

impl Copying {
    /// Of lengths that are to be copied.
    pub(crate) fn mask(self) -> usize {
        match self {
            Self::Real => usize::MAX,
            Self::LeftOut => 0,
        }
    }
}

/// Which frames are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Those that the guest sends.
    pub from_guest: Copying,
    /// Those that it receives.
    pub to_guest: Copying,
}

/// Most buffers of the pool that a frame may take.
const MOST_BUFFERS: usize = 64;

impl Vhost {
    /// Opens a port for the guest at a socket. The socket is there, or tried, from when the queues are taken.
    pub fn open(config: &VhostConfig, port: &PortConfig, pool: &Mempool, copies: Copies) -> Result<Self, Error> {
        let VhostConfig { path, role, queues, features } = config;
        let name = format!("vhost:{}", path.display());
        let wrong = |why: String| Error::Other(format!("{name}: {why}"));
        let features = offer(USUAL, features.as_deref().unwrap_or_default()).map_err(wrong)?;
        let port = PortConfig { queues: queues.unwrap_or(port.queues), ..*port };
        let (mut vhost, backend) = Self::new(&name, features, &port, pool, copies)?;
        let endpoint = Endpoint { path: path.clone(), role: *role };
        let server = Server::open(endpoint, Box::new(backend)).map_err(|error| wrong(error.to_string()))?;
        vhost.server = Some(server);
        Ok(vhost)
    }

    /// A port without anybody who runs sessions, and the device that these drive. `features` are offered, as far as the
    /// offloads allow.
    pub fn new(
        name: &str,
        features: u64,
        config: &PortConfig,
        pool: &Mempool,
        copies: Copies,
    ) -> Result<(Self, Backend), Error> {
        let shared = Shared::new(config.queues, config.mtu, config.offloads)?;
        let (longest, size) = (longest_frame(&shared), pool.buffer_size());
        if longest > MOST_BUFFERS * size {
            let least = longest.div_ceil(MOST_BUFFERS);
            let why = format!("{name}: buffers of {size} bytes are too short for its frames; make them {least}");
            return Err(Error::Other(why));
        }
        let control = Serving::default();
        let queues = (0..config.queues).map(|queue| Queues {
            rx: Box::new(Rx::new(queue, &shared, pool, copies.from_guest, &control)),
            tx: Box::new(Tx::new(queue, &shared, pool, copies.to_guest, &control)),
        });
        let (queues, backend) = (queues.collect(), Backend::new(&shared, offered(features, config.offloads)));
        Ok((Self { name: name.into(), shared, server: None, control, failed: None, queues }, backend))
    }
}

impl Port for Vhost {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        MacAddress::default()
    }

    fn link(&mut self) -> Link {
        Link { up: self.shared.is_up(), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.shared.counters.stats()
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        let Shared { sessions, guest_faults, counters, lends, lendings, .. } = &*self.shared;
        let mut counters = vec![
            ("sessions", sessions.load(Relaxed)),
            ("guest_faults", guest_faults.load(Relaxed)),
            ("mapped_packets", counters.mapped.load(Relaxed)),
        ];
        // Since a card receives into the guest's buffers: how many of its own it had to take.
        if lends.load(Relaxed) {
            counters.push(("mapped_host_buffers", lendings.iter().map(|lending| lending.host_buffers()).sum()));
        }
        counters
    }

    fn state(&mut self) -> State {
        self.failed.as_ref().map_or(State::Running, |why| State::Gone(why.clone()))
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        // Threads begin now: before, the process gives up what a thread could keep.
        match self.server.take().map(Server::start) {
            Some(Ok(control)) => drop(self.control.set(control)),
            Some(Err(error)) => self.failed = Some(error.to_string()),
            None => {}
        }
        std::mem::take(&mut self.queues)
    }

    fn lending(&self, pair: usize) -> Option<Arc<Lending>> {
        self.shared.lends.store(true, Relaxed);
        self.shared.lendings.get(pair).cloned()
    }

    fn set_promiscuous(&mut self, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let lendings = &self.shared.lendings;
        let mapped = lendings.iter().filter(|lending| lending.is_borrowed()).count();
        let how = match mapped {
            0 => "frames are copied".into(),
            _ => format!("{mapped} mapped: what is received for it lies in its buffers; other frames are copied"),
        };
        let first = format!("{} pair(s) of queues for a guest, {how}", lendings.len());
        let last = self.shared.last_end.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.iter().map(|why| format!("the last guest: {why}"));
        std::iter::once(first).chain(last).collect()
    }
}
