//! The decompressed bytes of a file, read through a buffer that can hold whole records.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flate2::read::MultiGzDecoder;

/// Fault of a file.
#[derive(Debug)]
pub(super) enum ReadError {
    /// It ends in the middle of a structure.
    Truncated,
    /// It violates its format, or cannot be read.
    Damaged(String),
}

type Zstd = zstd::Decoder<'static, BufReader<File>>;

enum Decoder {
    Plain(File),
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
    Zstd(Zstd),
}

impl Decoder {
    /// Detects the compression by the file's first bytes.
    fn new(mut file: File) -> io::Result<Self> {
        let mut start = Vec::with_capacity(4);
        (&mut file).take(4).read_to_end(&mut start)?;
        file.rewind()?;
        Ok(match *start {
            [0x1f, 0x8b, ..] => Self::Gzip(Box::new(MultiGzDecoder::new(BufReader::new(file)))),
            [0x28, 0xb5, 0x2f, 0xfd] => Self::Zstd(zstd::Decoder::new(file)?),
            _ => Self::Plain(file),
        })
    }
}

impl Read for Decoder {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buf),
            Self::Gzip(decoder) => decoder.read(buf),
            Self::Zstd(decoder) => decoder.read(buf),
        }
    }
}

pub(super) struct Stream {
    file: File,
    decoder: Decoder,
    buffer: Box<[u8]>,
    /// Position of the buffer's first byte in the decompressed file.
    base: u64,
    /// Range of bytes in the buffer that have not been consumed.
    start: usize,
    end: usize,
    /// Whether the decoder has failed; further reads from it would be meaningless.
    failed: bool,
}

impl Stream {
    /// Size of the buffer in bytes, several times the longest record.
    const BUFFER: usize = 1 << 20;

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // Opening a FIFO would wait for its writer.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("no regular file; copy what it holds into one"));
        }
        let decoder = Decoder::new(file.try_clone()?)?;
        Ok(Self { file, decoder, buffer: vec![0; Self::BUFFER].into(), base: 0, start: 0, end: 0, failed: false })
    }

    /// Returns to the first byte of the file. Costs nothing if all of it is still in the buffer.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        if self.base > 0 || self.failed {
            self.file.rewind()?;
            self.decoder = Decoder::new(self.file.try_clone()?)?;
            (self.base, self.end, self.failed) = (0, 0, false);
        }
        self.start = 0;
        Ok(())
    }

    /// Returns how many bytes have been consumed.
    pub(super) fn position(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Reads until `n` bytes (at most half the buffer) are in the buffer. Returns how many are; fewer than `n`
    /// at the end of the file.
    pub(super) fn fill(&mut self, n: usize) -> Result<usize, ReadError> {
        while self.end - self.start < n {
            if self.start + n > self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                self.base += self.start as u64;
                (self.start, self.end) = (0, self.end - self.start);
            }
            match self.decoder.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.failed = true;
                    return Err(match error.kind() {
                        ErrorKind::UnexpectedEof => ReadError::Truncated,
                        _ => ReadError::Damaged(error.to_string()),
                    });
                }
            }
        }
        Ok((self.end - self.start).min(n))
    }

    /// Reads like [`fill`](Self::fill) and returns the `n` bytes; an error if the file has fewer.
    pub(super) fn need(&mut self, n: usize) -> Result<&[u8], ReadError> {
        if self.fill(n)? < n { Err(ReadError::Truncated) } else { Ok(self.seen(n)) }
    }

    /// Returns the next `n` bytes, which must be in the buffer.
    pub(super) fn seen(&self, n: usize) -> &[u8] {
        &self.buffer[self.start..self.start + n]
    }

    /// Consumes `n` bytes, which must be in the buffer.
    pub(super) fn consume(&mut self, n: usize) {
        debug_assert!(self.start + n <= self.end);
        self.start += n;
    }

    /// Consumes any number of bytes, reading them first where necessary.
    pub(super) fn skip(&mut self, mut n: usize) -> Result<(), ReadError> {
        while n > 0 {
            let step = n.min(Self::BUFFER / 2);
            self.need(step)?;
            self.consume(step);
            n -= step;
        }
        Ok(())
    }
}
