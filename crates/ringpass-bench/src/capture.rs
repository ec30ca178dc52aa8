//! The benchmark `ringpass bench capture`: what a capture costs the queue that it copies from, and another one of the same thread.

use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ringpass::{Burst, Error, Mempool, MempoolConfig, Port, PortConfig, TxQueue, cycles};
use ringpass_cli::errln;
use ringpass_cli::options::within;
use ringpass_cli::output::print_line;
use ringpass_host_ports::{LiveCapture, Null};
use serde::Serialize;

use super::cores::check_interrupted;
use super::machine;
use super::median::median;
use super::progress::progress;
use super::table::{self, row};
use super::tsc::frequency;

/// Cost of a frame to a queue without a capture, with one, and with one whose filter takes none of its frames; and to a queue beside it
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Bytes of a frame without its checksum, 60 to 1514
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = within(60..=1514), default_value = "60,1514")]
    sizes: Vec<usize>,
    /// Rounds, in each of which everything is measured
    #[arg(long, value_name = "N", value_parser = within(1..=1000), default_value = "200")]
    rounds: usize,
    /// Print a JSON object for each size
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench capture                  frames of 60 and 1514 bytes
  ringpass bench capture --json";

/// Frames in a burst, and bursts in a round, which the capture's ring of 4096 takes all.
const BATCH: usize = 32;
const BURSTS: usize = 64;

#[derive(Serialize)]
struct Row {
    size: usize,
    /// Nanoseconds of a frame that goes to a port which drops it, with its allocation.
    without_ns: f64,
    /// Nanoseconds that a capture adds.
    captured_ns: f64,
    /// Nanoseconds that a capture adds whose filter takes no frame.
    filtered_ns: f64,
    /// Nanoseconds that the capture adds to a frame of another port, which the same thread sends between those that are captured.
    other_ns: f64,
    /// Frames that a reader was to get and has not, of those in all rounds.
    lost: u64,
}

/// A way to send frames.
struct Way {
    tx: Box<dyn TxQueue>,
    /// Queue of a port without a capture.
    beside: Box<dyn TxQueue>,
    capture: Option<(LiveCapture, UnixStream, std::thread::JoinHandle<u64>)>,
    /// Cycles of a frame in each round, and of one of the other port.
    cycles: [Vec<f64>; 2],
}

impl Way {
    /// Sends to nobody, with a capture of these filters, if any.
    fn new(filters: Option<&[&str]>) -> Result<Self, Error> {
        let [tx, beside] = [(); 2].map(|()| Null::open(&PortConfig::default()).take_queues().remove(0).tx);
        let Some(filters) = filters else { return Ok(Self { tx, beside, capture: None, cycles: Default::default() }) };
        let (own, other) = UnixStream::pair().map_err(|error| Error::os("a pair of sockets", error))?;
        let filters = filters.iter().map(|filter| filter.parse()).collect::<Result<_, _>>().map_err(Error::Config)?;
        let capture = LiveCapture::start(other.into(), "null", filters)?;
        let tx = capture.wrap_tx()(tx);
        let mut stream = own.try_clone().map_err(|error| Error::os("a socket", error))?;
        let read = std::thread::spawn(move || {
            std::io::copy(&mut stream.by_ref().take(u64::MAX), &mut std::io::sink()).unwrap_or(0)
        });
        Ok(Self { tx, beside, capture: Some((capture, own, read)), cycles: Default::default() })
    }

    /// Sends the frames of a round.
    fn round(&mut self, pool: &Mempool, size: usize) {
        let (mut cache, mut burst) = (pool.cache(), Burst::new(BATCH));
        let mut sums = [0; 2];
        for _ in 0..BURSTS {
            for (tx, sum) in [&mut self.tx, &mut self.beside].into_iter().zip(&mut sums) {
                let start = cycles();
                cache.alloc(&mut burst);
                burst.iter_mut().for_each(|packet| packet.set_len(size));
                tx.tx_burst(&mut burst);
                *sum += cycles() - start;
            }
        }
        for (all, sum) in self.cycles.iter_mut().zip(sums) {
            all.push(sum as f64 / (BATCH * BURSTS) as f64);
        }
    }

    /// Ends the capture; returns how many frames its reader has not got.
    fn end(self) -> u64 {
        let Some((capture, own, read)) = self.capture else { return 0 };
        let _ = own.shutdown(Shutdown::Write);
        while !capture.has_ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let lost = capture.lost();
        drop((capture, self.tx));
        let _ = read.join();
        lost
    }
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Error> {
    let pool = Mempool::new(&MempoolConfig { buffers: 8192, ..Default::default() })?;
    let ns = 1e9 / frequency();
    let mut rows = Vec::new();
    for &size in &args.sizes {
        let mut ways = [Way::new(None)?, Way::new(Some(&[]))?, Way::new(Some(&["udp:53", "ethertype:0x88b5"]))?];
        for round in 0..args.rounds {
            check_interrupted()?;
            progress(&format!("{size} bytes, round {} of {}", round + 1, args.rounds));
            for way in &mut ways {
                way.round(&pool, size);
                // The copies are written meanwhile, so that there is always room for the next ones.
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let of = |port: usize| [0, 1, 2].map(|way| median(ways[way].cycles[port].iter().copied()) * ns);
        let ([without, captured, filtered], [other, beside, _]) = (of(0), of(1));
        let rounded = |ns: f64| (ns * 10.0).round() / 10.0;
        rows.push(Row {
            size,
            without_ns: rounded(without),
            captured_ns: rounded(captured - without),
            filtered_ns: rounded(filtered - without),
            other_ns: rounded(beside - other),
            lost: ways.into_iter().map(Way::end).sum(),
        });
    }
    progress("");
    if args.json {
        rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers")));
        errln!("{}", machine::line());
        return Ok(());
    }
    let mut lines = vec![row([
        "bytes",
        "ns without",
        "ns that a capture adds",
        "one that takes nothing",
        "to another port",
        "lost",
    ])];
    lines.extend(rows.iter().map(|row| {
        let Row { size, without_ns, captured_ns, filtered_ns, other_ns, lost } = row;
        vec![
            size.to_string(),
            format!("{without_ns:.1}"),
            format!("{captured_ns:.1}"),
            format!("{filtered_ns:.1}"),
            format!("{other_ns:.1}"),
            lost.to_string(),
        ]
    }));
    table::print("A frame sent to a port that drops it, with and without a capture of that port", &lines);
    print_line(&machine::line());
    Ok(())
}
