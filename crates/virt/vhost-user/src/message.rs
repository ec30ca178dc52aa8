//! Messages of the protocol: headers, requests and replies. Quoted section names are those of QEMU's
//! *docs/interop/vhost-user.rst*.

use crate::Command;

/// Length of a header in bytes.
pub const HEADER: usize = 12;
/// Largest accepted payload in bytes.
pub const MAX_PAYLOAD: usize = 4096;
/// Largest number of regions in SET_MEM_TABLE, each of which has a file descriptor.
pub const MAX_TABLE: usize = 8;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request; some commands have a reply.
    Request,
    /// A request whose sender asks for an acknowledgement ("REPLY_ACK").
    NeedsReply,
    /// A reply.
    Reply,
}

/// Header of every message ("Header").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the [`Command`]; it may be unknown.
    pub command: u32,
    /// Request or reply.
    pub kind: Kind,
    /// Length of the payload in bytes.
    pub size: u32,
}

const VERSION_MASK: u32 = 3;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Error of an invalid header, after which the start of the next message is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The message is of another version of the protocol.
    #[error("a message of version {0} of the protocol; 1 is spoken here")]
    Version(u32),
    /// The payload is longer than [`MAX_PAYLOAD`].
    #[error("a message of {0} bytes; {MAX_PAYLOAD} are the most that any has")]
    Size(u32),
}

impl Header {
    /// Decodes and checks a header.
    pub fn parse(bytes: &[u8; HEADER]) -> Result<Self, Malformed> {
        let field = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let command = field(0);
        let flags = field(4);
        let size = field(8);
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

    /// Encodes the header.
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

/// Region of the guest's memory, in a file that comes with the message ("Memory regions description").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Guest address.
    pub guest: u64,
    /// Size in bytes.
    pub size: u64,
    /// Address in the front-end.
    pub user: u64,
    /// Offset of the region in the file, in bytes.
    pub offset: u64,
}

/// Addresses of a ring's parts in the front-end's address space ("A vring address description"). The log
/// address is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringAddr {
    /// Index of the ring.
    pub index: u32,
    /// Flags. Bit 0: writes to the used ring are to be logged.
    pub flags: u32,
    /// Address of the descriptors.
    pub descriptors: u64,
    /// Address of the used ring or the device's event suppression.
    pub used: u64,
    /// Address of the available ring or the driver's event suppression.
    pub available: u64,
}

/// Ring that a file descriptor is for, and whether the message carries one (bit 8 of the payload is set if
/// not).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringFd {
    /// Index of the ring.
    pub index: u8,
    /// Whether there is no file descriptor and the other end polls.
    pub polled: bool,
}

/// Area that records chains in flight, in a file that comes with the message or is requested ("Inflight
/// description").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightArea {
    /// Size in bytes; 0 in a request.
    pub size: u64,
    /// Offset of the area in the file, in bytes.
    pub offset: u64,
    /// Number of rings.
    pub queues: u16,
    /// Number of descriptors of each ring.
    pub queue_size: u16,
}

/// A decoded request to a back-end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<Region>),
    SetLogBase { size: u64, offset: u64 },
    SetLogFd,
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

/// Error of a message that is invalid or asks for something unsupported. The start of the next message is
/// known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Returns a [`Refusal`] as an error.
pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(why.into()))
}

impl Request {
    /// Returns the command of the request.
    pub fn command(&self) -> Command {
        match self {
            Self::GetFeatures => Command::GetFeatures,
            Self::SetFeatures(_) => Command::SetFeatures,
            Self::SetOwner => Command::SetOwner,
            Self::ResetOwner => Command::ResetOwner,
            Self::SetMemTable(_) => Command::SetMemTable,
            Self::SetLogBase { .. } => Command::SetLogBase,
            Self::SetLogFd => Command::SetLogFd,
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

    /// Returns whether the request always has a reply, with the value asked for ("Communication").
    pub fn is_answered(&self) -> bool {
        use Request::*;
        matches!(self, GetFeatures | GetProtocolFeatures | GetQueueNum | GetMaxMemSlots | GetStatus)
            || matches!(self, GetVringBase { .. } | GetInflightFd(_) | SetLogBase { .. })
    }

    /// Returns how many file descriptors come with the request.
    pub fn fds(&self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::SetMemTable(regions) => regions.len()..=regions.len(),
            Self::SetVringKick(ring) | Self::SetVringCall(ring) | Self::SetVringErr(ring) if !ring.polled => 1..=1,
            Self::AddMemReg(_) | Self::SetInflightFd(_) | Self::SetLogBase { .. } | Self::SetLogFd => 1..=1,
            // Some front-ends send one, which is ignored.
            Self::RemMemReg(_) => 0..=1,
            _ => 0..=0,
        }
    }

    /// Encodes the request as a message.
    pub fn message(&self, kind: Kind) -> Vec<u8> {
        message(self.command() as u32, kind, &self.to_bytes())
    }
}

/// Encodes a message from its command, kind and payload.
pub(crate) fn message(command: u32, kind: Kind, payload: &[u8]) -> Vec<u8> {
    [&Header { command, kind, size: payload.len() as u32 }.to_bytes(), payload].concat()
}

/// A back-end's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A number: features, queues, slots or a status. As an acknowledgement, 0 for success and any other
    /// value for failure ("REPLY_ACK").
    Number(u64),
    /// Position in a ring.
    VringBase {
        /// Index of the ring.
        index: u32,
        /// Its next chain, see [`VringBase`](crate::VringBase).
        base: u32,
    },
    /// An area that records chains in flight; its file comes with the reply.
    Inflight(InflightArea),
}
