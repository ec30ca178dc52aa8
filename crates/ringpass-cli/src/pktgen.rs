//! The subcommand `ringpass pktgen PORT`: sends frames at a given rate, and evaluates those that come back.

pub mod frame;
pub mod generator;
pub mod options;
pub mod rate;
pub mod returned;
pub mod stream;
pub mod template;
mod track;
mod vary;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpass::{
    Burst, Error, MacAddress, Mempool, Port, Ports, QueuePair, RxDecorator, RxQueue, Totals, WakeSource, Wakeable,
    Worker, open,
};
use ringpass_host_ports::Pcap;
use ringpass_port::{PcapConfig, ReplaySpeed};

use crate::options::{Options, within};
use crate::run::close;
use crate::run_observer::RunObserver;
use crate::stats::{Fields, grouped};
use frame::{Endpoints, random_run};
use generator::{FrameSource, Generator, PacedStream, Share};
use options::StreamOptions;
use rate::{Pace, Paced, Rate, RequestedRate};
use returned::{ReturnStats, ReturnTracker, ReturnTrackers, missed, report, sending_time};
use ringpass::signals::interrupted;
use stream::{Flows, Plan, Stream};
use template::Checksums;

/// Send generated or captured frames, and evaluate those that come back
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The port (see 'ringpass --help' for port addresses)
    port: String,
    #[command(flatten)]
    frames: StreamOptions,
    /// Frames a second (100k, 1.5M), Gbit/s (2G), percent of the link's speed (40%; here a frame counts 24 bytes
    /// more, for preamble, checksum and gap), or max [default: max]
    #[arg(long)]
    rate: Option<RequestedRate>,
    /// Frames that each queue sends back to back, 1 to 65536; pauses between bursts keep the average --rate
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = within(1..=65536), requires = "rate")]
    burst: Option<usize>,
    /// Most frames in flight, 1 to 65536; frames that are not back after a second no longer count [default: no
    /// limit]
    #[arg(long, value_name = "N", value_parser = within(1..=65536), conflicts_with = "pcap")]
    window: Option<usize>,
    /// Send several streams, from a file in TOML: tables [[stream]] with options for frames as keys (size, imix,
    /// flows, dst-mac, src-mac, dst-ip, src-ip, port, tcp, vlan, vary), and with weight, the frames of each round, 1
    /// to 1000 [default: 1], or with a rate of their own
    #[arg(long, value_name = "FILE", conflicts_with_all = FRAMES)]
    streams: Option<PathBuf>,
    /// Send the frames of a capture file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "imix", "flows", "tcp", "vlan", "vary", "streams"])]
    pcap: Option<PathBuf>,
    /// Speed of the capture: recorded, max or a factor of recorded [default: recorded, or --rate]
    #[arg(long, value_name = "SPEED", value_parser = speed, requires = "pcap", conflicts_with = "rate")]
    speed: Option<ReplaySpeed>,
    /// How often the capture is played; 0 to repeat without end
    #[arg(long = "loop", value_name = "N", default_value = "1", requires = "pcap")]
    repeat: u32,
    #[command(flatten)]
    options: Options,
}

/// Options that describe frames.
const FRAMES: [&str; 11] =
    ["size", "imix", "flows", "dst_mac", "src_mac", "dst_ip", "src_ip", "l4_port", "tcp", "vlan", "vary"];

/// Most flows of all streams together: each takes 136 bytes of every worker.
const MAX_FLOWS: usize = 1 << 20;

const EXAMPLES: &str = "EXAMPLES:
  how fast the driver sends, with a software 82599:
      ringpass pktgen model:null --time 5
  100,000 frames a second in 64 flows:
      sudo ringpass pktgen tap:rp0 --rate 100k --flows 64
  a mix of sizes at 5 Gbit/s:
      sudo ringpass pktgen 0000:01:00.0 --imix --rate 5G
  TCP over IPv6 with a VLAN tag of priority 5:
      sudo ringpass pktgen 0000:01:00.0 --tcp --dst-ip 2001:db8::1 --vlan 100:5
  the 65535 hosts 10.0.0.1 and following as senders, to ports at random:
      sudo ringpass pktgen tap:rp0 --src-ip 10.0.0.1 --vary src-ip=count --vary dst-port=random:1024-65535
  bursts of 64 frames, at 40 percent of the link's speed on average:
      sudo ringpass pktgen 0000:01:00.0 --rate 40% --burst 64
  streams of a file, with three frames of the first for each of the second:
      printf '[[stream]]\\nweight = 3\\n[[stream]]\\nvlan = 100\\n' >streams.toml
      sudo ringpass pktgen tap:rp0 --streams streams.toml --rate 100k
  a capture file as recorded, three times:
      sudo ringpass pktgen packet:veth0 --pcap a.pcap --loop 3";

fn speed(text: &str) -> Result<ReplaySpeed, String> {
    match text {
        "max" => Ok(ReplaySpeed::Max),
        "recorded" => Ok(ReplaySpeed::Recorded(1.0)),
        factor => match factor.parse() {
            Ok(factor) if factor > 0.0 && f64::is_finite(factor) => Ok(ReplaySpeed::Recorded(factor)),
            _ => Err("write recorded, max, or a factor above 0, such as 2.5".into()),
        },
    }
}

/// Runs the subcommand.
pub fn run(mut args: Args) -> Result<(), Error> {
    // The run's own limit is not used: each worker counts its frames, so that the total is exact.
    let count = args.options.count.take();
    let options = args.streams()?;
    let mut run = args.options.run()?;
    let mut ports = open([&args.port], &run.config)?;
    let streams = args.shared(options, &mut *ports[0])?;
    let pace = args.pace(&mut *ports[0])?;
    let epoch = Instant::now();
    let workers = args.options.queues;
    let sources = match &args.pcap {
        Some(path) => captured(&args, path, pace, &mut ports)?,
        None => generated(&args, &streams, pace, ports.pool(), epoch)?,
    };
    let stats = |stream: &SharedStream| Arc::new(ReturnStats::new(epoch, workers, stream.options.is_varied()));
    let returned: Vec<Arc<ReturnStats>> = streams.iter().map(stats).collect();
    run.enter_sandbox(ports.needs())?;
    let queues = ports[0].take_queues();
    for (i, (queues, source)) in queues.into_iter().zip(sources).enumerate() {
        let (number, all) = (i as u64, workers as u64);
        let share = count.map_or(u64::MAX, |count| count / all + u64::from(number < count % all));
        let tracker = |(stream, returned): (&SharedStream, &Arc<ReturnStats>)| {
            ReturnTracker::new(&stream.ends, stream.options.flows(workers), returned, i)
        };
        let trackers = ReturnTrackers::new(streams.iter().zip(&returned).map(tracker).collect());
        let window = args.window.map(|most| Window::new((most as u64 / all).max(1)));
        run.spawn(move |worker| work(source, queues, share, (trackers, window), worker))?;
    }
    // The frames of a capture have sizes of their own, and may end before the time does.
    let rate = if args.pcap.is_some() { None } else { expected_rate(&streams, pace.rate) };
    let mut observer = Sending { returned, rate };
    let result = run.control_with(&mut ports, &mut observer);
    close(ports);
    result
}

/// A stream of frames on a port.
struct SharedStream {
    options: StreamOptions,
    ends: Endpoints,
    share: Share,
}

/// Returns the MAC address that a port sends from; one of our own if it has none.
pub fn own_mac(port: &dyn Port) -> MacAddress {
    Some(port.mac()).filter(|mac| mac.0 != [0; 6]).unwrap_or(MacAddress([2, 0, 0, 0, 0, 1]))
}

/// Returns the frames a second that were asked for in all; `None` if there is no limit. Streams without a rate share
/// `rate`.
fn expected_rate(streams: &[SharedStream], rate: Rate) -> Option<f64> {
    let [mut own, mut bytes, mut weights] = [0.0; 3];
    for SharedStream { options, ends, share } in streams {
        let sizes = options.sizes(ends);
        let average = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
        match share {
            Share::Rate(rate) => own += rate.frames(average)?,
            Share::Weight(weight) => {
                bytes += average * f64::from(*weight);
                weights += f64::from(*weight);
            }
        }
    }
    if weights == 0.0 { Some(own) } else { rate.frames(bytes / weights).map(|shared| own + shared) }
}

impl Args {
    /// Returns the streams that were asked for.
    fn streams(&self) -> Result<Vec<StreamOptions>, Error> {
        let streams = match &self.streams {
            Some(path) => options::read(path)?,
            None => return Ok(vec![self.frames.clone()]),
        };
        if self.rate.is_some() && streams.iter().all(|stream| stream.own_rate.is_some()) {
            return Err(Error::Config(
                "--rate is that of streams without one, and there are none; leave it out".into(),
            ));
        }
        let flows: usize = streams.iter().map(|stream| stream.flows(self.options.queues)).sum();
        if flows > MAX_FLOWS {
            return Err(Error::Config(format!(
                "{} flows of all streams together, of each of which every worker keeps what has come back; at most {} are possible",
                grouped(flows as u64),
                grouped(MAX_FLOWS as u64)
            )));
        }
        Ok(streams)
    }

    /// Adds to an error which stream it is about.
    fn name_stream(&self, number: usize, error: Error) -> Error {
        match &self.streams {
            Some(path) => Error::Config(format!("{}: stream {}: {error}", path.display(), number + 1)),
            None => error,
        }
    }

    /// Gives streams their ends and shares on a port.
    fn shared(&self, streams: Vec<StreamOptions>, port: &mut dyn Port) -> Result<Vec<SharedStream>, Error> {
        let own = own_mac(port);
        let mut shared = Vec::new();
        let run = random_run();
        for (number, options) in streams.into_iter().enumerate() {
            let ends = options.ends(own, run.wrapping_add(number as u16));
            let share = match options.own_rate {
                Some(RequestedRate::Fixed(Rate::Max)) => {
                    Err(Error::Config("its rate has no limit; write a weight instead".into()))
                }
                Some(rate) => on_link(rate, port).map(Share::Rate),
                None => Ok(Share::Weight(options.weight.unwrap_or(1) as u32)),
            };
            let name = |error| self.name_stream(number, error);
            shared.push(SharedStream { ends: ends.map_err(name)?, share: share.map_err(name)?, options });
        }
        Ok(shared)
    }

    /// Returns the pace at which all workers together send on this port.
    fn pace(&self, port: &mut dyn Port) -> Result<Pace, Error> {
        let rate = on_link(self.rate.unwrap_or(RequestedRate::Fixed(Rate::Max)), port)?;
        if self.burst.is_some() && rate == Rate::Max {
            return Err(Error::Config("--burst needs pauses, which --rate max has not; write a lower --rate".into()));
        }
        Ok(Pace { rate, burst: self.burst.unwrap_or(1) as u32 })
    }
}

/// Returns a rate on this port.
///
/// # Errors
/// It depends on the speed of a link, which is not known.
pub fn on_link(rate: RequestedRate, port: &mut dyn Port) -> Result<Rate, Error> {
    let link = port.link();
    rate.on_link(link.mbps).ok_or_else(|| {
        let (name, down) = (port.name(), if link.up { "" } else { ", as its link is down" });
        Error::Config(format!(
            "the link speed of {name} is not known{down}; write --rate in frames a second (100k) or Gbit/s (2G)"
        ))
    })
}

/// Observer of a run that sends.
struct Sending {
    /// Those of each stream.
    returned: Vec<Arc<ReturnStats>>,
    /// Frames a second that were asked for, where that is known.
    rate: Option<f64>,
}

impl RunObserver for Sending {
    fn fields(&mut self, _: &Totals) -> Fields {
        let mut fields = report(&self.returned);
        fields.extend(self.rate.and_then(|rate| missed(&self.returned, rate)).unwrap_or_default());
        fields
    }

    /// The time for which frames were sent, without the wait for the last ones to come back.
    fn duration(&self, elapsed: Duration) -> Duration {
        sending_time(&self.returned).unwrap_or(elapsed)
    }
}

/// Creates a generator for each worker.
fn generated(
    args: &Args,
    streams: &[SharedStream],
    pace: Pace,
    pool: &Mempool,
    epoch: Instant,
) -> Result<Vec<Box<dyn FrameSource>>, Error> {
    let workers = args.options.queues;
    let checksums = Checksums::with(args.options.offloads);
    let mut plans = Vec::new();
    for (number, SharedStream { options, ends, share }) in streams.iter().enumerate() {
        let plan = options.plan(ends, workers, args.options.mtu, checksums, epoch);
        plans.push((plan.map_err(|error| args.name_stream(number, error))?, *share));
    }
    let pace = Pace { rate: pace.rate.share(workers), ..pace };
    let generator = |worker: usize| {
        let stream = |(plan, share): &(Plan, Share)| {
            let flows = Flows { first: worker as u32, ..plan.flows };
            let share = match *share {
                Share::Rate(rate) => Share::Rate(rate.share(workers)),
                weight => weight,
            };
            PacedStream { stream: Stream::new(&Plan { flows, ..plan.clone() }), share }
        };
        let streams = plans.iter().map(stream).collect();
        Box::new(Generator::new(streams, pace, pool.cache(), epoch)) as Box<dyn FrameSource>
    };
    Ok((0..workers).map(generator).collect())
}

/// Opens the capture file as the frame source. It is added to the run's ports, so that its end also ends the
/// run.
fn captured(args: &Args, path: &Path, pace: Pace, ports: &mut Ports) -> Result<Vec<Box<dyn FrameSource>>, Error> {
    if args.options.queues > 1 {
        return Err(Error::Config("one queue keeps the order of a capture file; leave out --queues".into()));
    }
    let unsaid = if args.rate.is_some() { ReplaySpeed::Max } else { ReplaySpeed::Recorded(1.0) };
    let speed = args.speed.unwrap_or(unsaid);
    let config = PcapConfig { input: Some(path.into()), output: None, repeat: args.repeat, speed };
    let mut file = Pcap::open(&config, &args.options.config().port, ports.pool())?;
    let paced = |queues: QueuePair| Box::new(Paced::new(queues.rx, pace)) as Box<dyn FrameSource>;
    let sources = file.take_queues().into_iter().map(paced).collect();
    ports.push(file);
    Ok(sources)
}

/// Number of frames for which the port had no room. Polled, because a port does not report when it has room
/// again.
pub struct Backlog(pub usize);

impl Wakeable for Backlog {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(if self.0 > 0 { WakeSource::Polled } else { WakeSource::Never });
    }
}

/// Limit on one worker's frames in flight.
struct Window {
    most: u64,
    in_flight: u64,
    /// Time when a frame last came back, or when the window was last reopened.
    moved: Instant,
}

impl Window {
    /// Time without a returned frame after which the frames in flight count as lost.
    const REOPEN_TIMEOUT: Duration = Duration::from_secs(1);

    fn new(most: u64) -> Self {
        Self { most, in_flight: 0, moved: Instant::now() }
    }

    /// Counts frames that were sent, and frames that came back.
    fn count(&mut self, sent: u64, returned: u64) {
        if self.in_flight == 0 || returned > 0 {
            self.moved = Instant::now();
        }
        // A frame that returns after the window was reopened is no longer counted as in flight.
        self.in_flight = (self.in_flight + sent).saturating_sub(returned);
    }

    /// Returns the time when the window reopens if it has no room for `burst` more frames now. Reopens it if
    /// nothing has returned for [`REOPEN_TIMEOUT`](Self::REOPEN_TIMEOUT).
    fn closed_until(&mut self, burst: u64) -> Option<Instant> {
        if self.in_flight + burst > self.most && self.moved.elapsed() > Self::REOPEN_TIMEOUT {
            (self.in_flight, self.moved) = (0, Instant::now());
        }
        (self.in_flight + burst > self.most).then(|| self.moved + Self::REOPEN_TIMEOUT)
    }
}

/// A frame source behind a window. While the window is closed, it wakes the worker only when the window
/// reopens.
struct WindowedSource<'a> {
    source: &'a mut dyn RxQueue,
    reopens: Option<Instant>,
}

impl RxDecorator for WindowedSource<'_> {
    fn inner(&self) -> &dyn RxQueue {
        self.source
    }

    fn inner_mut(&mut self) -> &mut dyn RxQueue {
        self.source
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        match self.reopens {
            Some(reopens) => each(WakeSource::At(reopens)),
            None => self.source.wake_sources(each),
        }
    }
}

fn work(
    mut source: Box<dyn FrameSource>,
    mut queues: QueuePair,
    mut left: u64,
    (mut trackers, mut window): (ReturnTrackers, Option<Window>),
    mut worker: Worker,
) {
    let mut size = window.as_ref().map_or(worker.batch, |window| worker.batch.min(window.most as usize));
    let (mut out, mut back) = (Burst::new(size), Burst::new(worker.batch));
    while worker.running() && left > 0 {
        let reopens = window.as_mut().and_then(|window| window.closed_until(size as u64));
        if out.is_empty() && reopens.is_none() {
            if left < size as u64 {
                size = left as usize;
                out = Burst::new(size);
            }
            source.rx_burst(&mut out);
            trackers.generated();
        }
        let sent = queues.tx.tx_burst(&mut out);
        left -= sent as u64;
        trackers.sent(sent, source.streams());
        if !out.is_empty() {
            trackers.refused();
        }
        let received = queues.rx.rx_burst(&mut back);
        let returned = trackers.record_returned(&back);
        back.clear();
        if let Some(window) = &mut window {
            window.count(sent as u64, returned);
        }
        let (mut due, mut backlog) = (WindowedSource { source: &mut *source, reopens }, Backlog(out.len()));
        worker.after(sent + received, &mut [&mut due, &mut backlog, &mut *queues.rx]);
    }
    trackers.finish_sending();
    // Waits for frames in flight until none has arrived for a while, but not forever. The wait is longer while
    // the last ones are missing, if the run was not interrupted or if a window keeps their number small.
    let end = Instant::now();
    let (mut last, long) = (end, left == 0 && !interrupted() || window.is_some());
    let limit =
        |trackers: &ReturnTrackers| if long && trackers.is_missing_tail() { TAIL_TIMEOUT } else { DRAIN_TIMEOUT };
    while last.elapsed() < limit(&trackers) && end.elapsed() < 5 * limit(&trackers) {
        if queues.rx.rx_burst(&mut back) > 0 {
            last = Instant::now();
            trackers.record_returned(&back);
            back.clear();
        }
    }
    trackers.end();
}

/// Longest wait for the next frame in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest wait if others have come back but the last frames have not: on a busy machine guests and their peers
/// may stall for that long.
const TAIL_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_admits_as_many_as_have_returned_and_reopens_after_a_while() {
        let mut window = Window::new(64);
        let admits = |window: &mut Window, frames| window.closed_until(frames).is_none();
        assert!(admits(&mut window, 64) && !admits(&mut window, 65));
        window.count(64, 0);
        assert!(!admits(&mut window, 1));
        window.count(0, 32);
        assert!(admits(&mut window, 32) && !admits(&mut window, 33));
        window.count(32, 0);
        assert!(!admits(&mut window, 1), "nothing was waited for yet");
        window.moved =
            Instant::now().checked_sub(2 * Window::REOPEN_TIMEOUT).expect("the machine has run for two seconds");
        assert!(admits(&mut window, 64), "what has not returned for a while is lost");
        window.count(64, 96);
        assert!(admits(&mut window, 64), "latecomers do not make the window larger than it is");
        assert!(!admits(&mut window, 65));
    }
}
