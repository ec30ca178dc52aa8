//! What a back-end is told, from its first message to its running rings. Sections are those of QEMU's
//! *docs/interop/vhost-user.rst*.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ringpass_memory::DmaRegion;
use ringpass_peer::Signal;
use ringpass_vhost_user::features::{self as protocol, PROTOCOL_FEATURES};
use ringpass_vhost_user::{Frontend, InflightArea, Region, Request, SessionError, VringAddr, VringFd};
use ringpass_virtio::driver::{Broken, Unreturned};
use ringpass_virtio::features::*;
use ringpass_virtio_net::transport::{HandOver, Setup};

/// How long a request may take, and all that brings a back-end up.
const REQUEST: Duration = Duration::from_secs(2);
const ALL: Duration = Duration::from_secs(5);

/// Features that are the back-end's to offer. The others are played here, or are not for this transport: there is no IOMMU
/// and no control queue, and kicks carry no data.
pub(crate) const BACKENDS: u64 = CSUM
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

/// Features of the protocol that are of use.
const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::NET_MTU | protocol::INFLIGHT_SHMFD;

/// A back-end that has said what it can do.
pub(crate) struct Session {
    pub(crate) frontend: Frontend,
    /// What it offers.
    pub(crate) features: u64,
    protocol: u64,
    /// Pairs of queues that it has at most.
    pub(crate) pairs: u64,
}

/// What every back-end is told.
#[derive(Default)]
pub(crate) struct Plan {
    /// Features that the driver takes of the back-end's.
    pub(crate) features: u64,
    pub(crate) mtu: u16,
    pub(crate) regions: Vec<Arc<DmaRegion>>,
    /// Eventfds that the back-end calls by, one for each Rx queue.
    pub(crate) calls: Vec<OwnedFd>,
    pub(crate) rings: Vec<Ring>,
    /// Whether a back-end that can is to note what is in flight.
    pub(crate) noted: bool,
    /// What back-ends note in what is in flight, if the last one did.
    pub(crate) inflight: Option<(InflightArea, OwnedFd)>,
}

/// A ring that the back-end is to work on.
pub(crate) struct Ring {
    pub(crate) number: u16,
    pub(crate) setup: Setup,
    pub(crate) kick: OwnedFd,
    pub(crate) queue: Option<Weak<dyn HandOver>>,
}

/// Why a back-end does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The session did not come that far; another one may.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// Rings and back-end do not go together, now and later.
    #[error("{0}")]
    Never(String),
}

impl Failure {
    /// Whether the back-end may have begun to use the rings, and may go on.
    pub(crate) fn leaves_it_running(&self) -> bool {
        !matches!(self, Self::Session(SessionError::Closed))
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        Self::Never(format!("the back-end broke the rules: {broken}"))
    }
}

impl Session {
    /// Asks a back-end what it can do.
    pub(crate) fn begin(socket: OwnedFd) -> Result<Self, SessionError> {
        let mut frontend = Frontend::new(socket, REQUEST);
        frontend.allow(ALL);
        frontend.tell(&Request::SetOwner, Vec::new())?;
        let features = frontend.number(&Request::GetFeatures)?;
        let (mut agreed, mut pairs) = (0, 1);
        if features & PROTOCOL_FEATURES != 0 {
            agreed = frontend.number(&Request::GetProtocolFeatures)? & PROTOCOL;
            frontend.tell(&Request::SetProtocolFeatures(agreed), Vec::new())?;
        }
        if agreed & protocol::REPLY_ACK != 0 {
            frontend.expect_acknowledgements();
        }
        if agreed & protocol::MQ != 0 {
            pairs = frontend.number(&Request::GetQueueNum)?;
        }
        Ok(Self { frontend, features, protocol: agreed, pairs })
    }

    /// Hands the rings over.
    pub(crate) fn start(&mut self, plan: &mut Plan) -> Result<(), Failure> {
        let frontend = &mut self.frontend;
        let told = plan.features & self.features & BACKENDS;
        // In order, what is in flight is what lies behind the last that was given back: to note it costs, and tells nothing.
        let noted = plan.noted && self.protocol & protocol::INFLIGHT_SHMFD != 0 && told & IN_ORDER == 0;
        let rest = if noted && plan.inflight.is_some() { Unreturned::Noted } else { Unreturned::Anew };
        let mut bases = Vec::new();
        for ring in &plan.rings {
            // A queue that was given up stays where it is.
            let queue = ring.queue.as_ref().and_then(Weak::upgrade);
            bases.push(queue.map(|queue| queue.hand_over(rest).map(|handed| handed.base)).transpose()?);
        }
        let several = if plan.rings.len() > 2 { self.features & MQ } else { 0 };
        let told = told | several | self.features & PROTOCOL_FEATURES;
        frontend.tell(&Request::SetFeatures(told), Vec::new())?;
        if self.protocol & protocol::NET_MTU != 0 && told & MTU != 0 {
            frontend.tell(&Request::NetSetMtu(plan.mtu.into()), Vec::new())?;
        }
        if !noted {
            plan.inflight = None;
        } else {
            let (queues, queue_size) = (plan.rings.len() as u16, plan.rings.iter().map(|ring| ring.setup.size).max());
            let area = InflightArea { size: 0, offset: 0, queues, queue_size: queue_size.unwrap_or(0) };
            let known = plan.inflight.take().map_or_else(|| frontend.inflight(area), Ok)?;
            let (area, file) = plan.inflight.insert(known);
            frontend.tell(&Request::SetInflightFd(*area), vec![copy(file)?])?;
        }
        let (table, files) = plan.memory()?;
        frontend.tell(&Request::SetMemTable(table), files)?;
        let running: Vec<(&Ring, u32)> =
            plan.rings.iter().zip(bases).filter_map(|(ring, base)| Some((ring, base?))).collect();
        for &(ring, base) in &running {
            plan.start_ring(frontend, ring, base, told)?;
        }
        for (ring, _) in running {
            // There may be something to do already.
            Signal::new(copy(&ring.kick)?).map_err(|error| Failure::Never(error.to_string()))?.raise();
        }
        Ok(())
    }

    /// Stops all rings; the back-end lets go of their packets before it answers ("VHOST_USER_GET_VRING_BASE").
    pub(crate) fn stop(&mut self, rings: &[Ring]) -> Result<(), SessionError> {
        self.frontend.allow(ALL);
        rings.iter().try_for_each(|ring| self.frontend.vring_base(ring.number.into()).map(drop))
    }
}

impl Plan {
    /// The memory as the back-end is told of it: as few regions as there are stretches that are neighbours on either side.
    fn memory(&self) -> Result<(Vec<Region>, Vec<OwnedFd>), Failure> {
        const MOST: usize = ringpass_vhost_user::MAX_TABLE;
        let (mut table, mut files) = (Vec::<Region>::new(), Vec::new());
        for region in &self.regions {
            let first = table.len();
            for (guest, offset, size) in region.stretches() {
                let (user, size) = (region.at(offset) as u64, size as u64);
                match table[first..].last_mut() {
                    Some(last) if last.guest + last.size == guest => last.size += size,
                    _ => table.push(Region { guest, size, user, offset: offset as u64 }),
                }
            }
            if table.len() > MOST {
                return Err(Failure::Never(format!(
                    "the memory lies in more than {MOST} pieces; with a card over VFIO it lies in one, with huge pages of \
                     1 GiB in few"
                )));
            }
            for _ in first..table.len() {
                let file = region.file().map_err(|error| Failure::Never(error.to_string()))?;
                files.push(copy(file)?);
            }
        }
        Ok((table, files))
    }

    /// Where an address on the device's side lies in this process: rings are told of by that.
    fn user(&self, address: u64) -> Result<u64, Failure> {
        let find = |region: &Arc<DmaRegion>| {
            let inside = |&(start, _, size): &(u64, usize, usize)| (start..start + size as u64).contains(&address);
            let (start, offset, _) = region.stretches().find(inside)?;
            Some(region.at(offset) as u64 + (address - start))
        };
        let found = self.regions.iter().find_map(find);
        found.ok_or_else(|| Failure::Never("a ring outside the memory that the back-end is shown".into()))
    }

    /// A ring starts with a kick, and of one that is not enabled by then the back-end throws away what was sent ("Ring
    /// states"): so that comes first.
    fn start_ring(&self, frontend: &mut Frontend, ring: &Ring, base: u32, told: u64) -> Result<(), Failure> {
        let Ring { number, setup, kick, .. } = ring;
        let index = u32::from(*number);
        let addresses = setup.addresses;
        frontend.tell(&Request::SetVringNum { index, num: setup.size.into() }, Vec::new())?;
        frontend.tell(&Request::SetVringBase { index, base }, Vec::new())?;
        let address = VringAddr {
            index,
            flags: 0,
            descriptors: self.user(addresses.descriptors)?,
            used: self.user(addresses.device)?,
            available: self.user(addresses.driver)?,
        };
        frontend.tell(&Request::SetVringAddr(address), Vec::new())?;
        let call = setup.vector.and_then(|vector| self.calls.get(usize::from(vector)));
        let fds = call.map(copy).into_iter().collect::<Result<Vec<_>, _>>()?;
        let ring = |polled| VringFd { index: *number as u8, polled };
        frontend.tell(&Request::SetVringCall(ring(fds.is_empty())), fds)?;
        // Without features of the protocol it is enabled from the start.
        if told & PROTOCOL_FEATURES != 0 {
            frontend.tell(&Request::SetVringEnable { index, on: true }, Vec::new())?;
        }
        frontend.tell(&Request::SetVringKick(ring(false)), vec![copy(kick)?])?;
        Ok(())
    }
}

/// Another descriptor of the same file, to be sent.
fn copy(file: impl AsFd) -> Result<OwnedFd, SessionError> {
    let copied = file.as_fd().try_clone_to_owned();
    copied.map_err(|error| SessionError::Lost(format!("a file descriptor for the back-end: {error}")))
}
