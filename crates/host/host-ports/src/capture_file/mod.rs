//! Capture files: pcap and pcapng, plain or compressed with gzip or Zstandard, read and written as streams.
//!
//! The formats are those of the IETF drafts *PCAP Capture File Format* (draft-ietf-opsawg-pcap) and *PCAP Next
//! Generation Capture File Format* (draft-ietf-opsawg-pcapng).

mod pcapng;
mod reader;
mod stream;
mod writer;

pub use reader::{Reader, Record};
pub use writer::{Count, Direction, Writer};

use ringpass_memory::Packet;
use std::time::{SystemTime, UNIX_EPOCH};

/// Link type of Ethernet (LINKTYPE_ETHERNET).
const ETHERNET: u16 = 1;
/// Longest frame of a record in bytes, the limit of tcpdump and others. Longer ones mean that the file is
/// damaged.
pub(crate) const MAX_FRAME: usize = 256 << 10;

/// Puts the bytes of a packet's frame into `frame`, behind what is there: from all its buffers, and with the VLAN tag of its metadata.
pub(crate) fn append_frame(packet: &Packet, frame: &mut Vec<u8>) {
    const TAG_PLACE: usize = 12;
    let (start, len) = (frame.len(), packet.total_len());
    frame.resize(start + len, 0);
    let _ = packet.copy_to(&mut frame[start..]);
    if let Some(tag) = packet.vlan().filter(|_| len >= TAG_PLACE) {
        let ([high, low], place) = (tag.to_be_bytes(), start + TAG_PLACE);
        frame.splice(place..place, [0x81, 0, high, low]);
    }
}

/// Returns the current time as a record's timestamp: nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Byte order of a file's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// Reads the 16-bit number at `at`, which must be within the bytes.
    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = [bytes[at], bytes[at + 1]];
        if self == Self::Little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) }
    }

    /// Reads the 32-bit number at `at`, which must be within the bytes.
    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self == Self::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
    }
}
