//! The benchmark `ringpass bench page`: what those who look on cost the demo.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ringpass::Error;
use ringpass_cli::errln;
use ringpass_cli::options::within;
use ringpass_cli::output::print_line;
use serde::Serialize;
use serde_json::Value;

use super::machine;
use super::median::median;
use super::process::Process;
use super::progress::progress;
use super::table::{self, row};

/// Rate of the demo while nobody looks, while browsers show its page, and while its metrics are read
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Rounds of half a second, in each of which everything is measured
    #[arg(long, value_name = "N", value_parser = within(1..=1000), default_value = "20")]
    rounds: usize,
    /// Print a JSON object for each
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench page                     nobody, one browser, 32 browsers, a scraper
  ringpass bench page --json";

/// Time between two reports of the demo, in seconds.
const INTERVAL: &str = "0.5";
/// Longest time until the demo says something.
const LIMIT: Duration = Duration::from_secs(20);

/// Median of the demo's rate while somebody looks on.
#[derive(Serialize)]
struct Row {
    watched_by: &'static str,
    mpps: f64,
    /// Change of the rate, in percent of that without anybody.
    change_percent: f64,
}

/// Kinds of those who look on.
#[derive(Clone, Copy)]
enum Watchers {
    Browsers(usize),
    /// Reads the metrics every 100 ms; Prometheus usually does every 15 s.
    Scraper,
}

const WAYS: [(&str, Watchers); 4] = [
    ("nobody", Watchers::Browsers(0)),
    ("one browser", Watchers::Browsers(1)),
    ("32 browsers", Watchers::Browsers(32)),
    ("a scraper, ten times a second", Watchers::Scraper),
];

/// Connections that are read until they are closed.
struct Watching(Vec<(TcpStream, JoinHandle<()>)>);

impl Watching {
    fn start(watchers: Watchers, page: SocketAddr, metrics: SocketAddr) -> Result<Self, Error> {
        let mut all = Self(Vec::new());
        match watchers {
            Watchers::Browsers(count) => {
                (0..count).try_for_each(|_| all.connect(page, "/events"))?;
            }
            Watchers::Scraper => all.connect(metrics, "/metrics")?,
        }
        Ok(all)
    }

    fn connect(&mut self, address: SocketAddr, path: &'static str) -> Result<(), Error> {
        let failed = |error| Error::os(format!("the demo at {address}"), error);
        let stream = TcpStream::connect(address).map_err(failed)?;
        let mut own = stream.try_clone().map_err(failed)?;
        write!(own, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").map_err(failed)?;
        let read = move || {
            let mut buffer = vec![0; 1 << 16];
            while matches!(own.read(&mut buffer), Ok(1..)) {}
        };
        self.0.push((stream, thread::spawn(read)));
        Ok(())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        for (stream, thread) in self.0.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = thread.join();
        }
    }
}

/// Returns an address that is free at the moment.
fn free() -> Result<SocketAddr, Error> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map_err(|error| Error::os("a free port of 127.0.0.1", error))
}

/// Returns the seconds since the start, and the frames that have been received.
fn seen(event: &Value) -> Option<[f64; 2]> {
    let ports = event["ports"].as_array()?;
    let frames: f64 = ports.iter().filter_map(|port| port["rx_packets"].as_f64()).sum();
    Some([event["seconds"].as_f64()?, frames])
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Error> {
    let (page, metrics) = (free()?, free()?);
    let web = format!("--web={page}");
    let scraped = metrics.to_string();
    let mut demo = Process::ringpass(&["demo", "--json", "-i", INTERVAL, &web, "--metrics", &scraped], &[])?;
    let mut rates = [const { Vec::new() }; WAYS.len()];
    demo.event("stats", LIMIT)?;
    for round in 0..args.rounds {
        progress(&format!("round {} of {}", round + 1, args.rounds));
        for (way, (_, watchers)) in WAYS.into_iter().enumerate() {
            let mut watching = Watching::start(watchers, page, metrics)?;
            // What is left of the interval in which they have come does not count.
            let before = demo.event("stats", LIMIT)?;
            if matches!(watchers, Watchers::Scraper) {
                for _ in 0..4 {
                    thread::sleep(Duration::from_millis(100));
                    watching.connect(metrics, "/metrics")?;
                }
            }
            let after = demo.event("stats", LIMIT)?;
            let Some(([start, first], [end, last])) = seen(&before).zip(seen(&after)) else {
                return Err(Error::Fault(format!("the demo reports {after}, which this bench does not read")));
            };
            rates[way].push((last - first) / (end - start) / 1e6);
        }
    }
    demo.summary()?;
    progress("");
    let rounded = |value: f64, places: f64| (value * places).round() / places;
    let without = median(rates[0].iter().copied());
    let rows = WAYS.iter().zip(&rates).map(|(&(watched_by, _), rates)| {
        let mpps = median(rates.iter().copied());
        let change_percent = rounded((mpps / without - 1.0) * 100.0, 100.0);
        Row { watched_by, mpps: rounded(mpps, 100.0), change_percent }
    });
    if args.json {
        rows.for_each(|row| print_line(&serde_json::to_string(&row).expect("numbers")));
        errln!("{}", machine::line());
        return Ok(());
    }
    let mut lines = vec![row(["the demo is watched by", "Mpps", "change"])];
    lines.extend(rows.map(|Row { watched_by, mpps, change_percent }| {
        vec![watched_by.to_owned(), format!("{mpps:.2}"), format!("{change_percent:+.2} %")]
    }));
    table::print("Frames that the demo receives, by those who look on (medians of alternating rounds)", &lines);
    print_line(&machine::line());
    Ok(())
}
