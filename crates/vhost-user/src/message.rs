//! Messages: a header, and what one end asks of the other. Sections are those of
//! QEMU's *docs/interop/vhost-user.rst*.

use crate::Command;

/// Bytes of a header.
pub const HEADER: usize = 12;
/// Bytes that may follow it.
pub const MAX_PAYLOAD: usize = 4096;
/// Regions that SET_MEM_TABLE carries at most, each with a file descriptor.
pub const MAX_TABLE: usize = 8;

/// Whether a message asks or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It asks; some commands are answered.
    Request,
    /// It asks, and wants to know what came of it ("REPLY_ACK").
    NeedsReply,
    /// It answers.
    Reply,
}

/// What every message begins with ("Header").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which [`Command`], if it is one.
    pub command: u32,
    /// Request or reply.
    pub kind: Kind,
    /// Bytes that follow.
    pub size: u32,
}

const VERSION_MASK: u32 = 3;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A header that cannot be: where the next message would begin is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Of another version of the protocol.
    #[error("a message of version {0} of the protocol; 1 is spoken here")]
    Version(u32),
    /// Longer than any message is.
    #[error("a message of {0} bytes; {MAX_PAYLOAD} are the most that any has")]
    Size(u32),
}

impl Header {
    /// Reads a header and checks that such a message can be.
    pub fn parse(bytes: &[u8; HEADER]) -> Result<Self, Malformed> {
        let field = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (command, flags, size) = (field(0), field(4), field(8));
        if flags & VERSION_MASK != VERSION {
            return Err(Malformed::Version(flags & VERSION_MASK));
        }
        if size as usize > MAX_PAYLOAD {
            return Err(Malformed::Size(size));
        }
        let kind = match flags & (REPLY | NEED_REPLY) {
            0 => Kind::Request,
            NEED_REPLY => Kind::NeedsReply,
            _ => Kind::Reply,
        };
        Ok(Self { command, kind, size })
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER] {
        let flags = match self.kind {
            Kind::Request => VERSION,
            Kind::NeedsReply => VERSION | NEED_REPLY,
            Kind::Reply => VERSION | REPLY,
        };
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&self.command.to_ne_bytes());
        bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }
}

/// A stretch of the guest's memory, in a file that comes with it ("Memory regions description").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where the guest has it.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Where the front-end has it.
    pub user: u64,
    /// Where in the file it begins.
    pub offset: u64,
}

/// Where a ring lies, in addresses of the front-end's ("A vring address description"; what would be logged is passed over).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringAddr {
    /// Which ring.
    pub index: u32,
    /// Bit 0: writes to the used ring are to be logged.
    pub flags: u32,
    /// Descriptors.
    pub descriptors: u64,
    /// Used ring, or device's event suppression.
    pub used: u64,
    /// Available ring, or driver's event suppression.
    pub available: u64,
}

/// Which ring a descriptor is for, and whether one comes with the message (bit 8 of the payload says that none does).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringFd {
    /// Which ring.
    pub index: u8,
    /// Whether there is no descriptor: the other end polls.
    pub polled: bool,
}

/// What is noted of chains in flight, in a file that comes with it or is asked for ("Inflight description").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightArea {
    /// Bytes; 0 if asked for.
    pub size: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Rings.
    pub queues: u16,
    /// Descriptors of each.
    pub queue_size: u16,
}

/// What is asked of a back-end, with its sizes checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<Region>),
    SetVringNum { index: u32, num: u32 },
    SetVringAddr(VringAddr),
    SetVringBase { index: u32, base: u32 },
    GetVringBase { index: u32 },
    SetVringKick(VringFd),
    SetVringCall(VringFd),
    SetVringErr(VringFd),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable { index: u32, on: bool },
    SendRarp([u8; 6]),
    NetSetMtu(u64),
    GetInflightFd(InflightArea),
    SetInflightFd(InflightArea),
    ResetDevice,
    GetMaxMemSlots,
    AddMemReg(Region),
    RemMemReg(Region),
    SetStatus(u64),
    GetStatus,
}

/// A message that makes no sense, or asks for what is not to be had here; where the next one begins is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// A refusal.
pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(why.into()))
}

impl Request {
    /// Which command this is.
    pub fn command(&self) -> Command {
        match self {
            Self::GetFeatures => Command::GetFeatures,
            Self::SetFeatures(_) => Command::SetFeatures,
            Self::SetOwner => Command::SetOwner,
            Self::ResetOwner => Command::ResetOwner,
            Self::SetMemTable(_) => Command::SetMemTable,
            Self::SetVringNum { .. } => Command::SetVringNum,
            Self::SetVringAddr(_) => Command::SetVringAddr,
            Self::SetVringBase { .. } => Command::SetVringBase,
            Self::GetVringBase { .. } => Command::GetVringBase,
            Self::SetVringKick(_) => Command::SetVringKick,
            Self::SetVringCall(_) => Command::SetVringCall,
            Self::SetVringErr(_) => Command::SetVringErr,
            Self::GetProtocolFeatures => Command::GetProtocolFeatures,
            Self::SetProtocolFeatures(_) => Command::SetProtocolFeatures,
            Self::GetQueueNum => Command::GetQueueNum,
            Self::SetVringEnable { .. } => Command::SetVringEnable,
            Self::SendRarp(_) => Command::SendRarp,
            Self::NetSetMtu(_) => Command::NetSetMtu,
            Self::GetInflightFd(_) => Command::GetInflightFd,
            Self::SetInflightFd(_) => Command::SetInflightFd,
            Self::ResetDevice => Command::ResetDevice,
            Self::GetMaxMemSlots => Command::GetMaxMemSlots,
            Self::AddMemReg(_) => Command::AddMemReg,
            Self::RemMemReg(_) => Command::RemMemReg,
            Self::SetStatus(_) => Command::SetStatus,
            Self::GetStatus => Command::GetStatus,
        }
    }

    /// Whether it is answered in any case, with what was asked for ("Communication").
    pub fn is_answered(&self) -> bool {
        use Request::*;
        matches!(self, GetFeatures | GetProtocolFeatures | GetQueueNum | GetMaxMemSlots | GetStatus)
            || matches!(self, GetVringBase { .. } | GetInflightFd(_))
    }

    /// How many file descriptors come with it.
    pub fn fds(&self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::SetMemTable(regions) => regions.len()..=regions.len(),
            Self::SetVringKick(ring) | Self::SetVringCall(ring) | Self::SetVringErr(ring) if !ring.polled => 1..=1,
            Self::AddMemReg(_) | Self::SetInflightFd(_) => 1..=1,
            // Some front-ends send one, which is passed over.
            Self::RemMemReg(_) => 0..=1,
            _ => 0..=0,
        }
    }

    /// The whole message.
    pub fn message(&self, kind: Kind) -> Vec<u8> {
        message(self.command() as u32, kind, &self.to_bytes())
    }
}

/// A message of a header and a payload.
pub(crate) fn message(command: u32, kind: Kind, payload: &[u8]) -> Vec<u8> {
    [&Header { command, kind, size: payload.len() as u32 }.to_bytes(), payload].concat()
}

/// What a back-end answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A number: features, queues, slots, a status; 0 for what was done and another for what was not ("REPLY_ACK").
    Number(u64),
    /// Where a ring stands.
    VringBase {
        /// Which ring.
        index: u32,
        /// Its next chain, see [`Base`](crate::Base).
        base: u32,
    },
    /// An area for what is in flight; its file comes with it.
    Inflight(InflightArea),
}
