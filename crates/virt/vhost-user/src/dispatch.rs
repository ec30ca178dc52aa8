//! A back-end's session without its socket: turns messages into replies.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringpass_port::MacAddress;

use crate::inflight::{self, InflightMemory};
use crate::memory_table::{MAX_REGIONS, MemoryTable};
use crate::message::{message, refuse};
use crate::rings::Rings;
use crate::{CommandName, Device, DirtyLog, Ended, Header, InflightArea, Kind, Refusal, Reply, Request, features};

/// Protocol features offered to front-ends.
const OFFERED: u64 = features::MQ
    | features::LOG_SHMFD
    | features::RARP
    | features::REPLY_ACK
    | features::NET_MTU
    | features::INFLIGHT_SHMFD
    | features::RESET_DEVICE
    | features::CONFIGURE_MEM_SLOTS
    | features::STATUS;

/// An encoded reply.
#[derive(Debug)]
pub struct ReplyMessage {
    /// Header and payload.
    pub bytes: Vec<u8>,
    /// File descriptors sent along with the message.
    pub fds: Vec<OwnedFd>,
}

/// State of a session: negotiated features, the guest's memory and the rings.
pub struct Dispatcher {
    features: u64,
    protocol: u64,
    status: u8,
    table: MemoryTable,
    rings: Rings,
    inflight: Option<InflightMemory>,
    /// Present once the front-end has sent one. It is in use while [`features::LOG_ALL`] is set.
    log: Option<Arc<DirtyLog>>,
    refusal: Option<String>,
}

/// Result of a request that was carried out.
enum Response {
    /// No payload; acknowledged if the front-end asked for it.
    NoPayload,
    Reply(Reply),
    Inflight(InflightArea, OwnedFd),
}

impl Dispatcher {
    /// Creates the state of a new session.
    pub fn new(device: &dyn Device) -> Self {
        let rings = Rings::new(device.queues());
        let table = MemoryTable::default();
        Self { features: 0, protocol: 0, status: 0, table, rings, inflight: None, log: None, refusal: None }
    }

    /// Carries out a message. File descriptors that are not kept are closed.
    ///
    /// A refused request ends the session, unless the front-end asked for an acknowledgement ("REPLY_ACK").
    pub fn message(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut dyn Device,
    ) -> Result<Option<ReplyMessage>, Ended> {
        let Header { command, kind, .. } = header;
        if kind == Kind::Reply {
            return Err(Ended::Reply);
        }
        let request = Request::parse(command, payload);
        tracing::trace!("{}, {kind:?}, {} descriptors: {request:x?}", CommandName(command), fds.len());
        let acknowledge = kind == Kind::NeedsReply
            && self.protocol & features::REPLY_ACK != 0
            && !request.as_ref().is_ok_and(Request::is_answered);
        let result = request.and_then(|request| self.carry_out(request, fds, device));
        // This thread or the device may have accessed shared memory that was taken away.
        if self.lost() {
            return Err(Ended::MemoryLost);
        }
        let (reply, fds) = match result {
            Ok(Response::Reply(reply)) => (reply, Vec::new()),
            Ok(Response::Inflight(area, file)) => (Reply::Inflight(area), vec![file]),
            Ok(Response::NoPayload) if acknowledge => (Reply::Number(0), Vec::new()),
            Ok(Response::NoPayload) => return Ok(None),
            Err(Refusal(why)) if acknowledge => {
                self.refusal.get_or_insert_with(|| format!("{}: {why}", CommandName(command)));
                (Reply::Number(1), Vec::new())
            }
            Err(Refusal(why)) => return Err(Ended::Refused(CommandName(command), why)),
        };
        Ok(Some(ReplyMessage { bytes: message(command, Kind::Reply, &reply.to_bytes()), fds }))
    }

    fn carry_out(&mut self, request: Request, fds: Vec<OwnedFd>, device: &mut dyn Device) -> Result<Response, Refusal> {
        if !request.fds().contains(&fds.len()) {
            return refuse(format!("{} file descriptors, where {:?} are wanted", fds.len(), request.fds()));
        }
        let number = |number: u64| Ok(Response::Reply(Reply::Number(number)));
        let mut one = fds.into_iter();
        match request {
            Request::GetFeatures => return number(offered(device)),
            Request::SetFeatures(features) => self.set_features(features, device)?,
            Request::GetProtocolFeatures => return number(OFFERED),
            Request::SetProtocolFeatures(protocol) if protocol & !OFFERED != 0 => {
                return refuse(format!("protocol features {:#x}, which are not offered", protocol & !OFFERED));
            }
            Request::SetProtocolFeatures(protocol) => self.protocol = protocol,
            Request::SetOwner => {}
            // "Deprecated": "ignore this message, or use it to disable all rings".
            Request::ResetOwner => self.rings.enable_all(false, device),
            Request::SetMemTable(regions) => {
                self.set_table(self.table.replaced(&regions, one.collect())?, device)?;
            }
            // Network devices report queue pairs.
            Request::GetQueueNum => return number(self.rings.len() as u64 / 2),
            Request::SetLogBase { size, offset } => {
                self.require_feature(features::LOG_SHMFD)?;
                let Some(file) = one.next() else { return refuse("no file") };
                self.log = Some(Arc::new(DirtyLog::map(size, offset, &file, self.table.memory())?));
                self.follow_log(device)?;
                return number(0);
            }
            // It would be told of new bits. Front-ends look at the log when they like.
            Request::SetLogFd => self.require_feature(features::LOG_SHMFD)?,
            Request::SetVringNum { index, num } => self.rings.set_size(index, num)?,
            Request::SetVringAddr(address) => self.rings.set_address(address)?,
            Request::SetVringBase { index, base } => self.rings.set_base(index, base)?,
            Request::GetVringBase { index } => {
                let base = self.rings.stop(index, device)?;
                return Ok(Response::Reply(Reply::VringBase { index, base }));
            }
            Request::SetVringKick(ring) => self.rings.set_kick(ring.index, one.next(), device)?,
            Request::SetVringCall(ring) => self.rings.set_call(ring.index, one.next(), device)?,
            Request::SetVringErr(ring) => self.rings.set_error(ring.index, one.next())?,
            Request::SetVringEnable { index, on } => self.rings.enable(index, on, device)?,
            Request::SendRarp(mac) => {
                self.require_feature(features::RARP)?;
                device.announce(MacAddress(mac));
            }
            Request::NetSetMtu(mtu) => {
                self.require_feature(features::NET_MTU)?;
                let Ok(mtu) = u16::try_from(mtu) else { return refuse(format!("an MTU of {mtu}")) };
                device.set_mtu(mtu).map_err(Refusal)?;
            }
            Request::GetInflightFd(asked) => {
                self.require_feature(features::INFLIGHT_SHMFD)?;
                let (area, file) = inflight::create(&asked, self.features, self.rings.len())?;
                return Ok(Response::Inflight(area, file));
            }
            Request::SetInflightFd(area) => {
                self.require_feature(features::INFLIGHT_SHMFD)?;
                self.rings.require_all_stopped()?;
                let Some(file) = one.next() else { return refuse("no file") };
                self.inflight = Some(InflightMemory::map(area, &file, self.features, self.rings.len())?);
            }
            Request::ResetDevice => {
                self.require_feature(features::RESET_DEVICE)?;
                self.reset(device)?;
                self.rings.enable_all(false, device);
            }
            Request::GetMaxMemSlots => {
                self.require_feature(features::CONFIGURE_MEM_SLOTS)?;
                return number(MAX_REGIONS as u64);
            }
            Request::AddMemReg(region) => {
                self.require_feature(features::CONFIGURE_MEM_SLOTS)?;
                let Some(file) = one.next() else { return refuse("no file") };
                self.set_table(self.table.with(region, file)?, device)?;
            }
            Request::RemMemReg(region) => {
                self.require_feature(features::CONFIGURE_MEM_SLOTS)?;
                self.set_table(self.table.without(&region)?, device)?;
            }
            Request::SetStatus(status) => {
                self.require_feature(features::STATUS)?;
                let Ok(status) = u8::try_from(status) else { return refuse(format!("a status of {status:#x}")) };
                // Virtio 2.1: writing 0 resets the device.
                if status == 0 {
                    self.reset(device)?;
                }
                self.status = status;
            }
            Request::GetStatus => {
                self.require_feature(features::STATUS)?;
                return number(self.status.into());
            }
        }
        // This request may have completed the setup of a ring.
        self.rings.start(self.features & !features::LOG_ALL, (&self.table, self.inflight.as_ref()), device)?;
        Ok(Response::NoPayload)
    }

    fn set_features(&mut self, features: u64, device: &mut dyn Device) -> Result<(), Refusal> {
        let unknown = features & !offered(device);
        if unknown != 0 {
            return refuse(format!("features {unknown:#x}, which are not offered"));
        }
        let changed = features ^ self.features;
        if changed & !features::LOG_ALL != 0 {
            self.rings.require_all_stopped()?;
        }
        self.features = features;
        if changed & features::LOG_ALL != 0 {
            self.follow_log(device)?;
        }
        // "If VHOST_USER_F_PROTOCOL_FEATURES has not been negotiated, the ring starts directly in the enabled
        // state."
        if features & features::PROTOCOL_FEATURES == 0 {
            self.rings.enable_all(true, device);
        }
        Ok(())
    }

    /// Lets the device log what it writes, if the front-end wants that and has sent a log.
    fn follow_log(&self, device: &mut dyn Device) -> Result<(), Refusal> {
        let log = self.log.clone().filter(|_| self.features & features::LOG_ALL != 0);
        device.set_log(log).map_err(Refusal)
    }

    /// Changes the guest's memory, unless a running ring would no longer lie in it.
    fn set_table(&mut self, table: MemoryTable, device: &mut dyn Device) -> Result<(), Refusal> {
        self.rings.check_within(table.memory())?;
        self.log.iter().try_for_each(|log| log.check_covers(table.memory()))?;
        device.set_memory(table.memory()).map_err(Refusal)?;
        self.table = table;
        Ok(())
    }

    /// Refuses the request if a protocol feature was not negotiated.
    fn require_feature(&self, feature: u64) -> Result<(), Refusal> {
        match self.protocol & feature {
            0 => refuse(format!("protocol feature {:#x} was not agreed on", feature)),
            _ => Ok(()),
        }
    }

    /// Resets all rings to their initial state. Memory and negotiated features stay.
    fn reset(&mut self, device: &mut dyn Device) -> Result<(), Refusal> {
        self.status = 0;
        self.inflight = None;
        self.rings.reset(device)
    }

    /// Returns whether shared memory was taken away, which the device may have accessed since.
    pub fn lost(&self) -> bool {
        self.table.memory().lost()
            || self.inflight.as_ref().is_some_and(InflightMemory::lost)
            || self.log.as_ref().is_some_and(|log| log.lost())
    }

    /// Returns whether an eventfd of the front-end takes so long to be signalled that no more signals are sent.
    pub fn has_slow_eventfd(&self) -> bool {
        self.rings.has_slow_eventfd()
    }

    /// Takes the first refusal since the last call, of those that the front-end was told of.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }

    /// Ends the session: the device releases everything that came with it.
    pub fn end(self, why: &Ended, device: &mut dyn Device) {
        if matches!(why, Ended::Fault(_) | Ended::SlowMemory(_)) {
            self.rings.signal_error();
        }
        device.disconnected(&why.to_string());
    }
}

fn offered(device: &dyn Device) -> u64 {
    device.features() | features::PROTOCOL_FEATURES | features::LOG_ALL
}
