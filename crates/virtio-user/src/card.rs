//! What transport, bus and control thread share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ringpass_bus::{Bus, DeviceId, Waiter};
use ringpass_memory::{Addressing, DmaRegion};
use ringpass_port::{Error, MacAddress, PortConfig, VirtioUserConfig};
use ringpass_registers::Window;
use ringpass_virtio::features::{self, MAC, MQ, STATUS, VERSION_1, offer};
use rustix::event::{EventfdFlags, eventfd};
use tracing::{info, warn};

use crate::control::Control;
use crate::door::Door;
use crate::session::{BACKENDS, Failure, Plan, Session};
use ringpass_vhost_user::SessionError;

/// A card that a back-end plays, or will play again.
pub(crate) struct Card {
    pub(crate) name: String,
    pub(crate) door: Door,
    /// Features that the driver is shown.
    pub(crate) offered: u64,
    /// If the card has one; otherwise the driver makes one up.
    pub(crate) mac: Option<MacAddress>,
    pub(crate) pairs: u16,
    pub(crate) mtu: u16,
    /// A back-end is there and runs.
    pub(crate) up: AtomicBool,
    /// How often another one has come.
    pub(crate) reconnects: AtomicU64,
    pub(crate) control: Control,
    /// Why there will be no back-end any more.
    failure: OnceLock<String>,
    state: Mutex<State>,
}

/// What a session needs, and the session.
pub(crate) struct State {
    pub(crate) plan: Plan,
    pub(crate) session: Option<Session>,
    /// A session has ended in another way than by its back-end's end: that may still use the rings.
    pub(crate) abandoned: bool,
}

impl Card {
    /// Meets the first back-end.
    pub(crate) fn open(name: &str, config: &VirtioUserConfig, port: &PortConfig) -> Result<Arc<Self>, Error> {
        let other = |error: String| Error::Other(format!("{name}: {error}"));
        let text = config.features.as_deref().unwrap_or_default();
        let wanted = offer(BACKENDS, text).map_err(other)?;
        let named = offer(0, text).map_err(other)? & !(MAC | STATUS | MQ);
        ringpass_peer::prepare_signals().map_err(|error| other(error.to_string()))?;
        let door = Door::open(&config.path, config.role).map_err(|error| other(error.to_string()))?;
        let socket = door.meet().map_err(|error| other(error.to_string()))?;
        let session = Session::begin(socket).map_err(|error| other(error.to_string()))?;
        let pairs = port.queues as u16;
        let ensure = |right, otherwise: String| if right { Ok(()) } else { Err(other(otherwise)) };
        let missing = (named | VERSION_1) & !(session.features & BACKENDS);
        ensure(missing == 0, format!("the back-end does not offer {}", features::describe(missing)))?;
        ensure(
            u64::from(pairs) <= session.pairs,
            format!("{pairs} queues; the back-end has {} pairs: queues={0}, or more of them there", session.pairs),
        )?;
        let several = if pairs > 1 { MQ } else { 0 };
        let plan = Plan { mtu: port.mtu as u16, noted: config.inflight, ..Plan::default() };
        let state = State { plan, session: Some(session), abandoned: false };
        let offered = wanted & state.session.as_ref().map_or(0, |session| session.features);
        let control = Control::new().map_err(|error| other(error.to_string()))?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            door,
            offered: offered & BACKENDS | STATUS | several | if config.mac.is_some() { MAC } else { 0 },
            mac: config.mac,
            pairs,
            mtu: port.mtu as u16,
            up: AtomicBool::new(false),
            reconnects: AtomicU64::new(0),
            control,
            failure: OnceLock::new(),
            state: Mutex::new(state),
        }))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there is no back-end and will be none.
    pub(crate) fn failure(&self) -> Option<&String> {
        self.failure.get()
    }

    pub(crate) fn fail(&self, why: String) {
        self.up.store(false, Ordering::Relaxed);
        let _ = self.failure.set(why);
    }

    /// What becomes of packets when the back-end dies, for people.
    pub(crate) fn note(&self) -> String {
        let known = match self.state().plan.inflight {
            Some(_) => "it notes what is in flight for the next one",
            None => "what it has not given back the next one finds available",
        };
        format!("a back-end that dies may come back: {known}")
    }

    /// Has the first back-end run.
    pub(crate) fn start(&self) {
        let mut state = self.state();
        let State { plan, session, abandoned } = &mut *state;
        let Some(running) = session else { return };
        match running.start(plan) {
            Ok(()) => self.up.store(true, Ordering::Relaxed),
            Err(error) => {
                *abandoned = error.leaves_it_running();
                *session = None;
                self.fail(error.to_string());
            }
        }
    }

    /// The socket of the session, to wait on.
    pub(crate) fn socket(&self) -> Option<OwnedFd> {
        self.state().session.as_ref()?.frontend.socket().try_clone_to_owned().ok()
    }

    /// Looks whether the back-end is still there.
    pub(crate) fn check(&self) {
        let mut state = self.state();
        let Some(Err(why)) = state.session.as_mut().map(|session| session.frontend.check()) else { return };
        self.up.store(false, Ordering::Relaxed);
        state.session = None;
        state.abandoned |= why != SessionError::Closed;
        warn!("{}: {why}; waiting for it to come back", self.name);
    }

    /// Has another back-end take the place of the one that died.
    pub(crate) fn revive(&self, socket: OwnedFd) -> Result<(), Failure> {
        let mut session = Session::begin(socket)?;
        // Kept until the lock is free again: who drops the last of them drops the port, and that takes the lock.
        let rings: Vec<_> = self.state().plan.rings.iter().filter_map(|ring| ring.queue.as_ref()?.upgrade()).collect();
        let mut state = self.state();
        let missing = state.plan.features & BACKENDS & !session.features;
        if missing != 0 {
            let missing = features::describe(missing);
            return Err(Failure::Never(format!("the back-end has come back without {missing}, which the rings need")));
        }
        if u64::from(self.pairs) > session.pairs {
            let pairs = session.pairs;
            return Err(Failure::Never(format!(
                "the back-end has come back with {pairs} pairs of queues, not {}",
                self.pairs
            )));
        }
        // Reset meanwhile.
        if state.plan.rings.is_empty() {
            return Ok(());
        }
        let started = session.start(&mut state.plan);
        state.abandoned |= started.as_ref().is_err_and(Failure::leaves_it_running);
        started?;
        state.session = Some(session);
        drop(state);
        drop(rings);
        self.up.store(true, Ordering::Relaxed);
        self.reconnects.fetch_add(1, Ordering::Relaxed);
        info!("{}: the back-end has come back", self.name);
        Ok(())
    }
}

/// The bus: memory by files, interrupts by eventfds.
impl Bus for Card {
    fn id(&self) -> DeviceId {
        DeviceId { vendor: 0x1af4, device: 0x1041 }
    }

    fn description(&self) -> String {
        let role = if self.door.listens() { "server" } else { "client" };
        format!("vhost-user front-end ({role})")
    }

    fn window(&self) -> Result<Window, Error> {
        Err(Error::Other("a vhost-user back-end has no registers".into()))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Virtual
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.state().plan.regions.push(region.clone());
        Ok(())
    }

    fn set_bus_master(&self, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<Waiter>, Error> {
        let failed = |source| Error::Os { what: "an eventfd".into(), source };
        let events = (0..vectors).map(|_| Waiter::new()).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let copies = events.iter().map(|event| event.event().try_clone_to_owned()).collect::<Result<Vec<_>, _>>();
        self.state().plan.calls = copies.map_err(failed)?;
        Ok(events)
    }
}

/// An eventfd for a back-end.
pub(crate) fn event() -> Result<OwnedFd, Error> {
    let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    made.map_err(|errno| Error::Os { what: "an eventfd".into(), source: errno.into() })
}
