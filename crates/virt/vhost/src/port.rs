//! The vhost port: opening it, and its control side.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use ringpass_ipc::Listener;
use ringpass_memory::Mempool;
use ringpass_port::lending::Lending;
use ringpass_port::{
    Direction, Error, Holds, Link, Port, PortConfig, QueuePair, RingStatus, State, Stats, VhostConfig,
};
use ringpass_vhost_user::{Device, Endpoint, Server};
use ringpass_virtio::features::offer;

use crate::backend::Backend;
use crate::copy_mode::CopyModes;
use crate::negotiated::{DEFAULT_FEATURES, offered};
use crate::rx::{Rx, longest_frame};
use crate::shared::{Shared, SharedServer};
use crate::tx::Tx;
use crate::vring::Ring;

/// A port whose other end is a guest's virtio network device.
///
/// The port works without a guest. When a guest leaves, the link goes down until the next guest connects.
pub struct Vhost {
    name: String,
    shared: Arc<Shared>,
    /// Vhost-user server, which starts to accept guests when the queues are taken.
    server: Option<Server>,
    control: SharedServer,
    failed: Option<String>,
    queues: Vec<QueuePair>,
    /// What was told of each virtqueue last.
    rings: Vec<Option<RingStatus>>,
}

/// Largest number of pool buffers that one frame may take.
const MAX_FRAME_BUFFERS: usize = 64;

impl Vhost {
    /// Opens a port for the guest at a vhost-user socket. A listening socket is created at once; guests are
    /// accepted or connected to only when the queues have been taken.
    pub fn open(config: &VhostConfig, port: &PortConfig, pool: &Mempool, copies: CopyModes) -> Result<Self, Error> {
        let VhostConfig { path, role, access, .. } = config;
        let endpoint = Endpoint { path: path.clone(), role: *role, access: access.clone() };
        Self::served(config, port, pool, copies, |backend| Server::open(endpoint, backend))
    }

    /// Opens a port for the guest at a vhost-user socket that listens already. In a sandbox, [`ringpass_ipc::prepare_notifiers`] was called
    /// before that was entered.
    pub fn of_listener(
        config: &VhostConfig,
        port: &PortConfig,
        pool: &Mempool,
        copies: CopyModes,
        listener: Listener,
    ) -> Result<Self, Error> {
        Self::served(config, port, pool, copies, |backend| Server::of_listener(listener, backend))
    }

    fn served(
        config: &VhostConfig,
        port: &PortConfig,
        pool: &Mempool,
        copies: CopyModes,
        server: impl FnOnce(Box<dyn Device>) -> Result<Server, ringpass_ipc::Error>,
    ) -> Result<Self, Error> {
        let VhostConfig { path, queues, features, .. } = config;
        let name = format!("vhost:{}", path.display());
        let features = offer(DEFAULT_FEATURES, features.as_deref().unwrap_or_default())
            .map_err(|why| Error::Config(why).of(&name))?;
        let port = PortConfig { queues: queues.unwrap_or(port.queues), ..*port };
        let (mut vhost, backend) = Self::new(&name, features, &port, pool, copies)?;
        vhost.server = Some(server(Box::new(backend)).map_err(|error| Error::from(error).of(&name))?);
        Ok(vhost)
    }

    /// Creates a port without a vhost-user server, and the device that the caller's sessions drive. Of
    /// `features`, those are offered that the offloads in `config` allow.
    pub fn new(
        name: &str,
        features: u64,
        config: &PortConfig,
        pool: &Mempool,
        copies: CopyModes,
    ) -> Result<(Self, Backend), Error> {
        let shared = Shared::new(config.queues, config.mtu, config.offloads)?;
        let (longest, size) = (longest_frame(&shared), pool.buffer_size());
        if longest > MAX_FRAME_BUFFERS * size {
            let least = longest.div_ceil(MAX_FRAME_BUFFERS);
            let why = format!("{name}: buffers of {size} bytes are too short for its frames; make them {least}");
            return Err(Error::Config(why));
        }
        let control = SharedServer::default();
        let queues = (0..config.queues).map(|queue| QueuePair {
            rx: Box::new(Rx::new(queue, &shared, pool, copies.from_guest, &control)),
            tx: Box::new(Tx::new(queue, &shared, pool, copies.to_guest, &control)),
        });
        let (queues, backend) = (queues.collect(), Backend::new(&shared, offered(features, config.offloads)));
        let rings = vec![None; shared.vrings.len()];
        Ok((Self { name: name.into(), shared, server: None, control, failed: None, queues, rings }, backend))
    }
}

impl Port for Vhost {
    fn name(&self) -> &str {
        &self.name
    }

    fn link(&mut self) -> Link {
        Link { up: self.shared.is_up(), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.shared.counters.stats()
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.shared.counters.queue_stats()
    }

    /// Returns the guest's split rings, as the workers have seen them last: the guest may let whoever reads its memory wait. Of a ring that is in use right now,
    /// what was told before is told again.
    fn rings(&mut self) -> Vec<RingStatus> {
        for (number, vring) in self.shared.vrings.iter().enumerate() {
            let Some(state) = vring.try_lock() else { continue };
            // The guest receives on even queues, and sends on odd ones.
            let (direction, holds) = match number % 2 {
                0 => (Direction::Tx, Holds::Buffers),
                _ => (Direction::Rx, Holds::Frames),
            };
            self.rings[number] = state.running.as_ref().and_then(|running| {
                let Ring::Split(split) = &running.ring else { return None };
                let (head, posted) = split.position();
                let (queue, descriptors) = (number / 2, running.size());
                Some(RingStatus { queue, direction, descriptors, head: head.into(), posted: posted.into(), holds })
            });
        }
        self.rings.iter().flatten().copied().collect()
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        let Shared { sessions, faults, counters, lending_enabled, lendings, .. } = &*self.shared;
        let mut counters = vec![
            ("sessions", sessions.load(Relaxed)),
            ("guest_faults", faults.count()),
            ("mapped_packets", counters.mapped.load(Relaxed)),
        ];
        // Once a NIC receives into the guest's buffers: how many buffers of the host it had to use instead.
        if lending_enabled.load(Relaxed) {
            counters.push(("mapped_host_buffers", lendings.iter().map(|lending| lending.host_buffers()).sum()));
        }
        counters
    }

    fn state(&mut self) -> State {
        self.failed.as_ref().map_or(State::Running, |why| State::Gone(why.clone()))
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        // Threads start only now, because the process drops its privileges before and a thread could keep them.
        match self.server.take().map(Server::start) {
            Some(Ok(control)) => drop(self.control.set(control)),
            Some(Err(error)) => self.failed = Some(error.to_string()),
            None => {}
        }
        std::mem::take(&mut self.queues)
    }

    fn lending(&mut self, pair: usize) -> Option<Arc<Lending>> {
        self.shared.lending_enabled.store(true, Relaxed);
        self.shared.lendings.get(pair).cloned()
    }

    fn notes(&self) -> Vec<String> {
        let lendings = &self.shared.lendings;
        let mapped = lendings.iter().filter(|lending| lending.has_borrower()).count();
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
