//! The device that transport, `PciDevice` implementation and reconnect thread share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ringpass_memory::{Addressing, DmaRegion};
use ringpass_pci::registers::Window;
use ringpass_pci::{DeviceId, EventWaiter, PciDevice};
use ringpass_port::{Error, MacAddress, PortConfig, VirtioUserConfig};
use ringpass_virtio::features::{self, MAC, MQ, STATUS, VERSION_1, offer};
use tracing::{info, warn};

use crate::session::{BACKEND_FEATURES, BackendSetup, Failure, Session};
use crate::source::ConnectionSource;
use crate::stoppable_thread::StoppableThread;
use ringpass_vhost_user::SessionError;

/// A virtio device that a back-end implements, or will implement again.
pub(crate) struct UserDevice {
    pub(crate) name: String,
    pub(crate) source: ConnectionSource,
    /// Features offered to the driver.
    pub(crate) offered: u64,
    /// MAC address; `None` lets the driver choose one.
    pub(crate) mac: Option<MacAddress>,
    pub(crate) pairs: u16,
    pub(crate) mtu: u16,
    /// Whether a back-end is connected and running.
    pub(crate) up: AtomicBool,
    /// How many times a back-end has been replaced.
    pub(crate) reconnects: AtomicU64,
    pub(crate) reconnect_thread: StoppableThread,
    /// Why there will be no back-end any more.
    failure: OnceLock<String>,
    state: Mutex<State>,
}

/// The current session and all that a new session needs.
pub(crate) struct State {
    pub(crate) backend_setup: BackendSetup,
    pub(crate) session: Option<Session>,
    /// Whether a session has ended other than by its back-end closing the connection: that back-end may still use
    /// the rings.
    pub(crate) abandoned: bool,
}

impl UserDevice {
    /// Creates the device and connects to the first back-end.
    pub(crate) fn open(name: &str, config: &VirtioUserConfig, port: &PortConfig) -> Result<Arc<Self>, Error> {
        let text = config.features.as_deref().unwrap_or_default();
        let wanted = offer(BACKEND_FEATURES, text).map_err(Error::Config)?;
        let named = offer(0, text).map_err(Error::Config)? & !(MAC | STATUS | MQ);
        ringpass_ipc::prepare_notifiers().map_err(|error| Error::os(name, error))?;
        let source = ConnectionSource::open(config)?;
        let socket = source.wait_connect()?;
        let session = Session::negotiate(socket).map_err(Error::from)?;
        let pairs = port.queues as u16;
        let ensure = |right, otherwise: String| if right { Ok(()) } else { Err(Error::Unsupported(otherwise)) };
        let missing = (named | VERSION_1) & !(session.features & BACKEND_FEATURES);
        ensure(missing == 0, format!("the back-end does not offer {}", features::describe(missing)))?;
        ensure(
            u64::from(pairs) <= session.pairs,
            format!("{pairs} queues; the back-end has {} pairs: queues={0}, or more of them there", session.pairs),
        )?;
        let several = if pairs > 1 { MQ } else { 0 };
        let backend_setup =
            BackendSetup { mtu: port.mtu as u16, track_inflight: config.inflight, ..BackendSetup::default() };
        let state = State { backend_setup, session: Some(session), abandoned: false };
        let offered = wanted & state.session.as_ref().map_or(0, |session| session.features);
        let reconnect_thread = StoppableThread::new()?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            source,
            offered: offered & BACKEND_FEATURES | STATUS | several | if config.mac.is_some() { MAC } else { 0 },
            mac: config.mac,
            pairs,
            mtu: port.mtu as u16,
            up: AtomicBool::new(false),
            reconnects: AtomicU64::new(0),
            reconnect_thread,
            failure: OnceLock::new(),
            state: Mutex::new(state),
        }))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why there is no back-end and will be none.
    pub(crate) fn failure(&self) -> Option<&String> {
        self.failure.get()
    }

    pub(crate) fn fail(&self, why: String) {
        self.up.store(false, Ordering::Relaxed);
        let _ = self.failure.set(why);
    }

    /// Describes for people what becomes of packets when the back-end dies.
    pub(crate) fn note(&self) -> String {
        let known = match self.state().backend_setup.inflight {
            Some(_) => "it notes what is in flight for the next one",
            None => "what it has not given back the next one finds available",
        };
        format!("a back-end that dies may come back: {known}")
    }

    /// Starts the rings at the first back-end.
    pub(crate) fn start(&self) {
        let mut state = self.state();
        let State { backend_setup, session, abandoned } = &mut *state;
        let Some(running) = session else { return };
        match running.start(backend_setup) {
            Ok(()) => self.up.store(true, Ordering::Relaxed),
            Err(error) => {
                *abandoned = error.may_still_run();
                *session = None;
                self.fail(error.to_string());
            }
        }
    }

    /// Returns a duplicate of the session's socket, to wait on.
    pub(crate) fn socket(&self) -> Option<OwnedFd> {
        self.state().session.as_ref()?.frontend.socket().try_clone_to_owned().ok()
    }

    /// Checks whether the back-end is still connected, and ends the session if it is not.
    pub(crate) fn check(&self) {
        let mut state = self.state();
        let Some(Err(why)) = state.session.as_mut().map(|session| session.frontend.check()) else { return };
        self.up.store(false, Ordering::Relaxed);
        state.session = None;
        state.abandoned |= why != SessionError::Closed;
        warn!("{}: {why}; waiting for it to come back", self.name);
    }

    /// Hands the rings to another back-end, in place of the one that died.
    pub(crate) fn reconnect(&self, socket: OwnedFd) -> Result<(), Failure> {
        let mut session = Session::negotiate(socket)?;
        // Kept until the lock is released: dropping the last reference drops the port, which takes the lock.
        let rings: Vec<_> =
            self.state().backend_setup.rings.iter().filter_map(|ring| ring.queue.as_ref()?.upgrade()).collect();
        let mut state = self.state();
        let missing = state.backend_setup.features & BACKEND_FEATURES & !session.features;
        if missing != 0 {
            let missing = features::describe(missing);
            return Err(Failure::Permanent(format!(
                "the back-end has come back without {missing}, which the rings need"
            )));
        }
        if u64::from(self.pairs) > session.pairs {
            let pairs = session.pairs;
            return Err(Failure::Permanent(format!(
                "the back-end has come back with {pairs} pairs of queues, not {}",
                self.pairs
            )));
        }
        // The driver has reset the device meanwhile.
        if state.backend_setup.rings.is_empty() {
            return Ok(());
        }
        let started = session.start(&mut state.backend_setup);
        state.abandoned |= started.as_ref().is_err_and(Failure::may_still_run);
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

/// Device access for the driver: memory is shared as files, interrupts are eventfds.
impl PciDevice for UserDevice {
    fn id(&self) -> DeviceId {
        DeviceId { vendor: 0x1af4, device: 0x1041 }
    }

    fn description(&self) -> String {
        let role = if self.source.listens() { "server" } else { "client" };
        format!("vhost-user front-end ({role})")
    }

    fn window(&self) -> Result<Window, Error> {
        Err(Error::Unsupported("a vhost-user back-end has no registers".into()))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Virtual
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.state().backend_setup.regions.push(region.clone());
        Ok(())
    }

    fn set_bus_master(&self, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<EventWaiter>, Error> {
        let failed = |source| Error::os("an eventfd", source);
        let events = (0..vectors).map(|_| EventWaiter::new()).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let copies = events.iter().map(|event| event.event().try_clone_to_owned()).collect::<Result<Vec<_>, _>>();
        self.state().backend_setup.calls = copies.map_err(failed)?;
        Ok(events)
    }
}
