//! A session with a back-end, from its first message to running rings. Quoted section names are those of QEMU's
//! *docs/interop/vhost-user.rst*.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ringpass_ipc::EventNotifier;
use ringpass_memory::{ContiguousRange, DmaRegion};
use ringpass_vhost_user::features::{self as protocol, PROTOCOL_FEATURES};
use ringpass_vhost_user::{Frontend, InflightArea, Region, Request, SessionError, VringAddr, VringFd};
use ringpass_virtio::driver::{Broken, InflightPolicy};
use ringpass_virtio::features::*;
use ringpass_virtio_net::transport::{HandOver, QueueSetup};

/// Time limits of one request, and of all that sets a back-end up. A back-end may have gigabytes to map for a request, page
/// by page where it has an IOMMU.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const SETUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Features that the back-end decides on. The others are emulated here or do not exist with this transport: there
/// is no IOMMU and no control queue, and kicks carry no data.
pub(crate) const BACKEND_FEATURES: u64 = CSUM
    | GUEST_CSUM
    | MTU
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MRG_RXBUF
    | INDIRECT_DESC
    | EVENT_IDX
    | VERSION_1
    | RING_PACKED
    | IN_ORDER
    | ORDER_PLATFORM;

/// Protocol features that this front-end uses.
const SUPPORTED_PROTOCOL_FEATURES: u64 =
    protocol::MQ | protocol::REPLY_ACK | protocol::NET_MTU | protocol::INFLIGHT_SHMFD;

/// A session with a back-end whose capabilities are known.
pub(crate) struct Session {
    pub(crate) frontend: Frontend,
    /// Features that the back-end offers.
    pub(crate) features: u64,
    protocol: u64,
    /// Largest number of queue pairs of the back-end.
    pub(crate) pairs: u64,
}

/// Settings that are sent to every back-end.
#[derive(Default)]
pub(crate) struct BackendSetup {
    /// Features that the driver has accepted from those of the back-end.
    pub(crate) features: u64,
    pub(crate) mtu: u16,
    pub(crate) regions: Vec<Arc<DmaRegion>>,
    /// Eventfds by which the back-end interrupts, one per Rx queue.
    pub(crate) calls: Vec<OwnedFd>,
    pub(crate) rings: Vec<Ring>,
    /// Whether back-ends that can are to record chains in flight.
    pub(crate) track_inflight: bool,
    /// Area in which back-ends record chains in flight, if the last one did.
    pub(crate) inflight: Option<(InflightArea, OwnedFd)>,
}

/// A ring that the back-end is to process.
pub(crate) struct Ring {
    pub(crate) number: u16,
    pub(crate) setup: QueueSetup,
    pub(crate) kick: OwnedFd,
    pub(crate) queue: Option<Weak<dyn HandOver>>,
}

/// Why a back-end could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The session failed; another one may succeed.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// The back-end does not fit the rings, and no retry will help.
    #[error("{0}")]
    Permanent(String),
}

impl Failure {
    /// Returns whether the back-end may have begun to use the rings and may continue.
    pub(crate) fn may_still_run(&self) -> bool {
        !matches!(self, Self::Session(SessionError::Closed))
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        Self::Permanent(format!("the back-end broke the rules: {broken}"))
    }
}

impl Session {
    /// Connects the session: negotiates protocol features and asks for the back-end's capabilities.
    pub(crate) fn negotiate(socket: OwnedFd) -> Result<Self, SessionError> {
        let mut frontend = Frontend::new(socket, REQUEST_TIMEOUT);
        frontend.set_time_limit(SETUP_TIMEOUT);
        frontend.send_request(&Request::SetOwner, Vec::new())?;
        let features = frontend.number(&Request::GetFeatures)?;
        let (mut agreed, mut pairs) = (0, 1);
        if features & PROTOCOL_FEATURES != 0 {
            agreed = frontend.number(&Request::GetProtocolFeatures)? & SUPPORTED_PROTOCOL_FEATURES;
            frontend.send_request(&Request::SetProtocolFeatures(agreed), Vec::new())?;
        }
        if agreed & protocol::REPLY_ACK != 0 {
            frontend.enable_reply_ack();
        }
        if agreed & protocol::MQ != 0 {
            pairs = frontend.number(&Request::GetQueueNum)?;
        }
        Ok(Self { frontend, features, protocol: agreed, pairs })
    }

    /// Hands the rings over to the back-end and starts them.
    pub(crate) fn start(&mut self, backend_setup: &mut BackendSetup) -> Result<(), Failure> {
        let frontend = &mut self.frontend;
        let acked = backend_setup.features & self.features & BACKEND_FEATURES;
        // With IN_ORDER, the chains in flight are those after the last one returned: recording them costs time and
        // adds nothing.
        let track_inflight =
            backend_setup.track_inflight && self.protocol & protocol::INFLIGHT_SHMFD != 0 && acked & IN_ORDER == 0;
        let rest = if track_inflight && backend_setup.inflight.is_some() {
            InflightPolicy::Tracked
        } else {
            InflightPolicy::Resubmit
        };
        let mut bases = Vec::new();
        for ring in &backend_setup.rings {
            // A queue that no longer exists is not handed over.
            let queue = ring.queue.as_ref().and_then(Weak::upgrade);
            bases.push(queue.map(|queue| queue.hand_over(rest).map(|handed| handed.base)).transpose()?);
        }
        let several = if backend_setup.rings.len() > 2 { self.features & MQ } else { 0 };
        let acked = acked | several | self.features & PROTOCOL_FEATURES;
        frontend.send_request(&Request::SetFeatures(acked), Vec::new())?;
        if self.protocol & protocol::NET_MTU != 0 && acked & MTU != 0 {
            frontend.send_request(&Request::NetSetMtu(backend_setup.mtu.into()), Vec::new())?;
        }
        if !track_inflight {
            backend_setup.inflight = None;
        } else {
            let (queues, queue_size) =
                (backend_setup.rings.len() as u16, backend_setup.rings.iter().map(|ring| ring.setup.size).max());
            let area = InflightArea { size: 0, offset: 0, queues, queue_size: queue_size.unwrap_or(0) };
            let known = backend_setup.inflight.take().map_or_else(|| frontend.inflight(area), Ok)?;
            let (area, file) = backend_setup.inflight.insert(known);
            frontend.send_request(&Request::SetInflightFd(*area), vec![dup(file)?])?;
        }
        let (table, files) = backend_setup.memory()?;
        frontend.send_request(&Request::SetMemTable(table), files)?;
        let running: Vec<(&Ring, u32)> =
            backend_setup.rings.iter().zip(bases).filter_map(|(ring, base)| Some((ring, base?))).collect();
        for &(ring, base) in &running {
            backend_setup.start_ring(frontend, ring, base, acked)?;
        }
        for (ring, _) in running {
            // There may be chains available already.
            EventNotifier::new(dup(&ring.kick)?).map_err(|error| Failure::Permanent(error.to_string()))?.notify();
        }
        Ok(())
    }

    /// Stops all rings. The back-end releases their packets before it replies ("VHOST_USER_GET_VRING_BASE").
    pub(crate) fn stop(&mut self, rings: &[Ring]) -> Result<(), SessionError> {
        self.frontend.set_time_limit(SETUP_TIMEOUT);
        rings.iter().try_for_each(|ring| self.frontend.vring_base(ring.number.into()).map(drop))
    }
}

impl BackendSetup {
    /// Returns the memory table for the back-end, merging ranges that are adjacent on both sides, and a file for
    /// each region.
    fn memory(&self) -> Result<(Vec<Region>, Vec<OwnedFd>), Failure> {
        const MAX_TABLE_REGIONS: usize = ringpass_vhost_user::MAX_TABLE;
        let (mut table, mut files) = (Vec::<Region>::new(), Vec::new());
        for region in &self.regions {
            let first = table.len();
            for ContiguousRange { iova: guest, offset, len } in region.contiguous_ranges() {
                let user = region.at(offset) as u64;
                let size = len as u64;
                match table[first..].last_mut() {
                    Some(last) if last.guest + last.size == guest => last.size += size,
                    _ => table.push(Region { guest, size, user, offset: offset as u64 }),
                }
            }
            if table.len() > MAX_TABLE_REGIONS {
                return Err(Failure::Permanent(format!(
                    "the memory lies in more than {MAX_TABLE_REGIONS} pieces; with a card over VFIO it lies in one, with huge pages of \
                     1 GiB in few"
                )));
            }
            for _ in first..table.len() {
                let file = region.file().map_err(|error| Failure::Permanent(error.to_string()))?;
                files.push(dup(file)?);
            }
        }
        Ok((table, files))
    }

    /// Translates a device-side address to an address of this process, which the protocol uses for rings.
    fn user(&self, address: u64) -> Result<u64, Failure> {
        let find = |region: &Arc<DmaRegion>| {
            let inside = |range: &ContiguousRange| (range.iova..range.iova + range.len as u64).contains(&address);
            let range = region.contiguous_ranges().find(inside)?;
            Some(region.at(range.offset) as u64 + (address - range.iova))
        };
        let found = self.regions.iter().find_map(find);
        found.ok_or_else(|| Failure::Permanent("a ring outside the memory that the back-end is shown".into()))
    }

    /// Sets up and starts one ring. The ring is enabled before the kick, which starts it: the back-end drops what
    /// was sent on a ring that is not enabled when it starts ("Ring states").
    fn start_ring(&self, frontend: &mut Frontend, ring: &Ring, base: u32, acked: u64) -> Result<(), Failure> {
        let Ring { number, setup, kick, .. } = ring;
        let index = u32::from(*number);
        let addresses = setup.addresses;
        frontend.send_request(&Request::SetVringNum { index, num: setup.size.into() }, Vec::new())?;
        frontend.send_request(&Request::SetVringBase { index, base }, Vec::new())?;
        let address = VringAddr {
            index,
            flags: 0,
            descriptors: self.user(addresses.descriptors)?,
            used: self.user(addresses.device)?,
            available: self.user(addresses.driver)?,
        };
        frontend.send_request(&Request::SetVringAddr(address), Vec::new())?;
        let call = setup.vector.and_then(|vector| self.calls.get(usize::from(vector)));
        let fds = call.map(dup).into_iter().collect::<Result<Vec<_>, _>>()?;
        let ring = |polled| VringFd { index: *number as u8, polled };
        frontend.send_request(&Request::SetVringCall(ring(fds.is_empty())), fds)?;
        // Without protocol features the ring is enabled from the start.
        if acked & PROTOCOL_FEATURES != 0 {
            frontend.send_request(&Request::SetVringEnable { index, on: true }, Vec::new())?;
        }
        frontend.send_request(&Request::SetVringKick(ring(false)), vec![dup(kick)?])?;
        Ok(())
    }
}

/// Duplicates a descriptor, to be sent.
fn dup(file: impl AsFd) -> Result<OwnedFd, SessionError> {
    let copied = file.as_fd().try_clone_to_owned();
    copied.map_err(|error| SessionError::ConnectionLost(format!("a file descriptor for the back-end: {error}")))
}
