//! Writing of capture files in either format.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use ringpass_memory::Packet;
use ringpass_port::Error;

use super::pcapng::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, IF_NAME, IF_TSRESOL, INTERFACE, INTERFACE_STATISTICS, SECTION_HEADER,
};
use super::{ETHERNET, MAX_FRAME, append_frame};

/// Space reserved for a record in bytes: the longest TCP segment, with headers and tags.
const MAX_RECORD_LEN: usize = 68 << 10;

/// Direction of a frame. Only pcapng records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The frame was received.
    Received,
    /// The frame was sent.
    Sent,
}

/// A number of frames and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of frames.
    pub packets: u64,
    /// Length of the frames on the wire in bytes.
    pub bytes: u64,
}

/// Writes Ethernet frames to a capture file, with nanosecond timestamps. The format is pcapng if the file's
/// name ends so, else pcap; a further ending of `.gz` or `.zst` selects compression. The file is finished by
/// [`finish`](Self::finish), or when the writer is dropped.
///
/// Records are collected in blocks. A block is in the file as a whole, compressed separately, or not at all:
/// what a full disk left of one is truncated. So a reader finds what [`written`](Self::written) says, whatever
/// has failed afterwards.
pub struct Writer {
    name: String,
    format: Format,
    sink: Sink,
    compression: Option<Compressor>,
    /// Records that are not in the file yet, and their number.
    block: Vec<u8>,
    gathered: Count,
    /// The compressed block, if the file is compressed.
    compressed: Vec<u8>,
    written: Count,
    /// Length in bytes of the file's complete blocks.
    end: u64,
    /// Whether writing has failed, after which nothing more is written.
    failed: bool,
    /// Space for frames that do not lie in one buffer.
    scratch: Vec<u8>,
    /// Frames seen and lost, as last written.
    losses: (u64, u64),
}

/// Where the records go.
enum Sink {
    File(File),
    Stream(Box<dyn Write + Send>),
}

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Pcap,
    PcapNg,
}

/// Number of bytes collected before they are written.
const BLOCK: usize = 256 << 10;

/// A compressor. Both formats allow compressed units to follow each other: members (RFC 1952, 2.2), frames (RFC
/// 8878, 3).
enum Compressor {
    Gzip(Compress),
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Compressor {
    fn compress(&mut self, block: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        into.clear();
        match self {
            Self::Gzip(compress) => {
                // Identification, deflate, no flags, no time, fast compression, unknown system (RFC 1952, 2.3).
                into.extend_from_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255]);
                compress.reset();
                let mut done = 0;
                loop {
                    // Incompressible data grows by a few bytes per 64 KiB.
                    into.reserve(block.len() - done + block.len() / 64 + 1024);
                    let status = compress.compress_vec(&block[done..], into, FlushCompress::Finish)?;
                    if status == Status::StreamEnd {
                        break;
                    }
                    done = compress.total_in() as usize;
                }
                let mut sum = Crc::new();
                sum.update(block);
                into.extend_from_slice(&sum.sum().to_le_bytes());
                into.extend_from_slice(&sum.amount().to_le_bytes());
                Ok(())
            }
            Self::Zstd(compressor) => {
                into.reserve(zstd::zstd_safe::compress_bound(block.len()));
                compressor.compress_to_buffer(block, into).map(drop)
            }
        }
    }
}

impl Writer {
    /// Creates the file, or truncates it, and writes its header.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let (stem, compression) = match name.rsplit_once('.') {
            Some((stem, ending @ ("gz" | "zst"))) => (stem, Some(ending)),
            _ => (name.as_str(), None),
        };
        let format = if stem.ends_with(".pcapng") { Format::PcapNg } else { Format::Pcap };
        let open = || {
            let compressor = match compression {
                Some("gz") => Some(Compressor::Gzip(Compress::new(Compression::fast(), false))),
                Some(_) => Some(Compressor::Zstd(zstd::bulk::Compressor::new(1)?)),
                None => None,
            };
            io::Result::Ok((File::create(path)?, compressor))
        };
        let opened = open().map_err(|source| Error::file(format!("capture file {name}"), source));
        let (file, compression) = opened?;
        let header = if format == Format::Pcap { pcap_header() } else { pcapng_header("") };
        let mut writer = Self::new(name, format, Sink::File(file), header);
        writer.compression = compression;
        Ok(writer)
    }

    /// Writes pcapng to a stream, with the name of the interface whose frames these are. Its reader may leave at any time; that is
    /// an error of the next write.
    pub fn stream(to: Box<dyn Write + Send>, interface: &str) -> Self {
        Self::new(format!("of {interface}"), Format::PcapNg, Sink::Stream(to), pcapng_header(interface))
    }

    fn new(name: String, format: Format, sink: Sink, header: Vec<u8>) -> Self {
        let mut block = header;
        block.reserve(BLOCK + MAX_RECORD_LEN);
        Self {
            name,
            format,
            sink,
            compression: None,
            block,
            gathered: Count::default(),
            compressed: Vec::new(),
            written: Count::default(),
            end: 0,
            failed: false,
            scratch: Vec::with_capacity(MAX_RECORD_LEN),
            losses: (0, 0),
        }
    }

    /// Returns whether a reader gets what is written while it is written.
    pub fn is_stream(&self) -> bool {
        matches!(self.sink, Sink::Stream(_))
    }

    /// Writes how many frames were seen so far, and how many of them are missing because there was no room for them, if that has changed since the last time. Only
    /// pcapng records it.
    pub fn write_losses(&mut self, nanos: u64, seen: u64, lost: u64) -> Result<(), Error> {
        if self.format == Format::Pcap || self.losses == (seen, lost) {
            return Ok(());
        }
        self.losses = (seen, lost);
        // Interface 0; then the options isb_ifrecv (4) and isb_ifdrop (5) of 8 bytes, and their end.
        const LEN: u32 = 12 + 12 + 12 + 12 + 4;
        let head = [INTERFACE_STATISTICS, LEN, 0, (nanos >> 32) as u32, nanos as u32];
        let mut block: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        for (code, count) in [(4_u16, seen), (5, lost)] {
            block.extend([code.to_le_bytes(), 8_u16.to_le_bytes()].as_flattened());
            block.extend(count.to_le_bytes());
        }
        block.extend([0; 4]);
        block.extend(LEN.to_le_bytes());
        self.append(&[&block])
    }

    /// Writes a frame that passed at `nanos` nanoseconds since 1970.
    pub fn write(&mut self, nanos: u64, direction: Direction, frame: &[u8]) -> Result<(), Error> {
        self.write_cut(nanos, direction, frame, frame.len())
    }

    /// Writes the first `snaplen` bytes of a packet's frame, from all its buffers and with the VLAN tag of its
    /// metadata.
    pub fn write_packet(
        &mut self,
        nanos: u64,
        direction: Direction,
        packet: &Packet,
        snaplen: usize,
    ) -> Result<(), Error> {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        append_frame(packet, &mut frame);
        let result = self.write_cut(nanos, direction, &frame[..frame.len().min(snaplen)], frame.len());
        self.scratch = frame;
        result
    }

    /// Writes the captured part of a frame that had `original_len` bytes.
    pub fn write_cut(
        &mut self,
        nanos: u64,
        direction: Direction,
        frame: &[u8],
        original_len: usize,
    ) -> Result<(), Error> {
        if frame.len() > MAX_FRAME {
            return Err(Error::Fault(format!("capture file {}: a frame of {} bytes", self.name, frame.len())));
        }
        let original = original_len as u64;
        let (len, original_len) = ((frame.len() as u32).to_le_bytes(), (original_len as u32).to_le_bytes());
        match self.format {
            Format::Pcap => {
                let (seconds, rest) = ((nanos / 1_000_000_000) as u32, (nanos % 1_000_000_000) as u32);
                let parts = [&seconds.to_le_bytes(), &rest.to_le_bytes(), &len, &original_len, frame];
                self.put(&parts, original)
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
                // Option epb_flags (2) of 4 bytes, whose bits 0 and 1 are the direction; then the end of the
                // options.
                let way = if direction == Direction::Received { 1 } else { 2 };
                let mut tail = [2, 0, 4, 0, way, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                tail[12..16].copy_from_slice(&block.to_le_bytes());
                self.put(&[&head, frame, padding, &tail], original)
            }
        }
    }

    /// Returns what is certainly in the file.
    pub fn written(&self) -> Count {
        self.written
    }

    /// Returns what was accepted but is not in the file; once writing has failed, it never will be.
    pub fn unwritten(&self) -> Count {
        self.gathered
    }

    /// Passes the collected records to the kernel.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.block.is_empty() || self.failed {
            return Ok(());
        }
        let result = self.write_block();
        if let Err(error) = result {
            self.failed = true;
            // Cut off the part of this block that was written, which is of no use. (A pipe cannot be cut, but
            // its reader sees that it ends.)
            if let Sink::File(file) = &self.sink {
                let _ = file.set_len(self.end);
            }
            return Err(self.error(error));
        }
        let gathered = std::mem::take(&mut self.gathered);
        self.written.packets += gathered.packets;
        self.written.bytes += gathered.bytes;
        self.block.clear();
        Ok(())
    }

    fn write_block(&mut self) -> io::Result<()> {
        let bytes = match &mut self.compression {
            Some(compressor) => {
                compressor.compress(&self.block, &mut self.compressed)?;
                &self.compressed
            }
            None => &self.block,
        };
        match &mut self.sink {
            Sink::File(file) => file.write_all(bytes)?,
            Sink::Stream(stream) => stream.write_all(bytes)?,
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Writes the collected records. After an error, some frames are not in the file.
    pub fn finish(mut self) -> Result<(), Error> {
        self.flush()
    }

    /// Adds the record of a frame of `bytes` bytes to the block.
    fn put(&mut self, parts: &[&[u8]], bytes: u64) -> Result<(), Error> {
        self.append(parts)?;
        self.gathered.packets += 1;
        self.gathered.bytes += bytes;
        if self.block.len() >= BLOCK { self.flush() } else { Ok(()) }
    }

    fn append(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        if self.failed {
            return Err(Error::Fault(format!("capture file {}: writing has failed before", self.name)));
        }
        parts.iter().for_each(|part| self.block.extend_from_slice(part));
        Ok(())
    }

    fn error(&self, source: io::Error) -> Error {
        Error::os(format!("capture file {}: writing", self.name), source)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            tracing::error!("{error}");
        }
    }
}

/// Returns the pcap header: magic number for nanoseconds, version 2.4, longest frame, link type.
fn pcap_header() -> Vec<u8> {
    let words = [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, MAX_FRAME as u32, u32::from(ETHERNET)];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the pcapng header: a section of unknown length, and one interface with nanosecond timestamps and a name, if that is not empty.
fn pcapng_header(name: &str) -> Vec<u8> {
    let section = [SECTION_HEADER, 28, BYTE_ORDER_MAGIC, 1, u32::MAX, u32::MAX, 28];
    let resolution = u32::from(IF_TSRESOL) | 1 << 16;
    let padded = name.len().next_multiple_of(4);
    // The option if_name (2), if there is a name.
    let named = if name.is_empty() { 0 } else { 4 + padded };
    let len = 32 + named as u32;
    let interface = [INTERFACE, len, u32::from(ETHERNET), MAX_FRAME as u32, resolution, 9];
    let mut header: Vec<u8> = section.iter().chain(&interface).flat_map(|word| word.to_le_bytes()).collect();
    if named > 0 {
        header.extend([IF_NAME.to_le_bytes(), (name.len() as u16).to_le_bytes()].as_flattened());
        header.extend(name.bytes().chain(std::iter::repeat(0)).take(padded));
    }
    header.extend([0, len].iter().flat_map(|word: &u32| word.to_le_bytes()));
    header
}
