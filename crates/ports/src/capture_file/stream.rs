//! The bytes of a file, decompressed, through a buffer in which whole records are seen.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek};
use std::path::Path;

use flate2::read::MultiGzDecoder;

/// What is wrong with a file's bytes.
#[derive(Debug)]
pub(super) enum Fault {
    /// It ends within something.
    Truncated,
    /// It contradicts its format, or cannot be read.
    Damaged(String),
}

type Zstd = zstd::Decoder<'static, BufReader<File>>;

enum Decoder {
    Plain(File),
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
    Zstd(Zstd),
}

impl Decoder {
    /// Tells the compression by the file's first bytes.
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
    /// The bytes in the buffer that were not consumed yet.
    start: usize,
    end: usize,
    /// The decoder has failed: what it says when it is asked again means nothing.
    failed: bool,
}

impl Stream {
    /// Takes the longest record several times.
    const BUFFER: usize = 1 << 20;

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let decoder = Decoder::new(file.try_clone()?)?;
        Ok(Self { file, decoder, buffer: vec![0; Self::BUFFER].into(), base: 0, start: 0, end: 0, failed: false })
    }

    /// Back to the file's first byte. Costs nothing if all of it is still in the buffer.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        if self.base > 0 || self.failed {
            self.file.rewind()?;
            self.decoder = Decoder::new(self.file.try_clone()?)?;
            (self.base, self.end, self.failed) = (0, 0, false);
        }
        self.start = 0;
        Ok(())
    }

    /// How many bytes were consumed.
    pub(super) fn position(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Reads on until `n` bytes (at most half the buffer) can be seen; returns those that can, fewer at the file's end.
    pub(super) fn fill(&mut self, n: usize) -> Result<usize, Fault> {
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
                        ErrorKind::UnexpectedEof => Fault::Truncated,
                        _ => Fault::Damaged(error.to_string()),
                    });
                }
            }
        }
        Ok((self.end - self.start).min(n))
    }

    /// As [`fill`](Self::fill), where less is a fault.
    pub(super) fn need(&mut self, n: usize) -> Result<&[u8], Fault> {
        if self.fill(n)? < n { Err(Fault::Truncated) } else { Ok(self.seen(n)) }
    }

    /// The next `n` bytes, which were filled in before.
    pub(super) fn seen(&self, n: usize) -> &[u8] {
        &self.buffer[self.start..self.start + n]
    }

    /// Consumes `n` bytes that were filled in before.
    pub(super) fn consume(&mut self, n: usize) {
        debug_assert!(self.start + n <= self.end);
        self.start += n;
    }

    /// Consumes `n` bytes, however many.
    pub(super) fn skip(&mut self, mut n: usize) -> Result<(), Fault> {
        while n > 0 {
            let step = n.min(Self::BUFFER / 2);
            self.need(step)?;
            self.consume(step);
            n -= step;
        }
        Ok(())
    }
}
