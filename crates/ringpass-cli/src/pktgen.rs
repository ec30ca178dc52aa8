//! The subcommand `ringpass pktgen PORT`: sends frames at a given rate, and evaluates those that come back.

pub mod frame;
mod generator;
mod rate;
mod returned;
pub mod template;
mod track;
mod vary;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpass::{
    Burst, Error, MacAddress, Mempool, Port, Ports, QueuePair, RxDecorator, RxQueue, Totals, WakeSource, Wakeable,
    Worker, open,
};
use ringpass_host_ports::Pcap;
use ringpass_memory::L4;
use ringpass_port::{PcapConfig, ReplaySpeed};

use crate::options::{Options, ip_address, within};
use crate::run::close;
use crate::run_observer::RunObserver;
use crate::stats::Fields;
use frame::{Addresses, Endpoints, FLOWS, MAX, MIN};
use generator::{Flows, Generator, IMIX, Plan};
use rate::{Pace, Paced, Rate, RequestedRate};
use returned::{ReturnStats, ReturnTracker};
use ringpass::signals::interrupted;
use template::Checksums;
use vary::{Field, Variation, VaryOption};

/// Send generated or captured frames, and evaluate those that come back
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The port (see 'ringpass --help' for port addresses)
    port: String,
    /// Bytes of a frame without its checksum, 60 to 9724; more than 1514 with --mtu [default: the least that its
    /// headers and 18 bytes for the evaluation take: 60; 72 with --tcp; 20 more for IPv6, 4 for --vlan]
    #[arg(long, value_name = "BYTES", value_parser = within(MIN..=MAX))]
    size: Option<usize>,
    /// Send frames of 60 bytes or the least, of 590 and of 1514 in the ratio 7:4:1 instead
    #[arg(long, conflicts_with = "size")]
    imix: bool,
    /// Frames a second (100k, 1.5M), Gbit/s (2G), percent of the link's speed (40%; here a frame counts 24 bytes
    /// more, for preamble, checksum and gap), or max [default: max]
    #[arg(long)]
    rate: Option<RequestedRate>,
    /// Frames that each queue sends back to back, 1 to 65536; pauses between bursts keep the average --rate
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = within(1..=65536), requires = "rate")]
    burst: Option<usize>,
    /// Flows, which differ in source port and, above 16384, in source address; 1 to 65536
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=FLOWS))]
    flows: usize,
    /// Most frames in flight, 1 to 65536; frames that are not back after a second no longer count [default: no
    /// limit]
    #[arg(long, value_name = "N", value_parser = within(1..=65536), conflicts_with = "pcap")]
    window: Option<usize>,
    /// Destination MAC address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:ff")]
    dst_mac: MacAddress,
    /// Source MAC address [default: the port's]
    #[arg(long, value_name = "MAC")]
    src_mac: Option<MacAddress>,
    /// Destination address, IPv4 or IPv6 [default: 198.19.0.1, or 2001:2:0:1::1]
    #[arg(long, value_name = "IP", value_parser = ip_address)]
    dst_ip: Option<IpAddr>,
    /// Source address, IPv4 or IPv6 [default: 198.18.0.1, or 2001:2::1]
    #[arg(long, value_name = "IP", value_parser = ip_address)]
    src_ip: Option<IpAddr>,
    /// UDP or TCP destination port
    #[arg(long = "port", value_name = "PORT", default_value = "50000")]
    l4_port: u16,
    /// Send TCP segments, with ACK set, instead of UDP datagrams
    #[arg(long)]
    tcp: bool,
    /// VLAN id, 0 to 4094, and priority, 0 to 7, of a tag (802.1Q) in each frame [default: no tag]
    #[arg(long, value_name = "ID[:PRIO]", value_parser = tag)]
    vlan: Option<u16>,
    /// Vary a field from frame to frame: src-ip, dst-ip, src-port, dst-port, src-mac, dst-mac or vlan, counting up
    /// together or at random; can be repeated [default range: from the field's own value to the end of its last 16
    /// bits, or to VLAN 4094]
    #[arg(long, value_name = "FIELD=count|random[:FROM-TO]")]
    vary: Vec<VaryOption>,
    /// Send the frames of a capture file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "imix", "flows", "tcp", "vlan", "vary"])]
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

/// Parses a VLAN id with an optional priority into the tag control information.
fn tag(text: &str) -> Result<u16, String> {
    let (id, priority) = text.split_once(':').unwrap_or((text, "0"));
    match (id.parse::<u16>(), priority.parse::<u16>()) {
        (Ok(id @ 0..=4094), Ok(priority @ 0..=7)) => Ok(priority << 13 | id),
        _ => Err("write a VLAN id, 0 to 4094, and if need be a priority, 0 to 7: 100 or 100:5".into()),
    }
}

/// Runs the subcommand.
pub fn run(mut args: Args) -> Result<(), Error> {
    // The run's own limit is not used: each worker counts its frames, so that the total is exact.
    let count = args.options.count.take();
    let ip = Addresses::new(args.src_ip, args.dst_ip).ok_or_else(|| {
        Error::Config("--src-ip and --dst-ip are of two families; write both as IPv4 or both as IPv6".into())
    })?;
    let mut run = args.options.run()?;
    let mut ports = open([&args.port], &run.config)?;
    let pace = args.pace(&mut *ports[0])?;
    let own = Some(ports[0].mac()).filter(|mac| mac.0 != [0; 6]).unwrap_or(MacAddress([2, 0, 0, 0, 0, 1]));
    let ends = Endpoints {
        mac: (args.src_mac.unwrap_or(own), args.dst_mac),
        vlan: args.vlan,
        ip,
        transport: if args.tcp { L4::Tcp } else { L4::Udp },
        port: args.l4_port,
        run: std::process::id() as u16,
    };
    let epoch = Instant::now();
    let workers = args.options.queues as u64;
    let returned = Arc::new(ReturnStats::new(epoch, args.options.queues, !args.vary.is_empty()));
    let sources = match &args.pcap {
        Some(path) => captured(&args, path, pace, &mut ports)?,
        None => generated(&args, &ends, pace, ports.pool(), epoch)?,
    };
    run.enter_sandbox(ports.needs())?;
    let queues = ports[0].take_queues();
    for (i, (queues, source)) in (0..).zip(queues.into_iter().zip(sources)) {
        let share = count.map_or(u64::MAX, |count| count / workers + u64::from(i < count % workers));
        let tracker = ReturnTracker::new(&ends, args.flows(), &returned, i as usize);
        let window = args.window.map(|most| Window::new((most as u64 / workers).max(1)));
        run.spawn(move |worker| work(source, queues, share, (tracker, window), worker))?;
    }
    let sizes = args.sizes(&ends);
    let average = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
    // The frames of a capture have sizes of their own, and may end before the time does.
    let rate = if args.pcap.is_some() { None } else { pace.rate.frames(average) };
    let mut observer = Sending { returned, rate };
    let result = run.control_with(&mut ports, &mut observer);
    close(ports);
    result
}

impl Args {
    /// Returns the pace at which all workers together send on this port.
    fn pace(&self, port: &mut dyn Port) -> Result<Pace, Error> {
        let (link, requested) = (port.link(), self.rate.unwrap_or(RequestedRate::Fixed(Rate::Max)));
        let Some(rate) = requested.on_link(link.mbps) else {
            let (name, down) = (port.name(), if link.up { "" } else { ", as its link is down" });
            return Err(Error::Config(format!(
                "the link speed of {name} is not known{down}; write --rate in frames a second (100k) or Gbit/s (2G)"
            )));
        };
        if self.burst.is_some() && rate == Rate::Max {
            return Err(Error::Config("--burst needs pauses, which --rate max has not; write a lower --rate".into()));
        }
        Ok(Pace { rate, burst: self.burst.unwrap_or(1) as u32 })
    }

    /// Returns the number of flows. If the source port varies, each worker sends one.
    fn flows(&self) -> usize {
        let is_varied = self.vary.iter().any(|option| option.field == Field::SrcPort);
        if is_varied { self.flows.max(self.options.queues) } else { self.flows }
    }

    /// Returns the sizes of generated frames, in bytes, which take turns.
    fn sizes(&self, ends: &Endpoints) -> Vec<usize> {
        let shortest = ends.shortest();
        if self.imix { IMIX.map(|size| size.max(shortest)).to_vec() } else { vec![self.size.unwrap_or(shortest)] }
    }
}

/// Observer of a run that sends.
struct Sending {
    returned: Arc<ReturnStats>,
    /// Frames a second that were asked for, where that is known.
    rate: Option<f64>,
}

impl RunObserver for Sending {
    fn fields(&mut self, _: &Totals) -> Fields {
        let mut fields = self.returned.report();
        fields.extend(self.rate.and_then(|rate| self.returned.missed(rate)).unwrap_or_default());
        fields
    }

    /// The time for which frames were sent, without the wait for the last ones to come back.
    fn duration(&self, elapsed: Duration) -> Duration {
        self.returned.sending_time().unwrap_or(elapsed)
    }
}

/// Creates a generator for each worker.
fn generated(
    args: &Args,
    ends: &Endpoints,
    pace: Pace,
    pool: &Mempool,
    epoch: Instant,
) -> Result<Vec<Box<dyn RxQueue>>, Error> {
    let (sizes, workers) = (args.sizes(ends), args.options.queues);
    let mtu = args.options.mtu;
    let (smallest, largest) = (sizes.iter().min().copied(), sizes.iter().max().copied());
    let (most, least) = (mtu + usize::from(ends.headers().l2), ends.shortest());
    if let Some(largest) = largest.filter(|&size| size > most) {
        let text = format!("frames of {largest} bytes, but --mtu {mtu} allows {most}; make them shorter");
        return Err(Error::Config(text));
    }
    if let Some(smallest) = smallest.filter(|&size| size < least) {
        let text = format!("frames of {smallest} bytes, but {} takes {least}; write --size {least}", kind(ends));
        return Err(Error::Config(text));
    }
    let vary = Variation::all(&args.vary, ends, args.flows)?;
    if args.flows() < workers {
        return Err(Error::Config(format!("{workers} queues need as many flows; write --flows {workers}")));
    }
    let generator = |first: usize| {
        let flows = Flows { first: first as u32, step: workers as u32, end: args.flows() as u32 };
        let pace = Pace { rate: pace.rate.share(workers), ..pace };
        let checksums = if args.options.offloads.checksum { Checksums::Port } else { Checksums::Generator };
        let plan = Plan { ends: *ends, sizes: sizes.clone(), vary: vary.clone(), flows, pace, epoch, checksums };
        Ok(Box::new(Generator::new(&plan, pool.cache())) as Box<dyn RxQueue>)
    };
    (0..workers).map(generator).collect()
}

/// Returns the kind of frames.
fn kind(ends: &Endpoints) -> String {
    let transport = if ends.transport == L4::Tcp { "TCP" } else { "UDP" };
    let network = if matches!(ends.ip, Addresses::V6 { .. }) { "IPv6" } else { "IPv4" };
    let tag = if ends.vlan.is_some() { " with a VLAN tag" } else { "" };
    format!("{transport} over {network}{tag}")
}

/// Opens the capture file as the frame source. It is added to the run's ports, so that its end also ends the
/// run.
fn captured(args: &Args, path: &Path, pace: Pace, ports: &mut Ports) -> Result<Vec<Box<dyn RxQueue>>, Error> {
    if args.options.queues > 1 {
        return Err(Error::Config("one queue keeps the order of a capture file; leave out --queues".into()));
    }
    let unsaid = if args.rate.is_some() { ReplaySpeed::Max } else { ReplaySpeed::Recorded(1.0) };
    let speed = args.speed.unwrap_or(unsaid);
    let config = PcapConfig { input: Some(path.into()), output: None, repeat: args.repeat, speed };
    let mut file = Pcap::open(&config, &args.options.config().port, ports.pool())?;
    let paced = |queues: QueuePair| Box::new(Paced::new(queues.rx, pace)) as Box<dyn RxQueue>;
    let sources = file.take_queues().into_iter().map(paced).collect();
    ports.push(file);
    Ok(sources)
}

/// Number of frames for which the port had no room. Polled, because a port does not report when it has room
/// again.
struct Backlog(usize);

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
    mut source: Box<dyn RxQueue>,
    mut queues: QueuePair,
    mut left: u64,
    (mut tracker, mut window): (ReturnTracker, Option<Window>),
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
        }
        let sent = queues.tx.tx_burst(&mut out);
        left -= sent as u64;
        tracker.sent(sent);
        if !out.is_empty() {
            tracker.refused();
        }
        let received = queues.rx.rx_burst(&mut back);
        let returned = tracker.record_returned(&back);
        back.clear();
        if let Some(window) = &mut window {
            window.count(sent as u64, returned);
        }
        let (mut due, mut backlog) = (WindowedSource { source: &mut *source, reopens }, Backlog(out.len()));
        worker.after(sent + received, &mut [&mut due, &mut backlog, &mut *queues.rx]);
    }
    tracker.finish_sending();
    // Waits for frames in flight until none has arrived for a while, but not forever. The wait is longer while
    // the last ones are missing, if the run was not interrupted or if a window keeps their number small.
    let end = Instant::now();
    let (mut last, long) = (end, left == 0 && !interrupted() || window.is_some());
    let limit = |tracker: &ReturnTracker| if long && tracker.is_missing_tail() { TAIL_TIMEOUT } else { DRAIN_TIMEOUT };
    while last.elapsed() < limit(&tracker) && end.elapsed() < 5 * limit(&tracker) {
        if queues.rx.rx_burst(&mut back) > 0 {
            last = Instant::now();
            tracker.record_returned(&back);
            back.clear();
        }
    }
    tracker.end();
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
