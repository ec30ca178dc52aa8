//! `ringpass ctl capture PORT`: writes what passes a port of a running service to a capture file.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap_complete::ArgValueCandidates;
use ringpass::Error;
use ringpass::control::{Client, PATIENCE, Request};
use ringpass::signals::interrupted;
use serde_json::json;

use super::{names, port_names};
use crate::options::seconds;
use crate::output::{self, note, print_line};
use crate::signals::{begin_run, catch_first_signal};

/// Write what passes a port to a capture file, in pcapng, until Ctrl-C
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the port
    #[arg(add = ArgValueCandidates::new(|| names(port_names)))]
    port: String,
    /// Capture file; - for standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Frames that are captured, several times for any of them: udp:PORT, vlan:ID, dst-mac:MAC, ethertype:0xN [default: all]
    #[arg(short, long = "filter", value_name = "FILTER")]
    filters: Vec<String>,
    /// End after this many frames
    #[arg(short, long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
}

const EXAMPLES: &str = "EXAMPLES:
  ten seconds into a file:
      sudo ringpass ctl capture tap:a -w a.pcapng --time 10
  DNS, as it happens:
      sudo ringpass ctl capture tap:a -w - --filter udp:53 | tcpdump -nr -
  all else that tcpdump can select:
      sudo ringpass ctl capture tap:a -w - | tcpdump -nr - 'tcp[tcpflags] & tcp-syn != 0'";

impl Args {
    /// Captures these frames of a port, all if there is no filter, until the reader of the file leaves.
    pub fn new(port: String, write: PathBuf, filters: Vec<String>) -> Self {
        Self { port, write, filters, count: None, time: None }
    }
}

/// Runs the subcommand.
pub fn run(client: &mut Client, args: Args, json: bool) -> Result<(), Error> {
    /// Time after which a signal is noticed.
    const LOOK: Duration = Duration::from_millis(200);
    catch_first_signal()?;
    begin_run();
    let name = args.write.display().to_string();
    let is_stdout = args.write == Path::new("-");
    let path = if is_stdout { Path::new("/dev/stdout") } else { &args.write };
    let mut file = File::create(path).map_err(|error| Error::file(format!("capture file {name}"), error))?;
    let failed = |error: io::Error| Error::os("the capture's socket", error);
    let (mut own, other) = UnixStream::pair().map_err(failed)?;
    let request = Request::Capture { port: args.port.clone(), filters: args.filters };
    client.request_with(&request, &[other.as_fd()])?;
    drop(other);
    own.set_read_timeout(Some(LOOK)).map_err(failed)?;
    let start = Instant::now();
    let mut blocks = Blocks { left: args.count.unwrap_or(u64::MAX), ..Blocks::default() };
    let mut buffer = vec![0; 256 << 10];
    // The rest of what was captured comes once the service has heard that this is the end; with the socket's end it is over there too.
    let mut end = None;
    loop {
        let is_over = blocks.left == 0 || interrupted() || args.time.is_some_and(|time| start.elapsed() >= time);
        if is_over && end.is_none() {
            end = Some(Instant::now());
            let _ = own.shutdown(Shutdown::Write);
        }
        if end.is_some_and(|end| end.elapsed() > PATIENCE) {
            return Err(Error::Gone("the service does not end the capture".into()));
        }
        let read = match own.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                0
            }
            Err(error) => return Err(failed(error)),
        };
        let wanted = blocks.feed(&buffer[..read]);
        match file.write_all(&buffer[..wanted]) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                if is_stdout {
                    output::lost(error);
                }
                break;
            }
            Err(error) => return Err(Error::os(format!("capture file {name}"), error)),
        }
    }
    let Blocks { frames, lost, .. } = blocks;
    if json {
        // Standard output may have the capture.
        let line = json!({ "event": "captured", "port": args.port, "frames": frames, "lost": lost }).to_string();
        if is_stdout { note(&line) } else { print_line(&line) }
    } else {
        note(&format!("{}: {frames} frames captured, {lost} lost", args.port));
    }
    Ok(())
}

/// Counts the blocks of a pcapng stream that has packets of one interface (draft-ietf-opsawg-pcapng).
#[derive(Default)]
struct Blocks {
    /// Frames that may still come.
    left: u64,
    frames: u64,
    lost: u64,
    /// The beginning of the present block, as far as it is looked at.
    head: Vec<u8>,
    /// Bytes of the present block that have not been seen.
    rest: usize,
}

impl Blocks {
    const INTERFACE_STATISTICS: u32 = 5;
    const ENHANCED_PACKET: u32 = 6;
    /// Length of a block's type and length; of statistics up to their second option's end.
    const HEAD: usize = 8;
    const STATISTICS: usize = 44;

    /// Looks at the next bytes; returns how many of them are wanted, up to the end of the last wanted frame.
    fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.left > 0 {
            let is_head = self.head.len() < Self::HEAD;
            let take = (if is_head { Self::HEAD - self.head.len() } else { self.rest }).min(bytes.len() - at);
            let kept = if is_head { take } else { take.min(Self::STATISTICS.saturating_sub(self.head.len())) };
            self.head.extend_from_slice(&bytes[at..at + kept]);
            at += take;
            if !is_head {
                self.rest -= take;
            } else if self.head.len() == Self::HEAD {
                self.rest = (self.number(4) as usize).saturating_sub(Self::HEAD);
            }
            if self.head.len() >= Self::HEAD && self.rest == 0 {
                self.end_block();
            }
        }
        at
    }

    fn number(&self, at: usize) -> u32 {
        self.head.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    fn end_block(&mut self) {
        match self.number(0) {
            Self::ENHANCED_PACKET => {
                self.frames += 1;
                self.left -= 1;
            }
            Self::INTERFACE_STATISTICS => self.lost = u64::from(self.number(36)) | u64::from(self.number(40)) << 32,
            _ => {}
        }
        self.head.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of this type with this much in it.
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (12 + body.len() as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    }

    #[test]
    fn blocks_are_counted_however_they_come() {
        let mut statistics = vec![0; 40];
        statistics[28] = 7;
        let parts = [
            block(0x0a0d_0d0a, &[0; 16]),
            block(6, &[1; 100]),
            block(5, &statistics),
            block(6, &[]),
            block(6, &[2; 60]),
        ];
        let stream = parts.concat();
        for step in [1, 3, 8, 50, stream.len()] {
            let mut blocks = Blocks { left: 2, ..Blocks::default() };
            let taken: usize = stream.chunks(step).map(|bytes| blocks.feed(bytes)).sum();
            assert_eq!((blocks.frames, blocks.lost, blocks.left), (2, 7, 0), "{step}");
            assert_eq!(taken, stream.len() - 72, "all up to the second frame, {step}");
        }
    }
}
