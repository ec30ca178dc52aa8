//! Messages between a client and the serving process: netmap's own requests as programs make them, and replies
//! whose memory is passed by descriptor. Each is one little-endian message of fixed size, except for a text at
//! the end of a reply.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::Pools;
use crate::request::{AskedMemory, AskedOffsets, Fields, Header, InvalidRequest, Kind, Register};

/// A request as the program made it: its header, and its body padded with zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The request's header. Addresses in it have no meaning here.
    pub header: [u8; Header::LEN],
    /// The request's body.
    pub body: [u8; BODY],
}

/// Offset of a connection's cookie in a request's header.
const COOKIE: usize = 72;

/// Bytes of the longest body.
pub const BODY: usize = 64;

/// Kind of request that netmap does not have: asks for the server's status as JSON, in pages.
pub const STATUS: u16 = 0x8000;

/// Kind of request that netmap does not have: makes a memory of the file that comes with it, for the connection's registration, as
/// `NETMAP_REQ_OPT_EXTMEM` does. The offset of the first pool is that of the memory in the file.
pub const EXTERNAL: u16 = 0x8002;

/// Kind of request that netmap does not have: asks for the registration of another connection, for a process that has the descriptor
/// of that, too.
pub const ADOPT: u16 = 0x8003;

/// Kind of request that netmap does not have: ends the connection's registration, after which another one may follow.
pub const UNREGISTER: u16 = 0x8004;

/// Kind of request that netmap does not have: sets where frames begin in the buffers of the rings of the connection's registration,
/// as `NETMAP_REQ_OPT_OFFSETS` does.
pub const OFFSETS: u16 = 0x8001;

impl Request {
    /// Bytes of a request.
    pub const LEN: usize = Header::LEN + BODY;

    /// Creates a request about a port, with a body of at most [`BODY`] bytes.
    ///
    /// # Panics
    /// If the body is longer.
    pub fn new(kind: Kind, port: &str, body: &[u8]) -> Self {
        let mut request = Self { header: Header::bytes(kind as u16, port), body: [0; BODY] };
        request.body[..body.len()].copy_from_slice(body);
        request
    }

    /// Creates a request to register a port.
    pub fn register(port: &str, register: &Register) -> Self {
        Self::new(Kind::Register, port, &register.bytes())
    }

    /// Creates a request for the server's status: for a new one from `offset` 0 on, else for the next page of the
    /// last one. The reply's body begins with the length of the whole text.
    pub fn status(offset: u64) -> Self {
        let mut body = [0; BODY];
        body[..8].copy_from_slice(&offset.to_le_bytes());
        Self { header: Header::bytes(STATUS, ""), body }
    }

    /// Creates a request for a memory from `offset` on of the file that is sent with it.
    pub fn external(asked: &AskedMemory, offset: u64) -> Self {
        let mut asked = *asked;
        asked.pools[0].offset = offset;
        let body = asked.bytes().try_into().expect("64 bytes");
        Self { header: Header::bytes(EXTERNAL, ""), body }
    }

    /// Returns the memory that it asks for, and where that is in its file; `None` if it asks for something else.
    pub fn as_external(&self) -> Option<(AskedMemory, u64)> {
        let asked = AskedMemory::parse(&self.body);
        (self.kind() == EXTERNAL).then_some((asked, asked.pools[0].offset))
    }

    /// Tells the server the kernel's cookie of the program's end of the connection, by which other processes may [adopt](ADOPT) the
    /// registration. It lies where netmap has an address of the program.
    pub fn with_cookie(mut self, cookie: u64) -> Self {
        self.header[COOKIE..COOKIE + 8].copy_from_slice(&cookie.to_le_bytes());
        self
    }

    /// The cookie of the connection; 0 for none.
    pub fn cookie(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|n| self.header[COOKIE + n]))
    }

    /// Creates a request for the registration of the connection with a cookie.
    pub fn adopt(cookie: u64) -> Self {
        Self { header: Header::bytes(ADOPT, ""), body: [0; BODY] }.with_cookie(cookie)
    }

    /// Creates a request to end the connection's registration.
    pub fn unregister() -> Self {
        Self { header: Header::bytes(UNREGISTER, ""), body: [0; BODY] }
    }

    /// Creates a request for offsets.
    pub fn offsets(asked: &AskedOffsets) -> Self {
        let mut body = [0; BODY];
        body[..AskedOffsets::LEN].copy_from_slice(&asked.bytes());
        Self { header: Header::bytes(OFFSETS, ""), body }
    }

    /// Returns the offsets that it asks for; `None` if it asks for something else.
    pub fn as_offsets(&self) -> Option<AskedOffsets> {
        let asked = AskedOffsets::parse(self.body.first_chunk().expect("64 bytes"));
        (self.kind() == OFFSETS).then_some(asked)
    }

    /// Parses a request.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let (header, body) = bytes.split_first_chunk().expect("a header");
        Self { header: *header, body: body.try_into().expect("the rest") }
    }

    /// Serialises the request.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.header[..], &self.body].concat()
    }

    /// Kind of the request, netmap's or one of those above.
    pub fn kind(&self) -> u16 {
        u16::from_le_bytes([self.header[2], self.header[3]])
    }

    /// Offset in bytes at which it asks for the [`STATUS`]; `None` if it asks for something else.
    pub fn as_status(&self) -> Option<u64> {
        let offset = u64::from_le_bytes(*self.body.first_chunk().expect("64 bytes"));
        (self.kind() == STATUS).then_some(offset)
    }

    /// Parses the body as a registration.
    pub fn as_register(&self) -> Result<Register, InvalidRequest> {
        Register::parse(self.body.first_chunk().expect("64 bytes"))
    }
}

/// The other side of a port's rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingPeer {
    /// A server.
    #[default]
    Server,
    /// The other end of a pipe.
    Pipe {
        /// Offset of the other end's interface descriptor.
        other: u64,
        /// Whether the program has the first end.
        first: bool,
    },
    /// Both ends of a pipe, which the program monitors.
    Monitored {
        /// Number of Tx rings and Rx rings of the first end.
        rings: [u16; 2],
        /// Whether the program monitors the first end.
        first: bool,
    },
}

/// Number of descriptors that come with each registration: the memory, the CSB, the eventfd that wakes the program and
/// the one that wakes the other side. With an end of a pipe, the memory for [monitors](crate::Tap) follows, and the eventfd that wakes
/// them; with a monitor of a pipe, that memory.
pub const FDS: usize = 4;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Error number as netmap defines it, if the request was refused.
    pub errno: Option<Errno>,
    /// The request's body as granted.
    pub body: [u8; BODY],
    /// Pools of the memory of a granted registration. The program does not see them.
    pub pools: Pools,
    /// Other side of its rings.
    pub peer: RingPeer,
    /// Reason of an error, in a line; otherwise the result, if that is a text.
    pub text: String,
}

impl Reply {
    /// Bytes of a reply before the text.
    pub const LEN: usize = 8 + BODY + 32;
    /// Bytes of the longest text.
    pub const MAX_TEXT_LEN: usize = 1 << 20;

    /// Creates a reply with a body.
    pub fn granted(body: &[u8]) -> Self {
        let mut reply = Self::text(None, String::new());
        reply.body[..body.len()].copy_from_slice(body);
        reply
    }

    /// Creates a reply to a registration, whose memory begins at `offset` of its file.
    pub fn registered(register: &Register, offset: u64) -> Self {
        let mut reply = Self::granted(&register.bytes());
        reply.body[Register::LEN..].copy_from_slice(&offset.to_le_bytes());
        reply
    }

    /// Where the memory of a registration begins in its file.
    pub fn memory_offset(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|n| self.body[Register::LEN + n]))
    }

    /// Creates a reply with a text.
    pub fn text(errno: Option<Errno>, text: String) -> Self {
        Self { errno, body: [0; BODY], pools: Pools::default(), peer: RingPeer::Server, text }
    }

    /// Creates a reply with a page of a text that has `total` bytes.
    pub fn page(total: u64, page: &str) -> Self {
        let mut reply = Self::text(None, page.to_owned());
        reply.body[..8].copy_from_slice(&total.to_le_bytes());
        reply
    }

    /// Serialises the reply.
    pub fn bytes(&self) -> Vec<u8> {
        let errno = self.errno.map_or(0, Errno::raw_os_error) as u32;
        let Self { pools, peer, .. } = self;
        let (other, kind) = match *peer {
            RingPeer::Server => (0, 0),
            RingPeer::Pipe { other, first } => (other, if first { 1 } else { 2 }),
            RingPeer::Monitored { rings: [tx, rx], first } => {
                (u64::from(tx) | u64::from(rx) << 16, if first { 3 } else { 4 })
            }
        };
        let mut bytes = [errno, self.text.len() as u32].map(u32::to_le_bytes).concat();
        bytes.extend(self.body);
        bytes.extend([other, pools.ring_bytes as u64].map(u64::to_le_bytes).concat());
        bytes.extend([pools.interfaces, pools.buffers, pools.buffer_size, kind].map(u32::to_le_bytes).concat());
        bytes.extend(self.text.bytes());
        bytes
    }

    /// Returns the length of a reply in bytes, from its start; `None` if the text would be too long.
    pub fn len_of(start: &[u8; Self::LEN]) -> Option<usize> {
        let text = u32::from_le_bytes([4, 5, 6, 7].map(|at| start[at])) as usize;
        (text <= Self::MAX_TEXT_LEN).then_some(Self::LEN + text)
    }

    /// Parses a reply; `None` if it is malformed or names pools that no region can have.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (start, text) = bytes.split_first_chunk::<{ Self::LEN }>()?;
        if Self::len_of(start)? != bytes.len() {
            return None;
        }
        let mut fields = Fields(start);
        let (errno, _) = (fields.u32() as i32, fields.u32());
        let body = fields.take();
        let (other, ring_bytes) = (fields.u64(), fields.u64() as usize);
        let interfaces = fields.u32();
        let buffers = fields.u32();
        let buffer_size = fields.u32();
        let peer = match fields.u32() {
            0 => RingPeer::Server,
            kind @ (1 | 2) => RingPeer::Pipe { other, first: kind == 1 },
            kind => RingPeer::Monitored { rings: [other as u16, (other >> 16) as u16], first: kind == 3 },
        };
        let pools = Pools { interfaces, ring_bytes, buffers, buffer_size };
        if !pools.are_bounded() {
            return None;
        }
        let errno = (errno != 0).then(|| Errno::from_raw_os_error(errno.clamp(1, 4095)));
        Some(Self { errno, body, pools, peer, text: String::from_utf8(text.to_vec()).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_come_as_they_go() {
        let register = Register { slots: [512, 256], memory_id: 7, ..Register::default() };
        let request = Request::register("vale0:1", &register);
        let bytes: [u8; Request::LEN] = request.bytes().try_into().unwrap();
        assert_eq!(Request::parse(&bytes), request);
        assert_eq!(request.as_register(), Ok(register.clone()));
        assert_eq!(Header::parse(&request.header).unwrap().name, "vale0:1");
        assert_eq!((Request::status(5).as_status(), request.as_status()), (Some(5), None));
        assert_eq!((Request::adopt(77).cookie(), Request::adopt(77).kind(), request.cookie()), (77, ADOPT, 0));
        assert_eq!(Reply::registered(&register, 4096).memory_offset(), 4096);
        let asked = AskedOffsets { max: 128, initial: 64, bits: 16, ..AskedOffsets::default() };
        assert_eq!((Request::offsets(&asked).as_offsets(), request.as_offsets()), (Some(asked), None));
        let peer = [
            RingPeer::Server,
            RingPeer::Pipe { other: 77, first: true },
            RingPeer::Pipe { other: 0, first: false },
            RingPeer::Monitored { rings: [2, 16], first: true },
            RingPeer::Monitored { rings: [1, 3], first: false },
        ];
        for peer in peer {
            let reply = Reply { peer, ..Reply::granted(&register.bytes()) };
            assert_eq!(Reply::parse(&reply.bytes()), Some(reply.clone()));
            assert_eq!(Register::parse(reply.body.first_chunk().unwrap()), Ok(register.clone()));
        }
        let boundless = [
            Pools { ring_bytes: usize::MAX, ..Pools::default() },
            Pools { buffers: u32::MAX, buffer_size: u32::MAX, ..Pools::default() },
        ];
        for pools in boundless {
            let reply = Reply { pools, ..Reply::granted(&register.bytes()) };
            assert_eq!(Reply::parse(&reply.bytes()), None, "{pools:?}");
        }
        let reply = Reply::text(Some(Errno::BUSY), "somebody has it".into());
        let bytes = reply.bytes();
        assert_eq!(Reply::len_of(bytes.first_chunk().unwrap()), Some(bytes.len()));
        assert_eq!(Reply::parse(&bytes), Some(reply));
        assert_eq!(Reply::parse(&bytes[1..]), None);
        assert_eq!(Reply::parse(&bytes[..bytes.len() - 1]), None);
        let mut long = bytes;
        long[4..8].copy_from_slice(&(Reply::MAX_TEXT_LEN as u32 + 1).to_le_bytes());
        assert_eq!(Reply::len_of(long.first_chunk().unwrap()), None);
    }
}
