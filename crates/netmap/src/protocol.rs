//! What a client and the serving process say to each other: netmap's own requests as programs make them, and answers with
//! the memory by descriptor. One message each, of fixed size but for a text at the end of an answer. Little-endian.

use rustix::io::Errno;

use crate::Pools;
use crate::request::{Fields, Header, Invalid, Kind, Register};

/// A request as it came from a program: its header, and its body with zeros behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The header; addresses in it mean nothing here.
    pub header: [u8; Header::LEN],
    /// The body.
    pub body: [u8; BODY],
}

/// Bytes of the longest body.
pub const BODY: usize = 64;

/// A kind of request beside netmap's: what there is, as JSON.
pub const STATUS: u16 = 0x8000;

impl Request {
    /// Bytes of it.
    pub const LEN: usize = Header::LEN + BODY;

    /// A request of this kind about a port, with a body of [`BODY`] bytes at most.
    ///
    /// # Panics
    /// If the body is longer.
    pub fn new(kind: Kind, port: &str, body: &[u8]) -> Self {
        let mut request = Self { header: Header::bytes(kind as u16, port), body: [0; BODY] };
        request.body[..body.len()].copy_from_slice(body);
        request
    }

    /// A request to register a port.
    pub fn register(port: &str, register: &Register) -> Self {
        Self::new(Kind::Register, port, &register.bytes())
    }

    /// A request to say what there is.
    pub fn status() -> Self {
        Self { header: Header::bytes(STATUS, ""), body: [0; BODY] }
    }

    /// Takes it apart.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let (header, body) = bytes.split_first_chunk().expect("a header");
        Self { header: *header, body: body.try_into().expect("the rest") }
    }

    /// Puts it together.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.header[..], &self.body].concat()
    }

    /// Whether it asks for [`STATUS`].
    pub fn is_status(&self) -> bool {
        self.header[2..4] == STATUS.to_le_bytes()
    }

    /// Which registration it asks for.
    pub fn as_register(&self) -> Result<Register, Invalid> {
        Register::parse(self.body.first_chunk().expect("64 bytes"))
    }
}

/// Who is at the other side of a port's rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behind {
    /// A server.
    #[default]
    Server,
    /// The other end of a pipe, of which the descriptor lies there; this one is the first end, or the second.
    Pipe {
        /// Offset of the other end's descriptor.
        other: u64,
        /// Whether this is the first end.
        first: bool,
    },
}

/// What a registration gives, beside what the program is told. With it come four descriptors: the memory, the CSB, the eventfd
/// that wakes this side and the one that wakes the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// The pools of the memory.
    pub pools: Pools,
    /// Who is at the other side.
    pub behind: Behind,
}

/// Descriptors that come with a registration.
pub const FDS: usize = 4;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// An error, as netmap gives it.
    pub errno: Option<Errno>,
    /// The request's body as granted.
    pub body: [u8; BODY],
    /// Of a registration.
    pub granted: Granted,
    /// Why there is an error, in a line; or what was asked for, where that is a text.
    pub text: String,
}

impl Reply {
    /// Bytes of it in front of the text.
    pub const LEN: usize = 8 + BODY + 32;
    /// Bytes of the longest text.
    pub const LONGEST: usize = 1 << 20;

    /// With a body.
    pub fn granted(body: &[u8], granted: Granted) -> Self {
        let mut reply = Self { errno: None, body: [0; BODY], granted, text: String::new() };
        reply.body[..body.len()].copy_from_slice(body);
        reply
    }

    /// With a text.
    pub fn text(errno: Option<Errno>, text: String) -> Self {
        Self { errno, body: [0; BODY], granted: Granted::default(), text }
    }

    /// Puts it together.
    pub fn bytes(&self) -> Vec<u8> {
        let errno = self.errno.map_or(0, Errno::raw_os_error) as u32;
        let Granted { pools, behind } = self.granted;
        let (other, kind) = match behind {
            Behind::Server => (0, 0),
            Behind::Pipe { other, first } => (other, if first { 1 } else { 2 }),
        };
        let mut bytes = [errno, self.text.len() as u32].map(u32::to_le_bytes).concat();
        bytes.extend(self.body);
        bytes.extend([other, pools.ring_bytes as u64].map(u64::to_le_bytes).concat());
        bytes.extend([pools.interfaces, pools.buffers, pools.buffer_size, kind].map(u32::to_le_bytes).concat());
        bytes.extend(self.text.bytes());
        bytes
    }

    /// How many bytes there are in all, by the first of them. `None` if there can be no such answer.
    pub fn len_of(start: &[u8; Self::LEN]) -> Option<usize> {
        let text = u32::from_le_bytes([4, 5, 6, 7].map(|at| start[at])) as usize;
        (text <= Self::LONGEST).then_some(Self::LEN + text)
    }

    /// Takes it apart. `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (start, text) = bytes.split_first_chunk::<{ Self::LEN }>()?;
        if Self::len_of(start)? != bytes.len() {
            return None;
        }
        let mut fields = Fields(start);
        let (errno, _) = (fields.u32() as i32, fields.u32());
        let body = fields.take();
        let (other, ring_bytes) = (fields.u64(), fields.u64() as usize);
        let (interfaces, buffers, buffer_size) = (fields.u32(), fields.u32(), fields.u32());
        let behind = match fields.u32() {
            0 => Behind::Server,
            kind => Behind::Pipe { other, first: kind == 1 },
        };
        let granted = Granted { pools: Pools { interfaces, ring_bytes, buffers, buffer_size }, behind };
        let errno = (errno != 0).then(|| Errno::from_raw_os_error(errno.clamp(1, 4095)));
        Some(Self { errno, body, granted, text: String::from_utf8(text.to_vec()).ok()? })
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
        assert!(Request::status().is_status() && !request.is_status());
        let behind = [Behind::Server, Behind::Pipe { other: 77, first: true }, Behind::Pipe { other: 0, first: false }];
        for behind in behind {
            let granted = Granted { pools: Pools::default(), behind };
            let reply = Reply::granted(&register.bytes(), granted);
            assert_eq!(Reply::parse(&reply.bytes()), Some(reply.clone()));
            assert_eq!(Register::parse(reply.body.first_chunk().unwrap()), Ok(register.clone()));
        }
        let reply = Reply::text(Some(Errno::BUSY), "somebody has it".into());
        let bytes = reply.bytes();
        assert_eq!(Reply::len_of(bytes.first_chunk().unwrap()), Some(bytes.len()));
        assert_eq!(Reply::parse(&bytes), Some(reply));
        assert_eq!(Reply::parse(&bytes[1..]), None);
        assert_eq!(Reply::parse(&bytes[..bytes.len() - 1]), None);
        let mut long = bytes;
        long[4..8].copy_from_slice(&(Reply::LONGEST as u32 + 1).to_le_bytes());
        assert_eq!(Reply::len_of(long.first_chunk().unwrap()), None);
    }
}
