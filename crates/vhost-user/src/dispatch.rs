//! A back-end's session without its socket: message in, answer out.

use std::os::fd::OwnedFd;

use ringpass_port::MacAddress;

use crate::inflight::{self, InflightMemory};
use crate::memory_table::{MAX_REGIONS, MemoryTable};
use crate::message::{message, refuse};
use crate::rings::Rings;
use crate::{Device, Ended, Header, InflightArea, Kind, Name, Refusal, Reply, Request, features};

/// Protocol features that are offered.
const OFFERED: u64 = features::MQ
    | features::RARP
    | features::REPLY_ACK
    | features::NET_MTU
    | features::INFLIGHT_SHMFD
    | features::RESET_DEVICE
    | features::CONFIGURE_MEM_SLOTS
    | features::STATUS;

/// A reply, to be sent as it is.
#[derive(Debug)]
pub struct Answer {
    /// The whole message.
    pub bytes: Vec<u8>,
    /// What goes with it.
    pub fds: Vec<OwnedFd>,
}

/// Where a session stands: what was agreed on, the guest's memory, the rings.
pub struct Dispatcher {
    features: u64,
    protocol: u64,
    status: u8,
    table: MemoryTable,
    rings: Rings,
    inflight: Option<InflightMemory>,
    refusal: Option<String>,
}

/// What a request comes to that was carried out.
enum Done {
    /// Nothing to say, unless an acknowledgement is wanted.
    Quietly,
    Reply(Reply),
    Inflight(InflightArea, OwnedFd),
}

impl Dispatcher {
    /// The beginning of a session.
    pub fn new(device: &dyn Device) -> Self {
        let rings = Rings::new(device.queues());
        let table = MemoryTable::default();
        Self { features: 0, protocol: 0, status: 0, table, rings, inflight: None, refusal: None }
    }

    /// Carries out a message. Descriptors that are not kept are closed. What is refused ends the session, unless the
    /// front-end asked to be told ("REPLY_ACK").
    pub fn message(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut dyn Device,
    ) -> Result<Option<Answer>, Ended> {
        let Header { command, kind, .. } = header;
        if kind == Kind::Reply {
            return Err(Ended::Reply);
        }
        let request = Request::parse(command, payload);
        tracing::trace!("{}, {kind:?}, {} descriptors: {request:x?}", Name(command), fds.len());
        let acknowledge = kind == Kind::NeedsReply
            && self.protocol & features::REPLY_ACK != 0
            && !request.as_ref().is_ok_and(Request::is_answered);
        let result = request.and_then(|request| self.carry_out(request, fds, device));
        // Memory that this or the device has stumbled over.
        if self.lost() {
            return Err(Ended::MemoryLost);
        }
        let (reply, fds) = match result {
            Ok(Done::Reply(reply)) => (reply, Vec::new()),
            Ok(Done::Inflight(area, file)) => (Reply::Inflight(area), vec![file]),
            Ok(Done::Quietly) if acknowledge => (Reply::Number(0), Vec::new()),
            Ok(Done::Quietly) => return Ok(None),
            Err(Refusal(why)) if acknowledge => {
                self.refusal.get_or_insert_with(|| format!("{}: {why}", Name(command)));
                (Reply::Number(1), Vec::new())
            }
            Err(Refusal(why)) => return Err(Ended::Refused(Name(command), why)),
        };
        Ok(Some(Answer { bytes: message(command, Kind::Reply, &reply.to_bytes()), fds }))
    }

    fn carry_out(&mut self, request: Request, fds: Vec<OwnedFd>, device: &mut dyn Device) -> Result<Done, Refusal> {
        if !request.fds().contains(&fds.len()) {
            return refuse(format!("{} file descriptors, where {:?} are wanted", fds.len(), request.fds()));
        }
        let number = |number: u64| Ok(Done::Reply(Reply::Number(number)));
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
            // Network devices count their queues by pairs.
            Request::GetQueueNum => return number(self.rings.len() as u64 / 2),
            Request::SetVringNum { index, num } => self.rings.set_size(index, num)?,
            Request::SetVringAddr(address) => self.rings.set_address(address)?,
            Request::SetVringBase { index, base } => self.rings.set_base(index, base)?,
            Request::GetVringBase { index } => {
                let base = self.rings.stop(index, device)?;
                return Ok(Done::Reply(Reply::VringBase { index, base }));
            }
            Request::SetVringKick(ring) => self.rings.set_kick(ring.index, one.next(), device)?,
            Request::SetVringCall(ring) => self.rings.set_call(ring.index, one.next(), device)?,
            Request::SetVringErr(ring) => self.rings.set_error(ring.index, one.next())?,
            Request::SetVringEnable { index, on } => self.rings.enable(index, on, device)?,
            Request::SendRarp(mac) => {
                self.agreed(features::RARP)?;
                device.announce(MacAddress(mac));
            }
            Request::NetSetMtu(mtu) => {
                self.agreed(features::NET_MTU)?;
                let Ok(mtu) = u16::try_from(mtu) else { return refuse(format!("an MTU of {mtu}")) };
                device.set_mtu(mtu).map_err(Refusal)?;
            }
            Request::GetInflightFd(asked) => {
                self.agreed(features::INFLIGHT_SHMFD)?;
                let (area, file) = inflight::create(&asked, self.features, self.rings.len())?;
                return Ok(Done::Inflight(area, file));
            }
            Request::SetInflightFd(area) => {
                self.agreed(features::INFLIGHT_SHMFD)?;
                self.rings.all_stopped()?;
                let Some(file) = one.next() else { return refuse("no file") };
                self.inflight = Some(InflightMemory::map(area, &file, self.features, self.rings.len())?);
            }
            Request::ResetDevice => {
                self.agreed(features::RESET_DEVICE)?;
                self.reset(device)?;
                self.rings.enable_all(false, device);
            }
            Request::GetMaxMemSlots => {
                self.agreed(features::CONFIGURE_MEM_SLOTS)?;
                return number(MAX_REGIONS as u64);
            }
            Request::AddMemReg(region) => {
                self.agreed(features::CONFIGURE_MEM_SLOTS)?;
                let Some(file) = one.next() else { return refuse("no file") };
                self.set_table(self.table.with(region, file)?, device)?;
            }
            Request::RemMemReg(region) => {
                self.agreed(features::CONFIGURE_MEM_SLOTS)?;
                self.set_table(self.table.without(&region)?, device)?;
            }
            Request::SetStatus(status) => {
                self.agreed(features::STATUS)?;
                let Ok(status) = u8::try_from(status) else { return refuse(format!("a status of {status:#x}")) };
                // Virtio 2.1: zero resets the device.
                if status == 0 {
                    self.reset(device)?;
                }
                self.status = status;
            }
            Request::GetStatus => {
                self.agreed(features::STATUS)?;
                return number(self.status.into());
            }
        }
        // Whatever a ring has waited for may have come with this.
        self.rings.start(self.features, (&self.table, self.inflight.as_ref()), device)?;
        Ok(Done::Quietly)
    }

    fn set_features(&mut self, features: u64, device: &mut dyn Device) -> Result<(), Refusal> {
        let unknown = features & !offered(device);
        if unknown != 0 {
            return refuse(format!("features {unknown:#x}, which are not offered"));
        }
        if features != self.features {
            self.rings.all_stopped()?;
        }
        self.features = features;
        // "If VHOST_USER_F_PROTOCOL_FEATURES has not been negotiated, the ring starts directly in the enabled state."
        if features & features::PROTOCOL_FEATURES == 0 {
            self.rings.enable_all(true, device);
        }
        Ok(())
    }

    /// Changes the guest's memory, unless a ring that runs would no longer lie in it.
    fn set_table(&mut self, table: MemoryTable, device: &mut dyn Device) -> Result<(), Refusal> {
        self.rings.lie_in(table.memory())?;
        device.set_memory(table.memory()).map_err(Refusal)?;
        self.table = table;
        Ok(())
    }

    /// Whether a protocol feature was agreed on.
    fn agreed(&self, feature: u64) -> Result<(), Refusal> {
        match self.protocol & feature {
            0 => refuse(format!("protocol feature {:#x} was not agreed on", feature)),
            _ => Ok(()),
        }
    }

    /// All rings as at the beginning; memory and what was agreed on stay.
    fn reset(&mut self, device: &mut dyn Device) -> Result<(), Refusal> {
        self.status = 0;
        self.inflight = None;
        self.rings.reset(device)
    }

    /// Whether memory was taken away that the device may have stumbled over.
    pub fn lost(&self) -> bool {
        self.table.memory().lost() || self.inflight.as_ref().is_some_and(InflightMemory::lost)
    }

    /// The first refusal since this was last asked for, of those that the front-end was told of.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }

    /// Ends the session: the device lets go of all.
    pub fn end(self, why: &Ended, device: &mut dyn Device) {
        if matches!(why, Ended::Fault(_)) {
            self.rings.signal_error();
        }
        device.disconnected(&why.to_string());
    }
}

fn offered(device: &dyn Device) -> u64 {
    device.features() | features::PROTOCOL_FEATURES
}
