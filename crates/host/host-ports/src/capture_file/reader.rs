//! Reading of capture files in either format.

use std::path::Path;

use ringpass_port::Error;

use super::pcapng::{SECTION_HEADER, Section};
use super::stream::{ReadError, Stream};
use super::{ByteOrder, ETHERNET, MAX_FRAME};

/// Reads the Ethernet frames of a capture file record by record, without allocating for them.
pub struct Reader {
    name: String,
    stream: Stream,
    format: Format,
    /// Records read since the start of the file.
    records: u64,
    /// Length in bytes of the record that was returned last, which is still to be consumed.
    lent: usize,
}

enum Format {
    Pcap { order: ByteOrder, nanos_per_unit: u64 },
    PcapNg(Section),
}

/// A frame of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Time of capture in nanoseconds since 1970.
    pub nanos: u64,
    /// The captured bytes of the frame, possibly truncated.
    pub bytes: &'a [u8],
    /// Length of the frame on the wire in bytes.
    pub original_len: usize,
}

impl Reader {
    /// Opens a file and checks its format and link type.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let stream = Stream::open(path).map_err(|source| Error::file(format!("capture file {name}"), source))?;
        let format = Format::PcapNg(Section::new());
        let mut reader = Self { name, stream, format, records: 0, lent: 0 };
        reader.start().map_err(|fault| reader.error(fault))?;
        Ok(reader)
    }

    /// Returns to the first record.
    pub fn rewind(&mut self) -> Result<(), Error> {
        (self.records, self.lent) = (0, 0);
        let again = self.stream.rewind().map_err(|error| ReadError::Damaged(error.to_string()));
        again.and_then(|()| self.start()).map_err(|fault| self.error(fault))
    }

    /// Returns the next record; `None` after the last one.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        match self.find() {
            Ok(None) => Ok(None),
            Ok(Some(RecordLocation { skip, captured, original_len, nanos })) => {
                let bytes = &self.stream.seen(skip + captured)[skip..];
                Ok(Some(Record { nanos, bytes, original_len }))
            }
            Err(fault) => Err(self.error(fault)),
        }
    }

    /// Reads the file's header (draft-ietf-opsawg-pcap, section 4).
    fn start(&mut self) -> Result<(), ReadError> {
        const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
        const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
        let magic = match self.stream.fill(4)? {
            0 => return Err(ReadError::Damaged("the file is empty".into())),
            4 => self.stream.seen(4),
            _ => return Err(ReadError::Truncated),
        };
        let (order, nanos_per_unit) = match (ByteOrder::Little.u32(magic, 0), ByteOrder::Big.u32(magic, 0)) {
            (SECTION_HEADER, _) => {
                let mut section = Section::new();
                section.first_interface(&mut self.stream)?;
                self.format = Format::PcapNg(section);
                return Ok(());
            }
            (MAGIC_MICROS, _) => (ByteOrder::Little, 1000),
            (_, MAGIC_MICROS) => (ByteOrder::Big, 1000),
            (MAGIC_NANOS, _) => (ByteOrder::Little, 1),
            (_, MAGIC_NANOS) => (ByteOrder::Big, 1),
            (magic, _) => {
                return Err(ReadError::Damaged(format!(
                    "no capture file (it starts with {magic:#010x}); pcap or pcapng is needed"
                )));
            }
        };
        let header = self.stream.need(24)?;
        let (major, link) = (order.u16(header, 4), order.u32(header, 20));
        if major != 2 {
            return Err(ReadError::Damaged(format!("pcap of version {major}; version 2 is needed")));
        }
        // The upper half has flags and the length of the frame check sequence.
        if link & 0xffff != u32::from(ETHERNET) {
            return Err(ReadError::Damaged(format!("link type {}; Ethernet (1) is needed", link & 0xffff)));
        }
        self.stream.consume(24);
        self.format = Format::Pcap { order, nanos_per_unit };
        Ok(())
    }

    fn find(&mut self) -> Result<Option<RecordLocation>, ReadError> {
        let lent = std::mem::take(&mut self.lent);
        self.stream.skip(lent)?;
        let place = match &mut self.format {
            Format::PcapNg(section) => section.next(&mut self.stream)?.map(|found| {
                self.lent = found.block;
                RecordLocation {
                    skip: found.skip,
                    captured: found.captured,
                    original_len: found.original,
                    nanos: found.nanos,
                }
            }),
            Format::Pcap { order, nanos_per_unit } => {
                const HEADER: usize = 16;
                if self.stream.fill(HEADER)? == 0 {
                    return Ok(None);
                }
                let header = self.stream.need(HEADER)?;
                let field = |at| order.u32(header, at);
                let nanos = u64::from(field(0)) * 1_000_000_000 + u64::from(field(4)) * *nanos_per_unit;
                let (captured, original_len) = (field(8) as usize, field(12) as usize);
                if captured > MAX_FRAME {
                    return Err(ReadError::Damaged(format!("a frame of {captured} bytes")));
                }
                self.stream.need(HEADER + captured)?;
                self.lent = HEADER + captured;
                Some(RecordLocation { skip: HEADER, captured, original_len, nanos })
            }
        };
        self.records += u64::from(place.is_some());
        Ok(place)
    }

    fn error(&self, fault: ReadError) -> Error {
        let place = || format!("at byte {}, after packet {}", self.stream.position(), self.records);
        Error::Fault(match fault {
            ReadError::Truncated => format!("capture file {}: truncated {}", self.name, place()),
            ReadError::Damaged(why) if self.records == 0 => format!("capture file {}: {why}", self.name),
            ReadError::Damaged(why) => format!("capture file {}: damaged {}: {why}", self.name, place()),
        })
    }
}

/// Location of a record in the stream's buffer.
struct RecordLocation {
    skip: usize,
    captured: usize,
    original_len: usize,
    nanos: u64,
}
