//! Message headers and requests, as pure functions on bytes. All numbers are in this machine's byte order.

use crate::{Ended, Refusal};
use rustix::io::Errno;

/// Most register writes in one message: as many as QEMU gathers (`VFIO_USER_MULTI_MAX`). With more, one message
/// could hold up the other devices of a server for longer than a turn.
const MAX_WRITES: u64 = 200;

/// Size of a header in bytes.
pub const HEADER: usize = 16;
/// Most bytes of data in one message.
pub const MAX_TRANSFER: usize = 64 << 10;
/// Largest message in bytes.
pub const MAX_MESSAGE: usize = HEADER + 16 + MAX_TRANSFER;

/// Command of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceGetInfo = 4,
    DeviceGetRegionInfo = 5,
    DeviceGetRegionIoFds = 6,
    DeviceGetIrqInfo = 7,
    DeviceSetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    DeviceReset = 13,
    RegionWriteMulti = 15,
}

impl Command {
    /// All commands.
    pub const ALL: [Self; 12] = [
        Self::Version,
        Self::DmaMap,
        Self::DmaUnmap,
        Self::DeviceGetInfo,
        Self::DeviceGetRegionInfo,
        Self::DeviceGetRegionIoFds,
        Self::DeviceGetIrqInfo,
        Self::DeviceSetIrqs,
        Self::RegionRead,
        Self::RegionWrite,
        Self::DeviceReset,
        Self::RegionWriteMulti,
    ];

    /// Returns the command with a number, if it is known.
    pub fn of(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|&command| command as u16 == number)
    }
}

/// Direction and outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request that is answered.
    Command,
    /// A request that is not answered.
    Posted,
    /// A successful answer.
    Reply,
    /// An answer that reports an error.
    Error,
}

/// The header that every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number chosen by the client, repeated in the reply.
    pub id: u16,
    /// Number of the [`Command`].
    pub command: u16,
    /// Size of the message in bytes, including the header.
    pub size: u32,
    /// Request or reply.
    pub kind: Kind,
    /// Error number, in an error reply.
    pub error: u32,
}

const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

impl Header {
    /// Parses a header and checks that its kind and size are valid.
    pub fn parse(bytes: &[u8; HEADER]) -> Result<Self, Ended> {
        let mut fields = Fields(bytes);
        let (id, command, size, flags, error) =
            (|| Ok((fields.u16()?, fields.u16()?, fields.u32()?, fields.u32()?, fields.u32()?)))()
                .map_err(|_: Refusal| Ended::Malformed("half a header"))?;
        let kind = match flags & TYPE {
            0 if flags & NO_REPLY != 0 => Kind::Posted,
            0 => Kind::Command,
            REPLY if flags & ERROR != 0 => Kind::Error,
            REPLY => Kind::Reply,
            _ => return Err(Ended::Malformed("a message that is neither a command nor a reply")),
        };
        match size as usize {
            ..HEADER => Err(Ended::Malformed("a message shorter than its header")),
            HEADER..=MAX_MESSAGE => Ok(Self { id, command, size, kind, error }),
            _ => Err(Ended::Malformed("a message longer than was agreed on")),
        }
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(self) -> [u8; HEADER] {
        let flags = match self.kind {
            Kind::Command => 0,
            Kind::Posted => NO_REPLY,
            Kind::Reply => REPLY,
            Kind::Error => REPLY | ERROR,
        };
        let mut bytes = [0; HEADER];
        bytes[0..2].copy_from_slice(&self.id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_ne_bytes());
        bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.error.to_ne_bytes());
        bytes
    }
}

/// The fields of a message, read from the front.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let (first, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Refusal> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Refusal> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Refusal> {
        self.array().map(u64::from_ne_bytes)
    }

    fn end(&self) -> Result<(), Refusal> {
        if self.0.is_empty() { Ok(()) } else { Err(Refusal::invalid("a message longer than its command has it")) }
    }
}

const SHORT: Refusal =
    Refusal { errno: Errno::INVAL, why: std::borrow::Cow::Borrowed("a message shorter than its command has it") };

/// One of several writes in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Offset in the region.
    pub offset: u64,
    /// Index of the region.
    pub region: u32,
    /// Bytes of `data` to write, 1 to 8.
    pub count: u32,
    /// The data, of which the first `count` bytes are used.
    pub data: [u8; 8],
}

/// A client's request, with its sizes checked. `argsz` is the largest reply that the client has room for, in
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the specification's")]
pub enum Request<'a> {
    Version { major: u16, minor: u16, data: &'a [u8] },
    DmaMap { flags: u32, offset: u64, address: u64, size: u64 },
    DmaUnmap { flags: u32, address: u64, size: u64 },
    DeviceInfo { argsz: u32 },
    RegionInfo { argsz: u32, index: u32 },
    RegionIoFds { argsz: u32, index: u32 },
    IrqInfo { argsz: u32, index: u32 },
    SetIrqs { flags: u32, index: u32, start: u32, count: u32 },
    RegionRead { offset: u64, region: u32, count: u32 },
    RegionWrite { offset: u64, region: u32, data: &'a [u8] },
    RegionWriteMulti { writes: &'a [u8] },
    Reset,
}

/// Flags of `SET_IRQS`.
pub(crate) mod irq_set {
    pub const DATA_NONE: u32 = 1 << 0;
    pub const DATA_BOOL: u32 = 1 << 1;
    pub const DATA_EVENTFD: u32 = 1 << 2;
    pub const ACTION_TRIGGER: u32 = 1 << 5;
}

/// Size of a [`Write`] in a message, in bytes.
const WRITE: usize = 24;

impl<'a> Request<'a> {
    /// Parses the body of a message. Nothing is allocated, and counts never exceed the data that is there.
    pub fn parse(command: u16, body: &'a [u8]) -> Result<Self, Refusal> {
        let unknown = || Refusal::new(Errno::OPNOTSUPP, format!("a command {command} that is not known here"));
        let mut f = Fields(body);
        let request = match Command::of(command).ok_or_else(unknown)? {
            Command::Version => {
                let (major, minor) = (f.u16()?, f.u16()?);
                return Ok(Self::Version { major, minor, data: f.0 });
            }
            Command::DmaMap => {
                let (_argsz, flags) = (f.u32()?, f.u32()?);
                Self::DmaMap { flags, offset: f.u64()?, address: f.u64()?, size: f.u64()? }
            }
            Command::DmaUnmap => {
                let (_argsz, flags) = (f.u32()?, f.u32()?);
                Self::DmaUnmap { flags, address: f.u64()?, size: f.u64()? }
            }
            Command::DeviceGetInfo => {
                let argsz = f.u32()?;
                let _flags = f.u32()?;
                let _regions = f.u32()?;
                let _irqs = f.u32()?;
                Self::DeviceInfo { argsz }
            }
            Command::DeviceGetRegionInfo => {
                let argsz = f.u32()?;
                let _flags = f.u32()?;
                let index = f.u32()?;
                let _cap = f.u32()?;
                let (_size, _offset) = (f.u64()?, f.u64()?);
                Self::RegionInfo { argsz, index }
            }
            Command::DeviceGetRegionIoFds => {
                let argsz = f.u32()?;
                let _flags = f.u32()?;
                let index = f.u32()?;
                let _count = f.u32()?;
                Self::RegionIoFds { argsz, index }
            }
            Command::DeviceGetIrqInfo => {
                let argsz = f.u32()?;
                let _flags = f.u32()?;
                let index = f.u32()?;
                let _count = f.u32()?;
                Self::IrqInfo { argsz, index }
            }
            Command::DeviceSetIrqs => {
                let _argsz = f.u32()?;
                let flags = f.u32()?;
                let index = f.u32()?;
                let (start, count) = (f.u32()?, f.u32()?);
                if flags & irq_set::DATA_BOOL != 0 {
                    f.0 = f.0.get(count as usize..).ok_or(SHORT)?;
                }
                Self::SetIrqs { flags, index, start, count }
            }
            Command::RegionRead => {
                let offset = f.u64()?;
                let region = f.u32()?;
                let count = f.u32()?;
                if count == 0 || count as usize > MAX_TRANSFER {
                    return Err(Refusal::invalid(format!(
                        "a read of {count} bytes; 1 to {MAX_TRANSFER} are agreed on"
                    )));
                }
                Self::RegionRead { offset, region, count }
            }
            Command::RegionWrite => {
                let offset = f.u64()?;
                let region = f.u32()?;
                let count = f.u32()?;
                if count == 0 || count as usize != f.0.len() {
                    return Err(Refusal::invalid(format!("a write of {count} bytes with {} of data", f.0.len())));
                }
                return Ok(Self::RegionWrite { offset, region, data: f.0 });
            }
            Command::RegionWriteMulti => {
                let count = f.u64()?;
                if count > MAX_WRITES {
                    return Err(Refusal::invalid(format!(
                        "{count} writes in a message; at most {MAX_WRITES} are taken"
                    )));
                }
                if (f.0.len() / WRITE) as u64 != count || !f.0.len().is_multiple_of(WRITE) {
                    return Err(Refusal::invalid(format!("{count} writes in {} bytes", f.0.len())));
                }
                return Ok(Self::RegionWriteMulti { writes: f.0 });
            }
            Command::DeviceReset => Self::Reset,
        };
        f.end()?;
        Ok(request)
    }

    /// Iterates over the writes of a `RegionWriteMulti`.
    pub fn writes(writes: &'a [u8]) -> impl Iterator<Item = Result<Write, Refusal>> + 'a {
        writes.chunks_exact(WRITE).map(|bytes| {
            let mut f = Fields(bytes);
            let write = Write { offset: f.u64()?, region: f.u32()?, count: f.u32()?, data: f.array()? };
            match write.count {
                1..=8 => Ok(write),
                count => Err(Refusal::invalid(format!("a write of {count} bytes among several; those have 1 to 8"))),
            }
        })
    }

    /// Returns the command of this request.
    pub fn command(&self) -> Command {
        match self {
            Self::Version { .. } => Command::Version,
            Self::DmaMap { .. } => Command::DmaMap,
            Self::DmaUnmap { .. } => Command::DmaUnmap,
            Self::DeviceInfo { .. } => Command::DeviceGetInfo,
            Self::RegionInfo { .. } => Command::DeviceGetRegionInfo,
            Self::RegionIoFds { .. } => Command::DeviceGetRegionIoFds,
            Self::IrqInfo { .. } => Command::DeviceGetIrqInfo,
            Self::SetIrqs { .. } => Command::DeviceSetIrqs,
            Self::RegionRead { .. } => Command::RegionRead,
            Self::RegionWrite { .. } => Command::RegionWrite,
            Self::RegionWriteMulti { .. } => Command::RegionWriteMulti,
            Self::Reset => Command::DeviceReset,
        }
    }

    /// Returns the body of the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = Body::default();
        match *self {
            Self::Version { major, minor, data } => b.u16(major).u16(minor).bytes(data),
            Self::DmaMap { flags, offset, address, size } => b.u32(32).u32(flags).u64(offset).u64(address).u64(size),
            Self::DmaUnmap { flags, address, size } => b.u32(24).u32(flags).u64(address).u64(size),
            Self::DeviceInfo { argsz } => b.u32(argsz).u32(0).u64(0),
            Self::RegionInfo { argsz, index } => b.u32(argsz).u32(0).u32(index).u32(0).u64(0).u64(0),
            Self::RegionIoFds { argsz, index } | Self::IrqInfo { argsz, index } => {
                b.u32(argsz).u32(0).u32(index).u32(0)
            }
            Self::SetIrqs { flags, index, start, count } => b.u32(20).u32(flags).u32(index).u32(start).u32(count),
            Self::RegionRead { offset, region, count } => b.u64(offset).u32(region).u32(count),
            Self::RegionWrite { offset, region, data } => b.u64(offset).u32(region).u32(data.len() as u32).bytes(data),
            Self::RegionWriteMulti { writes } => b.u64((writes.len() / WRITE) as u64).bytes(writes),
            Self::Reset => &mut b,
        };
        b.0
    }
}

/// The body of a message under construction.
#[derive(Default)]
pub(crate) struct Body(pub Vec<u8>);

impl Body {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }
}
