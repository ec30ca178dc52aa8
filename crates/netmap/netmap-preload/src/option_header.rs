//! Options of a request.

use netmap::request::{AskedMemory, AskedOffsets};

/// Header of an option (`struct nmreq_option`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Address of the next option in the program's memory, or 0.
    pub next: u64,
    /// Kind of the option (`NETMAP_REQ_OPT_*`).
    pub kind: u32,
    /// Bytes of the whole option, if its kind has no fixed size.
    pub size: u64,
}

impl OptionHeader {
    /// Bytes of a header.
    pub const LEN: usize = 24;
    /// Number of kinds, with 0, which is none.
    pub const KINDS: u32 = 6;
    /// Kind of the option with a memory of the program.
    pub const EXTERNAL: u32 = 1;
    /// Kind of the option with the eventfds of a sync loop.
    pub const EVENTFDS: u32 = 2;
    /// Kind of the option with a CSB.
    pub const CSB: u32 = 3;
    /// Kind of the option with the mode of a sync loop.
    pub const LOOP_MODE: u32 = 4;
    /// Kind of the option with offsets of frames in their buffers.
    pub const OFFSETS: u32 = 5;

    /// Parses a header. Its status is an output.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        // The kind's word ends with the status.
        Self { next: word(0), kind: word(8) as u32, size: word(16) }
    }

    /// Returns the bytes behind the header.
    pub fn payload(&self) -> usize {
        match self.kind {
            Self::EXTERNAL => 8 + AskedMemory::LEN,
            // As many as the program says.
            Self::EVENTFDS => usize::try_from(self.size).unwrap_or(usize::MAX).saturating_sub(Self::LEN),
            Self::CSB => 16,
            Self::LOOP_MODE => 8,
            Self::OFFSETS => AskedOffsets::LEN,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_where_netmap_has_it() {
        let mut bytes = [0; 24];
        (bytes[0], bytes[8], bytes[12], bytes[16]) = (1, 2, 3, 40);
        let header = OptionHeader::parse(&bytes);
        assert_eq!(header, OptionHeader { next: 1, kind: 2, size: 40 });
        let payload = |kind, size| OptionHeader { next: 0, kind, size }.payload();
        assert_eq!([1, 2, 3, 4, 5, 6].map(|kind| payload(kind, 40)), [72, 16, 16, 8, 32, 0]);
        assert_eq!((payload(2, 8), payload(2, u64::MAX)), (0, usize::MAX - 24));
    }
}
