//! Requests that programs make by `ioctl`, as bytes: netmap's requests of API 14 and 15, and the legacy ones
//! before them. Parsing is pure: it follows no address and trusts no value.

mod asked_memory;
mod asked_offsets;
mod legacy;
mod name;
mod new_port;
mod port_info;
mod vale_polling;

pub use asked_memory::{AskedMemory, AskedPool};
pub use asked_offsets::AskedOffsets;
pub use legacy::LegacyRequest;
pub use name::PortName;
pub use new_port::NewPort;
pub use port_info::PortInfo;
pub use vale_polling::ValePolling;

use crate::layout::{API, API_RANGE};

/// `NIOCCTRL`: a request with a [`Header`] of 88 bytes.
pub const NIOCCTRL: u64 = 0xc058_6997;
/// `NIOCTXSYNC`: synchronises the Tx rings.
pub const NIOCTXSYNC: u64 = 0x6994;
/// `NIOCRXSYNC`: synchronises the Rx rings.
pub const NIOCRXSYNC: u64 = 0x6995;
/// `NIOCREGIF`: a [`LegacyRequest`] of 60 bytes that registers a port.
pub const NIOCREGIF: u64 = 0xc03c_6992;
/// `NIOCGINFO`: a [`LegacyRequest`] of 60 bytes that queries a port.
pub const NIOCGINFO: u64 = 0xc03c_6991;

/// Kind of a request (`NETMAP_REQ_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are netmap's")]
pub enum Kind {
    Register = 1,
    PortInfoGet,
    ValeAttach,
    ValeDetach,
    ValeList,
    PortHdrSet,
    PortHdrGet,
    ValeNewif,
    ValeDelif,
    ValePollingEnable,
    ValePollingDisable,
    PoolsInfoGet,
    SyncKloopStart,
    SyncKloopStop,
    CsbEnable,
}

impl Kind {
    const ALL: [Self; 15] = [
        Self::Register,
        Self::PortInfoGet,
        Self::ValeAttach,
        Self::ValeDetach,
        Self::ValeList,
        Self::PortHdrSet,
        Self::PortHdrGet,
        Self::ValeNewif,
        Self::ValeDelif,
        Self::ValePollingEnable,
        Self::ValePollingDisable,
        Self::PoolsInfoGet,
        Self::SyncKloopStart,
        Self::SyncKloopStop,
        Self::CsbEnable,
    ];
}

/// Why a request or a name is malformed. Programs get `EINVAL`, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// Unsupported version of the interface.
    #[error("version {0} of netmap's interface; 14 and 15 are spoken here")]
    Version(u32),
    /// Unknown kind of request.
    #[error("request {0}, which netmap does not have")]
    Kind(u16),
    /// A reserved field is not 0.
    #[error("a reserved field that is not 0")]
    Reserved,
    /// A name is not UTF-8.
    #[error("a name that is not text")]
    Name,
    /// A request with a body has none, or one without a body has one.
    #[error("a request whose body is missing, or one too many")]
    Body,
    /// Unknown registration mode.
    #[error("mode {0} of registration, which netmap does not have")]
    Mode(u32),
    /// A name that users write cannot be parsed.
    #[error("'{name}' is not a netmap port: {why}")]
    Port {
        /// The name.
        name: String,
        /// Reason why it is refused.
        why: &'static str,
    },
    /// No name in a request's header: `ENXIO`.
    #[error("a port without a name")]
    NoName,
    /// A pipe or its port has no name.
    #[error("'{0}': a pipe and its port have names")]
    Pipe(String),
    /// A name of VALE without a switch or a port: `ENOMEM`, because netmap finds no switch.
    #[error("'{0}': a VALE port is called valeSWITCH:PORT, by letters, digits and '_'")]
    Vale(String),
}

/// Reads numbers and bytes one after the other.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().expect("as many as the struct has");
        self.0 = rest;
        *first
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// Reads a text that ends with a zero, or with the byte before the last.
    fn text<const N: usize>(&mut self) -> Result<String, InvalidRequest> {
        let bytes = self.take::<N>();
        let text = bytes[..N - 1].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8(text.to_vec()).map_err(|_| InvalidRequest::Name)
    }
}

/// Header of each request (`struct nmreq_header`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the request.
    pub kind: Kind,
    /// Name of the port.
    pub name: String,
    /// Address of the first option in the program's memory, or 0.
    pub options: u64,
    /// Address of the request's body in the program's memory, or 0.
    pub body: u64,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 88;

    /// Parses a header.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, InvalidRequest> {
        let mut fields = Fields(bytes);
        let version = fields.u16();
        let kind = fields.u16();
        let reserved = fields.u32();
        if !API_RANGE.contains(&version) {
            return Err(InvalidRequest::Version(version.into()));
        }
        let known = Kind::ALL.into_iter().find(|&known| known as u16 == kind).ok_or(InvalidRequest::Kind(kind))?;
        if reserved != 0 {
            return Err(InvalidRequest::Reserved);
        }
        Ok(Self { kind: known, name: fields.text::<64>()?, options: fields.u64(), body: fields.u64() })
    }

    /// Serialises the header of a request about a port, without options. Names longer than 63 bytes are
    /// truncated.
    pub fn bytes(kind: u16, port: &str) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..2].copy_from_slice(&API.to_le_bytes());
        bytes[2..4].copy_from_slice(&kind.to_le_bytes());
        write_name(&mut bytes, port);
        bytes
    }

    /// Returns the header with another name, for a reply.
    pub fn renamed(mut bytes: [u8; Self::LEN], port: &str) -> [u8; Self::LEN] {
        write_name(&mut bytes, port);
        bytes
    }
}

/// Writes the name, truncated to 63 bytes and padded with zeros.
fn write_name(header: &mut [u8; Header::LEN], port: &str) {
    let name = port.bytes().take(63).chain(std::iter::repeat(0));
    header[8..72].iter_mut().zip(name).for_each(|(to, byte)| *to = byte);
}

/// Which rings of a port are registered (`NR_REG_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All rings but the host's.
    #[default]
    AllNic = 1,
    /// The host's rings.
    Host,
    /// All rings.
    NicAndHost,
    /// One ring, by its number.
    OneNic,
    /// The first end of a pipe, as only [legacy requests](LegacyRequest) select it.
    PipeMaster,
    /// The second end of a pipe, as only legacy requests select it.
    PipeSlave,
    /// No rings.
    Null,
    /// One of the host's rings, by its number.
    OneHost,
}

impl Mode {
    const ALL: [Self; 8] = [
        Self::AllNic,
        Self::Host,
        Self::NicAndHost,
        Self::OneNic,
        Self::PipeMaster,
        Self::PipeSlave,
        Self::Null,
        Self::OneHost,
    ];

    fn of(number: u32) -> Result<Self, InvalidRequest> {
        Self::ALL.into_iter().find(|&mode| mode as u32 == number).ok_or(InvalidRequest::Mode(number))
    }
}

/// Flags of a registration.
pub mod register {
    /// Monitor what the port's programs send.
    pub const MONITOR_TX: u64 = 0x100;
    /// Monitor what the port's programs receive.
    pub const MONITOR_RX: u64 = 0x200;
    /// Monitor without copying the frames.
    pub const ZERO_COPY_MONITOR: u64 = 0x400;
    /// No other program may have the port.
    pub const EXCLUSIVE: u64 = 0x800;
    /// Only the Rx rings.
    pub const RX_ONLY: u64 = 0x2000;
    /// Only the Tx rings.
    pub const TX_ONLY: u64 = 0x4000;
    /// The program accepts frames behind a virtio-net header.
    pub const ACCEPTS_VNET_HEADER: u64 = 0x8000;
    /// `poll` for Tx room synchronises the Rx rings, too.
    pub const DO_RX_POLL: u64 = 0x10000;
    /// `poll` synchronises the Tx rings only if it is asked for Tx room.
    pub const NO_TX_POLL: u64 = 0x20000;
}

/// A registration, as requested and as granted (`struct nmreq_register`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Register {
    /// Offset of the interface descriptor in the memory. Granted.
    pub offset: u64,
    /// Bytes of the memory. Granted.
    pub memory_size: u64,
    /// Slots of Tx and Rx rings; 0 for the default.
    pub slots: [u32; 2],
    /// Number of Tx and Rx rings.
    pub rings: [u16; 2],
    /// Number of the host's Tx and Rx rings.
    pub host_rings: [u16; 2],
    /// Number of the memory; 0 for any.
    pub memory_id: u16,
    /// Number of the ring, in modes for a single ring.
    pub ring: u16,
    /// Which rings are registered.
    pub mode: Mode,
    /// Number of extra buffers, besides those of the rings.
    pub extra_buffers: u32,
    /// Flags; see the module [`register`].
    pub flags: u64,
}

impl Register {
    /// Bytes of a registration.
    pub const LEN: usize = 56;

    /// Parses a registration.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, InvalidRequest> {
        let mut fields = Fields(bytes);
        let (offset, memory_size) = (fields.u64(), fields.u64());
        let slots = [fields.u32(), fields.u32()];
        let (rings, host_rings) = ([fields.u16(), fields.u16()], [fields.u16(), fields.u16()]);
        let memory_id = fields.u16();
        let ring = fields.u16();
        let mode = Mode::of(fields.u32())?;
        // Padding follows, in which programs leave anything.
        let (extra_buffers, _) = (fields.u32(), fields.u32());
        let flags = fields.u64();
        Ok(Self { offset, memory_size, slots, rings, host_rings, memory_id, ring, mode, extra_buffers, flags })
    }

    /// Serialises the registration.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = Vec::with_capacity(Self::LEN);
        bytes.extend([self.offset, self.memory_size].map(u64::to_le_bytes).concat());
        bytes.extend(self.slots.map(u32::to_le_bytes).concat());
        bytes.extend([self.rings, self.host_rings].concat().into_iter().flat_map(u16::to_le_bytes));
        bytes.extend([self.memory_id, self.ring].map(u16::to_le_bytes).concat());
        bytes.extend([self.mode as u32, self.extra_buffers, 0].map(u32::to_le_bytes).concat());
        bytes.extend(self.flags.to_le_bytes());
        bytes.try_into().expect("56 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u16, kind: u16, reserved: u32, name: &[u8]) -> [u8; 88] {
        let mut bytes = [0; 88];
        bytes[..2].copy_from_slice(&version.to_le_bytes());
        bytes[2..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&reserved.to_le_bytes());
        bytes[8..8 + name.len()].copy_from_slice(name);
        bytes[72..80].copy_from_slice(&0x1111_u64.to_le_bytes());
        bytes[80..].copy_from_slice(&0x2222_u64.to_le_bytes());
        bytes
    }

    #[test]
    fn headers_are_taken_apart() {
        let right = Header { kind: Kind::PortHdrGet, name: "vale0:1".into(), options: 0x1111, body: 0x2222 };
        assert_eq!(Header::parse(&header(14, 7, 0, b"vale0:1")), Ok(right));
        assert_eq!(Header::parse(&header(14, 1, 0, &[b'x'; 64])).unwrap().name, "x".repeat(63));
        assert_eq!(Header::parse(&header(15, 15, 0, b"")).map(|header| header.kind), Ok(Kind::CsbEnable));
        for (bytes, why) in [
            (header(13, 1, 0, b"x"), InvalidRequest::Version(13)),
            (header(16, 1, 0, b"x"), InvalidRequest::Version(16)),
            (header(14, 0, 0, b"x"), InvalidRequest::Kind(0)),
            (header(14, 16, 0, b"x"), InvalidRequest::Kind(16)),
            (header(14, 1, 1, b"x"), InvalidRequest::Reserved),
            (header(14, 1, 0, b"\xff"), InvalidRequest::Name),
        ] {
            assert_eq!(Header::parse(&bytes), Err(why));
        }
    }

    /// Each field is at netmap's offset.
    #[test]
    fn registrations_are_taken_apart_and_put_together() {
        let register = Register {
            offset: 0x0807_0605_0403_0201,
            memory_size: 42_369_024,
            slots: [1024, 512],
            rings: [1, 2],
            host_rings: [3, 4],
            memory_id: 5,
            ring: 6,
            mode: Mode::OneNic,
            extra_buffers: 8,
            flags: register::EXCLUSIVE,
        };
        let bytes = register.bytes();
        assert_eq!(bytes[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[8..16], 42_369_024_u64.to_le_bytes());
        assert_eq!((&bytes[16..20], &bytes[20..24]), (&1024_u32.to_le_bytes()[..], &512_u32.to_le_bytes()[..]));
        assert_eq!([24, 26, 28, 30, 32, 34, 36, 40].map(|at| bytes[at]), [1, 2, 3, 4, 5, 6, 4, 8]);
        assert_eq!(bytes[48..], 0x800_u64.to_le_bytes());
        assert_eq!(Register::parse(&bytes), Ok(register));
        for mode in [0, 9, u32::MAX] {
            let mut bytes = bytes;
            bytes[36..40].copy_from_slice(&mode.to_le_bytes());
            assert_eq!(Register::parse(&bytes), Err(InvalidRequest::Mode(mode)));
        }
        let mut bytes = bytes;
        bytes[44] = 1;
        assert!(Register::parse(&bytes).is_ok(), "padding");
    }
}
