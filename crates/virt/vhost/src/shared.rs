//! State shared by the port, its queues and the session.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use ringpass_ipc::WakeFd;
use ringpass_port::lending::Lending;
use ringpass_port::{Error, Offloads};
use ringpass_vhost_user::ServerHandle;

use crate::announce::Announcement;
use crate::counters::AllCounters;
use crate::fault::FaultLog;
use crate::lender::VringLender;
use crate::negotiated::{GuestOffloads, MIN_FRAME_LEN};
use crate::vring::Vring;

/// Handle of the vhost-user server, which keeps serving guests as long as the port or one of its queues
/// exists.
pub(crate) type SharedServer = Arc<OnceLock<ServerHandle>>;

pub(crate) struct Shared {
    /// Virtqueues by vhost-user index: the guest receives on even ones and sends on odd ones.
    pub(crate) vrings: Arc<[Vring]>,
    /// Lendings by queue pair, from which NIC queues borrow the guest's receive buffers.
    pub(crate) lendings: Box<[Arc<Lending>]>,
    /// Whether a NIC queue or another port may borrow buffers.
    pub(crate) lending_enabled: AtomicBool,
    /// Wake-up descriptor of each Rx queue. The guest's kicks wake it, and the session does after changes.
    pub(crate) kicks: Box<[WakeFd]>,
    /// Guest queue pair that each Tx queue sends to, or [`NO_ROUTE`].
    routes: Box<[AtomicUsize]>,
    /// Offloads that the guest accepts, a [`GuestOffloads`].
    guest_offloads: AtomicU8,
    /// Longest frame to the guest in bytes, without a VLAN tag.
    longest: AtomicUsize,
    pub(crate) announcement: Announcement,
    pub(crate) counters: AllCounters,
    pub(crate) sessions: AtomicU64,
    pub(crate) faults: Arc<FaultLog>,
    /// Reason why the last session ended.
    pub(crate) last_end: Mutex<Option<String>>,
    pub(crate) offloads: Offloads,
    pub(crate) mtu: usize,
}

pub(crate) const NO_ROUTE: usize = usize::MAX;

impl Shared {
    pub(crate) fn new(pairs: usize, mtu: usize, offloads: Offloads) -> Result<Arc<Self>, Error> {
        let vrings: Arc<[Vring]> = (0..2 * pairs).map(|_| Vring::default()).collect();
        let kicks = (0..pairs).map(|_| WakeFd::new()).collect::<Result<_, _>>();
        let kicks = kicks.map_err(|source| Error::os("a descriptor to wait on", source))?;
        let faults = Arc::<FaultLog>::default();
        Ok(Arc::new(Self {
            lendings: (0..pairs).map(|pair| VringLender::lending(2 * pair, &vrings, &faults)).collect(),
            vrings,
            lending_enabled: false.into(),
            kicks,
            routes: (0..pairs).map(|_| NO_ROUTE.into()).collect(),
            guest_offloads: (GuestOffloads::Plain as u8).into(),
            longest: (MIN_FRAME_LEN + mtu).into(),
            announcement: Announcement::default(),
            counters: AllCounters::new(pairs),
            sessions: 0.into(),
            faults,
            last_end: Mutex::default(),
            offloads,
            mtu,
        }))
    }

    /// Returns the guest's virtqueue that a Tx queue sends to, with its index.
    #[inline]
    pub(crate) fn route(&self, queue: usize) -> Option<(usize, &Vring)> {
        let number = self.routes[queue].load(Relaxed).wrapping_mul(2);
        self.vrings.get(number).map(|vring| (number, vring))
    }

    /// Returns whether frames reach the guest.
    pub(crate) fn is_up(&self) -> bool {
        self.routes[0].load(Relaxed) != NO_ROUTE
    }

    /// Distributes the Tx queues over the queue pairs that the guest has enabled.
    pub(crate) fn set_routes(&self) {
        let enabled = |pair: &usize| {
            let state = self.vrings[2 * pair].lock();
            state.enabled && state.running.is_some()
        };
        let pairs: Vec<usize> = (0..self.kicks.len()).filter(enabled).collect();
        for (queue, route) in self.routes.iter().enumerate() {
            let pair = if pairs.is_empty() { NO_ROUTE } else { pairs[queue % pairs.len()] };
            route.store(pair, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn guest_offloads(&self) -> GuestOffloads {
        self.guest_offloads.load(Relaxed).into()
    }

    pub(crate) fn set_guest_offloads(&self, guest_offloads: GuestOffloads) {
        self.guest_offloads.store(guest_offloads as u8, Relaxed);
    }

    #[inline]
    pub(crate) fn longest(&self) -> usize {
        self.longest.load(Relaxed)
    }

    pub(crate) fn set_guest_mtu(&self, mtu: usize) {
        self.longest.store(MIN_FRAME_LEN + mtu, Relaxed);
    }
}
