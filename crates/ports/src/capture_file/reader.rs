//! Reading capture files of either format.

use std::path::Path;

use ringpass_port::Error;

use super::pcapng::{SECTION_HEADER, Section};
use super::stream::{Fault, Stream};
use super::{ETHERNET, MAX_FRAME, Order};

/// Reads a capture file of Ethernet frames, record by record, without allocating for them.
pub struct Reader {
    name: String,
    stream: Stream,
    format: Format,
    /// Records read since the file's start.
    records: u64,
    /// Bytes of the last record that are still to be consumed: it was lent out.
    lent: usize,
}

enum Format {
    Pcap { order: Order, nanos_per_unit: u64 },
    PcapNg(Section),
}

/// A frame of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was captured, in nanoseconds since 1970.
    pub nanos: u64,
    /// The frame, or as much of it as was captured.
    pub bytes: &'a [u8],
    /// Length of the frame on the wire.
    pub original_len: usize,
}

impl Reader {
    /// Opens a file and checks its format and link type.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let stream = Stream::open(path).map_err(|source| Error::Os { what: format!("capture file {name}"), source })?;
        let format = Format::PcapNg(Section::new());
        let mut reader = Self { name, stream, format, records: 0, lent: 0 };
        reader.start().map_err(|fault| reader.error(fault))?;
        Ok(reader)
    }

    /// Back to the first record.
    pub fn rewind(&mut self) -> Result<(), Error> {
        (self.records, self.lent) = (0, 0);
        let again = self.stream.rewind().map_err(|error| Fault::Damaged(error.to_string()));
        again.and_then(|()| self.start()).map_err(|fault| self.error(fault))
    }

    /// The next record; `None` behind the last one.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        match self.find() {
            Ok(None) => Ok(None),
            Ok(Some(Place { skip, captured, original_len, nanos })) => {
                let bytes = &self.stream.seen(skip + captured)[skip..];
                Ok(Some(Record { nanos, bytes, original_len }))
            }
            Err(fault) => Err(self.error(fault)),
        }
    }

    /// The file's header (draft-ietf-opsawg-pcap, section 4).
    fn start(&mut self) -> Result<(), Fault> {
        const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
        const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
        let magic = match self.stream.fill(4)? {
            0 => return Err(Fault::Damaged("the file is empty".into())),
            4 => self.stream.seen(4),
            _ => return Err(Fault::Truncated),
        };
        let (order, nanos_per_unit) = match (Order::Little.u32(magic, 0), Order::Big.u32(magic, 0)) {
            (SECTION_HEADER, _) => {
                let mut section = Section::new();
                section.first_interface(&mut self.stream)?;
                self.format = Format::PcapNg(section);
                return Ok(());
            }
            (MAGIC_MICROS, _) => (Order::Little, 1000),
            (_, MAGIC_MICROS) => (Order::Big, 1000),
            (MAGIC_NANOS, _) => (Order::Little, 1),
            (_, MAGIC_NANOS) => (Order::Big, 1),
            (magic, _) => {
                return Err(Fault::Damaged(format!(
                    "no capture file (it starts with {magic:#010x}); pcap or pcapng is needed"
                )));
            }
        };
        let header = self.stream.need(24)?;
        let (major, link) = (order.u16(header, 4), order.u32(header, 20));
        if major != 2 {
            return Err(Fault::Damaged(format!("pcap of version {major}; version 2 is needed")));
        }
        // The upper half has flags and the length of a frame check sequence.
        if link & 0xffff != u32::from(ETHERNET) {
            return Err(Fault::Damaged(format!("link type {}; Ethernet (1) is needed", link & 0xffff)));
        }
        self.stream.consume(24);
        self.format = Format::Pcap { order, nanos_per_unit };
        Ok(())
    }

    fn find(&mut self) -> Result<Option<Place>, Fault> {
        let lent = std::mem::take(&mut self.lent);
        self.stream.skip(lent)?;
        let place = match &mut self.format {
            Format::PcapNg(section) => section.next(&mut self.stream)?.map(|found| {
                self.lent = found.block;
                Place { skip: found.skip, captured: found.captured, original_len: found.original, nanos: found.nanos }
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
                    return Err(Fault::Damaged(format!("a frame of {captured} bytes")));
                }
                self.stream.need(HEADER + captured)?;
                self.lent = HEADER + captured;
                Some(Place { skip: HEADER, captured, original_len, nanos })
            }
        };
        self.records += u64::from(place.is_some());
        Ok(place)
    }

    fn error(&self, fault: Fault) -> Error {
        let place = || format!("at byte {}, after packet {}", self.stream.position(), self.records);
        Error::Other(match fault {
            Fault::Truncated => format!("capture file {}: truncated {}", self.name, place()),
            Fault::Damaged(why) if self.records == 0 => format!("capture file {}: {why}", self.name),
            Fault::Damaged(why) => format!("capture file {}: damaged {}: {why}", self.name, place()),
        })
    }
}

/// Where a record lies in what the stream shows.
struct Place {
    skip: usize,
    captured: usize,
    original_len: usize,
    nanos: u64,
}
