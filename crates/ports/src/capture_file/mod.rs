//! Capture files: pcap and pcapng, plain or compressed with gzip or Zstandard, streamed in both directions.
//!
//! After the IETF drafts *PCAP Capture File Format* (draft-ietf-opsawg-pcap) and *PCAP Next Generation Capture File
//! Format* (draft-ietf-opsawg-pcapng).

mod pcapng;
mod reader;
mod stream;
mod writer;

pub use reader::{Reader, Record};
pub use writer::{Count, Direction, Writer};

use std::time::{SystemTime, UNIX_EPOCH};

/// Link type of Ethernet (LINKTYPE_ETHERNET).
const ETHERNET: u16 = 1;
/// The longest frame of a record; what tcpdump and others use. Longer ones are damage.
const MAX_FRAME: usize = 256 << 10;

/// The time now, as records have it: nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// The order of the bytes of a file's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Little,
    Big,
}

impl Order {
    /// The 16-bit number at `at`, which must be inside the bytes.
    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = [bytes[at], bytes[at + 1]];
        if self == Self::Little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) }
    }

    /// The 32-bit number at `at`, which must be inside the bytes.
    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self == Self::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
    }
}
