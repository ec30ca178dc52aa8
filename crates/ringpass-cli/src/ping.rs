//! The subcommand `ringpass ping PORT`: sends probes and measures their round trips.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringpass::{Burst, Error, MacAddress, Mempool, QueuePair, WakeSource, Wakeable, Worker, open};
use ringpass_memory::RawBytes;
use serde_json::{Value, json};

use crate::options::{Options, seconds, within};
use crate::output::is_quiet;
use crate::stats::{Fields, fields, print_line};

/// Measure round trips to 'ringpass echo', or through any loop
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The port (see 'ringpass --help' for port addresses)
    port: String,
    /// Seconds until a probe counts as lost
    #[arg(short = 'W', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    timeout: Duration,
    /// Bytes of a probe without its checksum, 60 to 1514
    #[arg(long, value_name = "BYTES", default_value = "60", value_parser = within(60..=1514))]
    size: usize,
    /// Destination MAC address
    #[arg(long, value_name = "MAC", default_value = "ff:ff:ff:ff:ff:ff")]
    dst_mac: MacAddress,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "EXAMPLES:
  to 'ringpass echo' at the other end of the cable:
      sudo ringpass ping 0000:01:00.0
  as many as fit, one at a time, for the percentiles:
      sudo ringpass ping packet:veth1 -i 0 -c 100000";

/// IEEE 802 Local Experimental EtherType 1.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// Template of the probes: addresses, EtherType, run, sequence number.
#[derive(Clone)]
struct Probe {
    frame: Vec<u8>,
    run: [u8; 4],
}

impl Probe {
    fn new(from: MacAddress, to: MacAddress, size: usize) -> Self {
        let run = std::process::id().to_be_bytes();
        let mut frame = vec![0; size];
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&from.0);
        frame[12..14].copy_from_slice(&ETHERTYPE);
        frame[14..18].copy_from_slice(&run);
        Self { frame, run }
    }

    fn write(&mut self, sequence: u64) -> &[u8] {
        self.frame[18..26].copy_from_slice(&sequence.to_be_bytes());
        &self.frame
    }

    fn read<'a>(&self, frame: impl Into<RawBytes<'a>>) -> Option<u64> {
        let frame = frame.into();
        let own = frame.array(12)? == ETHERTYPE && frame.array(14)? == self.run;
        own.then_some(u64::from_be_bytes(frame.array(18)?))
    }
}

/// Results of the probes so far.
struct Results {
    sent: u64,
    lost: u64,
    /// Round trips in nanoseconds.
    round_trips: Histogram<u64>,
}

impl Results {
    fn new() -> Self {
        // Up to 100 s with three digits; longer round trips are recorded as 100 s.
        let round_trips = Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("bounds in order");
        Self { sent: 0, lost: 0, round_trips }
    }

    fn micros(&self) -> [(&'static str, f64); 8] {
        let h = &self.round_trips;
        let micros = |nanos: f64| (nanos / 100.0).round() / 10.0;
        let at = |quantile| micros(h.value_at_quantile(quantile) as f64);
        [
            ("min", micros(h.min() as f64)),
            ("avg", micros(h.mean())),
            ("p50", at(0.5)),
            ("p90", at(0.9)),
            ("p99", at(0.99)),
            ("p99.9", at(0.999)),
            ("max", micros(h.max() as f64)),
            ("stdev", micros(h.stdev())),
        ]
    }

    fn report(&self) -> Fields {
        let replies = self.round_trips.len();
        let mut report =
            fields([("probes", self.sent.into()), ("answers", replies.into()), ("lost", self.lost.into())]);
        if replies > 0 {
            let micros = self.micros().map(|(name, value)| (name.to_owned(), json!(value)));
            report.insert("round_trip_us".into(), Value::Object(micros.into_iter().collect()));
        }
        report
    }
}

/// Runs the subcommand.
pub fn run(mut args: Args) -> Result<(), Error> {
    let count = args.options.count.take().unwrap_or(u64::MAX);
    let interval = args.options.interval;
    args.options.interval = interval.max(Duration::from_secs(1));
    let mut run = args.options.run()?;
    let mut ports = open([&args.port], &run.config)?;
    if args.size > args.options.mtu + 14 {
        let most = args.options.mtu + 14;
        return Err(Error::Config(format!(
            "probes of {} bytes, but --mtu allows {most}; make them shorter",
            args.size
        )));
    }
    let probe = Probe::new(ports[0].mac(), args.dst_mac, args.size);
    let results = Arc::new(Mutex::new(Results::new()));
    // At fast intervals there is no line for each probe; the live line has the totals.
    let fast = interval < Duration::from_millis(10);
    let print = if fast || is_quiet() {
        Print::Nothing
    } else if args.options.json {
        Print::Json
    } else {
        Print::Text
    };
    run.printer.live &= args.options.json || fast;
    let timeout = args.timeout;
    let pinger = Pinger {
        probe,
        pool: ports.pool().clone(),
        interval,
        timeout,
        left: count,
        outstanding: VecDeque::new(),
        results: results.clone(),
        print,
    };
    run.enter_sandbox(ports.needs())?;
    let first = ports[0].take_queues().remove(0);
    run.spawn(move |worker| pinger.run(first, worker))?;
    let json = args.options.json;
    run.control(&mut ports, &mut |_| lock(&results).report())?;
    let results = lock(&results);
    if results.round_trips.is_empty() {
        let remedy = "start 'ringpass echo' at the other end, or allow more with --timeout";
        return Err(Error::Gone(format!("no answer to {} probes; {remedy}", results.sent)));
    }
    if !json {
        let micros = results.micros().map(|(name, value)| format!("{name} {value}")).join(", ");
        print_line(&format!("round trip in µs: {micros}"));
    }
    Ok(())
}

fn lock(results: &Mutex<Results>) -> std::sync::MutexGuard<'_, Results> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Print {
    Text,
    Json,
    Nothing,
}

impl Print {
    fn answer(&self, sequence: u64, bytes: usize, round_trip: Duration) {
        let micros = (round_trip.as_nanos() as f64 / 100.0).round() / 10.0;
        match self {
            Self::Text => print_line(&format!("{bytes} bytes back: seq={sequence} time={micros} µs")),
            Self::Json => {
                print_line(&json!({"event": "answer", "sequence": sequence, "round_trip_us": micros}).to_string())
            }
            Self::Nothing => {}
        }
    }

    fn lost(&self, sequence: u64) {
        match self {
            Self::Text => print_line(&format!("no answer: seq={sequence}")),
            Self::Json => print_line(&json!({"event": "lost", "sequence": sequence}).to_string()),
            Self::Nothing => {}
        }
    }
}

/// State of the worker that sends and receives. The results are locked only in rounds that change them; the
/// main thread reads them once a second.
struct Pinger {
    probe: Probe,
    pool: Mempool,
    interval: Duration,
    timeout: Duration,
    /// Probes yet to be sent.
    left: u64,
    /// Probes without a reply, oldest first, each with its time of sending. `None` marks a probe that was
    /// answered before an older one.
    outstanding: VecDeque<(u64, Option<Instant>)>,
    results: Arc<Mutex<Results>>,
    print: Print,
}

/// Wakes the worker for its next timed action, such as a probe or a timeout.
struct Timer(Option<Instant>);

impl Wakeable for Timer {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(self.0.map_or(WakeSource::Never, WakeSource::At));
    }
}

impl Pinger {
    /// Time after a probe during which the worker polls for the reply and does not sleep.
    const POLL: Duration = Duration::from_millis(10);
    /// Delay before the next try if a probe could not be sent.
    const RETRY: Duration = Duration::from_millis(1);

    fn run(mut self, mut queues: QueuePair, mut worker: Worker) {
        let mut burst = Burst::new(worker.batch);
        let (mut next, mut last_sent) = (Instant::now(), None);
        while worker.running() && (self.left > 0 || !self.outstanding.is_empty()) {
            let now = Instant::now();
            let due = now >= next && (!self.interval.is_zero() || self.outstanding.is_empty());
            if due && self.left > 0 {
                if self.send(&mut queues) {
                    (next, last_sent) = (now + self.interval, Some(now));
                } else {
                    next = now + Self::RETRY;
                }
            }
            let received = queues.rx.rx_burst(&mut burst);
            self.receive_replies(&burst);
            burst.clear();
            self.expire_probes();
            let awaited = !self.outstanding.is_empty() && last_sent.is_some_and(|at| at.elapsed() < Self::POLL);
            if received > 0 || !awaited {
                worker.after(received, &mut [&mut *queues.rx, &mut self.timer(next)]);
            }
        }
    }

    /// Returns a timer for the next probe or for the timeout of the oldest one, whichever is earlier.
    fn timer(&self, next: Instant) -> Timer {
        let next = (self.left > 0 && (!self.interval.is_zero() || self.outstanding.is_empty())).then_some(next);
        let oldest = self.outstanding.front().and_then(|&(_, sent)| sent);
        let lost = oldest.and_then(|sent| sent.checked_add(self.timeout));
        Timer(next.into_iter().chain(lost).min())
    }

    /// Sends the next probe. Returns `false` if there is no buffer or no room in the ring now.
    fn send(&mut self, queues: &mut QueuePair) -> bool {
        let mut burst = Burst::new(1);
        let sequence = lock(&self.results).sent;
        let Some(mut packet) = self.pool.alloc().filter(|packet| packet.capacity() >= self.probe.frame.len()) else {
            return false;
        };
        let fits = packet.copy_from(self.probe.write(sequence));
        debug_assert!(fits);
        burst.push(packet);
        let at = Instant::now();
        let sent = queues.tx.tx_burst(&mut burst) > 0;
        if sent {
            self.outstanding.push_back((sequence, Some(at)));
            lock(&self.results).sent += 1;
            self.left -= 1;
        }
        sent
    }

    fn receive_replies(&mut self, burst: &Burst) {
        let now = Instant::now();
        for packet in burst.iter() {
            let Some(sequence) = self.probe.read(packet) else { continue };
            let first = self.outstanding.front().map_or(0, |(first, _)| *first);
            let index = sequence.checked_sub(first).and_then(|index| usize::try_from(index).ok());
            let Some((_, sent)) = index.and_then(|index| self.outstanding.get_mut(index)) else { continue };
            let Some(round_trip) = sent.take().map(|sent| now.duration_since(sent)) else { continue };
            lock(&self.results).round_trips.saturating_record(round_trip.as_nanos() as u64);
            self.print.answer(sequence, packet.len(), round_trip);
        }
        while let Some((_, None)) = self.outstanding.front() {
            self.outstanding.pop_front();
        }
    }

    /// Counts probes that are older than the timeout as lost.
    fn expire_probes(&mut self) {
        while let Some(&(sequence, sent)) = self.outstanding.front()
            && sent.is_none_or(|at| at.elapsed() > self.timeout)
        {
            self.outstanding.pop_front();
            if sent.is_some() {
                lock(&self.results).lost += 1;
                self.print.lost(sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_known_by_run_and_sequence() {
        let mut probe = Probe::new(MacAddress([2; 6]), MacAddress([4; 6]), 60);
        let frame = probe.write(77).to_vec();
        assert_eq!((frame.len(), probe.read(&frame)), (60, Some(77)));
        let other = Probe { run: [0; 4], ..probe.clone() };
        assert_eq!(other.read(&frame), None);
        assert_eq!(probe.read(&frame[..20]), None);
    }

    #[test]
    fn results_are_in_microseconds() {
        let mut results = Results::new();
        assert!(!results.report().contains_key("round_trip_us"));
        (1..=1000).for_each(|micros| results.round_trips.saturating_record(micros * 1000));
        results.sent = 1001;
        let report = results.report();
        assert_eq!((report["probes"].clone(), report["answers"].clone()), (json!(1001), json!(1000)));
        let p99 = report["round_trip_us"]["p99"].as_f64().unwrap();
        assert!((989.0..=991.0).contains(&p99), "{p99}");
    }
}
