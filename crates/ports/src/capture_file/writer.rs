//! Writing capture files of either format.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use ringpass_memory::Packet;
use ringpass_port::Error;

use super::pcapng::{BYTE_ORDER_MAGIC, ENHANCED_PACKET, IF_TSRESOL, INTERFACE, SECTION_HEADER};
use super::{ETHERNET, MAX_FRAME};

/// What is made room for: the longest segment of TCP, with headers and tags.
const LONGEST: usize = 68 << 10;

/// Which way a frame passed. Only pcapng has a place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It was received.
    Received,
    /// It was sent.
    Sent,
}

/// Writes Ethernet frames to a capture file, with nanoseconds: pcapng if the file's name ends so, else pcap; compressed
/// if it then ends in `.gz` or `.zst`. Buffered; finished by [`finish`](Self::finish), or when dropped.
pub struct Writer {
    name: String,
    format: Format,
    /// `None` once finished.
    sink: Option<Sink>,
    /// For frames that do not lie in one piece.
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Pcap,
    PcapNg,
}

enum Sink {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
}

impl Sink {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(file) => file,
            Self::Gzip(encoder) => encoder,
            Self::Zstd(encoder) => encoder,
        }
    }

    fn finish(self) -> io::Result<()> {
        let mut file = match self {
            Self::Plain(file) => file,
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Zstd(encoder) => encoder.finish()?,
        };
        file.flush()
    }
}

impl Writer {
    /// Makes the file, or empties it, and writes its header.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let (stem, compression) = match name.rsplit_once('.') {
            Some((stem, ending @ ("gz" | "zst"))) => (stem, Some(ending)),
            _ => (name.as_str(), None),
        };
        let format = if stem.ends_with(".pcapng") { Format::PcapNg } else { Format::Pcap };
        let open = || {
            let file = BufWriter::with_capacity(256 << 10, File::create(path)?);
            io::Result::Ok(match compression {
                Some("gz") => Sink::Gzip(GzEncoder::new(file, Compression::fast())),
                Some(_) => Sink::Zstd(zstd::Encoder::new(file, 1)?),
                None => Sink::Plain(file),
            })
        };
        let sink = open().map_err(|source| Error::Os { what: format!("capture file {name}"), source })?;
        let mut writer = Self { name, format, sink: Some(sink), scratch: Vec::with_capacity(LONGEST) };
        let header = if format == Format::Pcap { pcap_header() } else { pcapng_header() };
        writer.put(&[&header])?;
        Ok(writer)
    }

    /// Writes a frame that passed at `nanos` since 1970.
    pub fn write(&mut self, nanos: u64, direction: Direction, frame: &[u8]) -> Result<(), Error> {
        self.write_cut(nanos, direction, frame, frame.len())
    }

    /// Writes the first `snaplen` bytes of a packet's frame, all of its buffers, with the tag that lies beside it.
    pub fn write_packet(
        &mut self,
        nanos: u64,
        direction: Direction,
        packet: &Packet,
        snaplen: usize,
    ) -> Result<(), Error> {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.resize(packet.total_len(), 0);
        let _ = packet.copy_to(&mut frame);
        if let Some(tag) = packet.vlan().filter(|_| frame.len() >= 12) {
            let [high, low] = tag.to_be_bytes();
            frame.splice(12..12, [0x81, 0, high, low]);
        }
        let result = self.write_cut(nanos, direction, &frame[..frame.len().min(snaplen)], frame.len());
        self.scratch = frame;
        result
    }

    /// Writes what was kept of a frame that had `original_len` bytes.
    pub fn write_cut(
        &mut self,
        nanos: u64,
        direction: Direction,
        frame: &[u8],
        original_len: usize,
    ) -> Result<(), Error> {
        if frame.len() > MAX_FRAME {
            return Err(Error::Other(format!("capture file {}: a frame of {} bytes", self.name, frame.len())));
        }
        let (len, original_len) = ((frame.len() as u32).to_le_bytes(), (original_len as u32).to_le_bytes());
        match self.format {
            Format::Pcap => {
                let (seconds, rest) = ((nanos / 1_000_000_000) as u32, (nanos % 1_000_000_000) as u32);
                self.put(&[&seconds.to_le_bytes(), &rest.to_le_bytes(), &len, &original_len, frame])
            }
            Format::PcapNg => {
                let padding = &[0; 3][..frame.len().next_multiple_of(4) - frame.len()];
                let block = (28 + frame.len() + padding.len() + 16) as u32;
                let mut head = [0; 28];
                head[0..4].copy_from_slice(&ENHANCED_PACKET.to_le_bytes());
                head[4..8].copy_from_slice(&block.to_le_bytes());
                head[12..16].copy_from_slice(&((nanos >> 32) as u32).to_le_bytes());
                head[16..20].copy_from_slice(&(nanos as u32).to_le_bytes());
                head[20..24].copy_from_slice(&len);
                head[24..28].copy_from_slice(&original_len);
                // Option epb_flags (2) of 4 bytes: bits 0 and 1 say inbound or outbound; then the end of the options.
                let way = if direction == Direction::Received { 1 } else { 2 };
                let mut tail = [2, 0, 4, 0, way, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                tail[12..16].copy_from_slice(&block.to_le_bytes());
                self.put(&[&head, frame, padding, &tail])
            }
        }
    }

    /// Hands what is buffered to the kernel.
    pub fn flush(&mut self) -> Result<(), Error> {
        let flushed = self.sink.as_mut().map_or(Ok(()), |sink| sink.writer().flush());
        flushed.map_err(|error| self.error(error))
    }

    /// Writes what is buffered and ends the file as its format and compression want it.
    pub fn finish(mut self) -> Result<(), Error> {
        let finished = self.sink.take().map_or(Ok(()), Sink::finish);
        finished.map_err(|error| self.error(error))
    }

    fn put(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        let written = match &mut self.sink {
            Some(sink) => parts.iter().try_for_each(|part| sink.writer().write_all(part)),
            None => Ok(()),
        };
        written.map_err(|error| self.error(error))
    }

    fn error(&self, source: io::Error) -> Error {
        Error::Os { what: format!("capture file {}: writing", self.name), source }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.sink.take().map(Sink::finish) {
            tracing::error!("{}", self.error(error));
        }
    }
}

/// Magic number with nanoseconds, version 2.4, longest frame, link type.
fn pcap_header() -> Vec<u8> {
    let words = [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, MAX_FRAME as u32, u32::from(ETHERNET)];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A section of unknown length and one interface, in nanoseconds.
fn pcapng_header() -> Vec<u8> {
    let section = [SECTION_HEADER, 28, BYTE_ORDER_MAGIC, 1, u32::MAX, u32::MAX, 28];
    let resolution = u32::from(IF_TSRESOL) | 1 << 16;
    let interface = [INTERFACE, 32, u32::from(ETHERNET), MAX_FRAME as u32, resolution, 9, 0, 32];
    section.iter().chain(&interface).flat_map(|word| word.to_le_bytes()).collect()
}
