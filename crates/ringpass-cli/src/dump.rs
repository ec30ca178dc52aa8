//! The subcommand `ringpass dump PORT`: writes received frames to a capture file, or prints a line for each.

mod describe;

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ringpass::{Burst, Error, Packet, QueuePair, Worker, open};
use ringpass_host_ports::capture_file::{self, Direction, Writer};
use serde_json::json;

use crate::options::{Options, within};
use crate::output;
use crate::stats::{Fields, OutputStream, print_line};
use describe::describe;

/// Write received frames to a capture file, or print a line for each
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The port (see 'ringpass --help' for port addresses)
    port: String,
    /// Capture file: pcap, or pcapng if its name ends in .pcapng; compressed if .gz or .zst follows; - for
    /// standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Bytes of each frame that are kept
    #[arg(short, long, value_name = "BYTES", default_value = "65535", value_parser = within(1..=65535))]
    snaplen: usize,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "EXAMPLES:
  a line for each frame:
      ringpass dump pcap:a.pcap
  ten seconds into a file:
      sudo ringpass dump 0000:01:00.0 -w a.pcapng --time 10
  on to another program:
      sudo ringpass dump packet:veth0 -w - | tcpdump -r -";

enum Output {
    File(Writer),
    Text(String),
    Json(String),
}

struct Dump {
    output: Output,
    snaplen: usize,
    start: Instant,
    /// Time of the first frame's record in nanoseconds since 1970, if the frames come from a file.
    first: Option<u64>,
    unflushed: bool,
}

/// Runs the subcommand.
pub fn run(mut args: Args) -> Result<(), Error> {
    if args.options.queues > 1 {
        return Err(Error::Config("dump writes in the order of one queue; leave out --queues".into()));
    }
    let left = args.options.count.take().unwrap_or(u64::MAX);
    let mut run = args.options.run()?;
    let mut ports = open([&args.port], &run.config)?;
    let stdout = Path::new("-");
    let output = match args.write.as_deref() {
        Some(path) => Output::File(Writer::create(if path == stdout { Path::new("/dev/stdout") } else { path })?),
        None if args.options.json => Output::Json(String::new()),
        None => Output::Text(String::new()),
    };
    run.printer.live &= !matches!(output, Output::Text(_));
    if args.write.as_deref() == Some(stdout) || matches!(output, Output::Text(_)) {
        run.printer.sink = OutputStream::Stderr;
    }
    run.enter_sandbox(ports.needs())?;
    let failed = Arc::new(Mutex::new(None));
    let dump = Dump { output, snaplen: args.snaplen, start: Instant::now(), first: None, unflushed: false };
    let (queues, failure) = (ports[0].take_queues().remove(0), failed.clone());
    run.spawn(move |worker| {
        if let Err(error) = dump.run(queues, left, worker) {
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    })?;
    run.control(&mut ports, &mut |_| Fields::new())?;
    match failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // The reader of standard output has closed it, which is no error of the run.
        Some(Error::Os { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            output::lost(source);
            Ok(())
        }
        Some(error) => Err(error),
        None => Ok(()),
    }
}

impl Dump {
    fn run(mut self, queues: QueuePair, left: u64, worker: Worker) -> Result<(), Error> {
        let result = self.receive(queues, left, worker);
        match self.output {
            Output::File(writer) => result.and(writer.finish()),
            Output::Text(_) | Output::Json(_) => result,
        }
    }

    fn receive(&mut self, mut queues: QueuePair, mut left: u64, mut worker: Worker) -> Result<(), Error> {
        let mut burst = Burst::new(worker.batch);
        while worker.running() && left > 0 {
            if left < worker.batch as u64 {
                burst = Burst::new(left as usize);
            }
            let received = queues.rx.rx_burst(&mut burst);
            left -= received as u64;
            if received > 0 {
                self.put(&burst, queues.rx.rx_timestamps())?;
                burst.clear();
            } else {
                self.flush()?;
            }
            worker.after(received, &mut [&mut *queues.rx]);
        }
        Ok(())
    }

    /// Writes the frames of a burst. Recorded frames keep the time of their record; others get the current
    /// time.
    fn put(&mut self, burst: &Burst, rx_timestamps: &[u64]) -> Result<(), Error> {
        let now = (capture_file::now(), self.start.elapsed().as_secs_f64());
        self.unflushed = true;
        for (index, packet) in burst.iter().enumerate() {
            let (nanos, seconds) = match rx_timestamps.get(index) {
                // Records need not be in order of time.
                Some(&nanos) => {
                    (nanos, (i128::from(nanos) - i128::from(*self.first.get_or_insert(nanos))) as f64 / 1e9)
                }
                None => now,
            };
            // Writing to a string does not fail.
            let _ = match &mut self.output {
                Output::File(writer) => {
                    writer.write_packet(nanos, Direction::Received, packet, self.snaplen)?;
                    Ok(())
                }
                Output::Text(text) => {
                    let frame = linearize(packet);
                    writeln!(text, "{seconds:>11.6}  {:>5}  {}", frame.len(), describe(&frame))
                }
                Output::Json(text) => {
                    let (frame, micros) = (linearize(packet), (seconds * 1e6).round() / 1e6);
                    let (bytes, summary) = (frame.len(), describe(&frame));
                    let event = json!({
                        "event": "packet", "seconds": micros, "nanos": nanos, "bytes": bytes, "summary": summary,
                    });
                    writeln!(text, "{event}")
                }
            };
        }
        if let Output::Text(text) | Output::Json(text) = &mut self.output {
            print_line(text.trim_end());
            text.clear();
        }
        Ok(())
    }

    /// Flushes the file while no frames arrive, for somebody who watches it.
    fn flush(&mut self) -> Result<(), Error> {
        match &mut self.output {
            Output::File(writer) if std::mem::take(&mut self.unflushed) => writer.flush(),
            _ => Ok(()),
        }
    }
}

/// Returns a frame's bytes in one piece, with the VLAN tag from the packet's metadata put back.
fn linearize(packet: &Packet) -> Vec<u8> {
    let mut frame: Vec<u8> = packet.segments().flat_map(|segment| segment.to_vec()).collect();
    if let Some(tag) = packet.vlan().filter(|_| frame.len() >= 12) {
        let [high, low] = tag.to_be_bytes();
        frame.splice(12..12, [0x81, 0, high, low]);
    }
    frame
}
