//! One end of a measurement in a process of its own. It does what pkt-gen does, on netmap's rings.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringpass::{Error, cycles};
use ringpass_netmap::client::Port;
use ringpass_netmap::request::Register;
use ringpass_netmap::{Flags, PortRing, Slot};
use ringpass_port::WaitPolicy;
use serde::{Deserialize, Serialize};

use ringpass_cli::bridge::open;
use ringpass_cli::options::{latency_budget, seconds};
use ringpass_cli::output::print_line;

/// One end of 'bench netmap'
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES:\n  ringpass bench netmap-end send netmap:x{1 --batch 256 -t 2")]
pub struct Args {
    role: EndRole,
    /// A netmap port
    port: String,
    /// Slots of each ring, if this creates the rings
    #[arg(long)]
    slots: Option<usize>,
    /// Slots released together
    #[arg(long, default_value = "256")]
    batch: u32,
    /// Frames a second
    #[arg(long)]
    rate: Option<f64>,
    /// CPU to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// Never sleep
    #[arg(long)]
    busy: bool,
    /// Latency that it may add so that frames collect, in microseconds
    #[arg(long, value_parser = latency_budget, default_value = "50")]
    latency_budget: Duration,
    /// Sleep without spinning first
    #[arg(long)]
    blocking: bool,
    #[arg(short = 't', long, value_parser = seconds, default_value = "1")]
    time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EndRole {
    /// Sends as many frames as fit.
    Send,
    /// Receives frames.
    Receive,
    /// Sends one frame and waits for it to come back.
    Ping,
    /// Sends frames back.
    Pong,
}

/// Results of one end.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct EndReport {
    /// Frames sent or received.
    pub packets: u64,
    /// Seconds from the first frame to the last.
    pub seconds: f64,
    /// CPU time in that period.
    pub cpu_seconds: f64,
    /// Number of kicks to the other side.
    pub kicks_sent: u64,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Shortest round trip in µs.
    pub rtt_us_min: f64,
    /// Average round trip in µs.
    pub rtt_us_avg: f64,
    /// Median round trip in µs.
    pub rtt_us_median: f64,
}

/// Bytes of a frame, without CRC.
const SIZE: u16 = 60;
/// Time without a frame after which a receiver ends.
const SILENCE: Duration = Duration::from_millis(300);

/// Longest wait for the first frame, because the other end may start late on a busy machine.
const BEGIN: Duration = Duration::from_secs(10);

/// Runs one end.
pub fn run(args: Args) -> Result<(), Error> {
    if let Some(id) = args.cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let slots = [args.slots.unwrap_or(0) as u32; 2];
    let mut port = open(&args.port, None, Register { slots, ..Register::default() })?;
    if args.blocking {
        port.set_wait_policy(WaitPolicy::blocking());
    } else {
        port.set_wait_policy(WaitPolicy::new(args.latency_budget));
    }
    let (Some(tx), Some(rx)) = (port.tx().first(), port.rx().first()) else {
        return Err(Error::Config("a port with rings both ways is needed".into()));
    };
    let end = MeasuredEnd { port: &port, tx, rx, args: &args };
    end.fill();
    end.announce()?;
    // "ready" lets the parent start the other end.
    print_line("ready");
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    let before = (port.kicks_sent(), processor_time()?);
    let mut seen = match args.role {
        EndRole::Send => end.send()?,
        EndRole::Receive => end.receive()?,
        EndRole::Ping => end.ping()?,
        EndRole::Pong => end.pong()?,
    };
    seen.kicks_sent = port.kicks_sent() - before.0;
    seen.cpu_seconds = (processor_time()? - before.1).as_secs_f64();
    print_line(&serde_json::to_string(&seen).expect("numbers"));
    // Waits until the parent has read the CPU times. Switches and their workers end with their last port, and
    // their CPU time would be lost.
    let _ = std::io::stdin().read_line(&mut line);
    Ok(())
}

fn processor_time() -> Result<Duration, Error> {
    super::super::cpu::used(std::process::id())
}

struct MeasuredEnd<'a> {
    port: &'a Port,
    tx: &'a PortRing,
    rx: &'a PortRing,
    args: &'a Args,
}

fn failed(error: impl ToString) -> Error {
    Error::Fault(error.to_string())
}

impl MeasuredEnd<'_> {
    /// Returns whether this end has the first MAC address; the other end has the second.
    fn is_first(&self) -> bool {
        matches!(self.args.role, EndRole::Send | EndRole::Ping)
    }

    fn frame(&self) -> Vec<u8> {
        let [own, other] = if self.is_first() { [1, 2] } else { [2, 1] };
        let mut frame = vec![2, 0, 0, 0, 0, other, 2, 0, 0, 0, 0, own, 0x88, 0xb5];
        frame.resize(SIZE.into(), 0);
        frame
    }

    /// Writes the frame into every buffer of the Tx ring.
    fn fill(&self) {
        let frame = self.frame();
        for position in 0..self.tx.ring().slots() {
            let slot = Slot { len: SIZE, flags: Flags::default(), ..self.tx.ring().slot(position) };
            if self.port.buffers().write(slot, &frame) {
                self.tx.ring().set(position, slot);
            }
        }
    }

    /// Sends one frame, so that switches learn the location of this end. The other end drops frames from before
    /// its start.
    fn announce(&self) -> Result<(), Error> {
        if self.args.port.starts_with("vale") {
            self.tx.release_slots(1);
            self.tx.sync().map_err(failed)?;
        }
        Ok(())
    }

    fn wait(&self, ring: &PortRing, limit: Duration) -> Result<bool, Error> {
        if !self.args.busy {
            return self.port.wait(std::iter::once(ring), limit).map_err(failed);
        }
        let start = Instant::now();
        loop {
            for _ in 0..1000 {
                ring.sync().map_err(failed)?;
                if ring.is_ready() {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= limit {
                return Ok(false);
            }
        }
    }

    /// Drops the frames received so far, and prints a line that lets the other end begin.
    fn listen(&self) -> Result<(), Error> {
        self.forget()?;
        print_line("listens");
        Ok(())
    }

    /// Drops the frames received so far.
    fn forget(&self) -> Result<(), Error> {
        self.rx.sync().map_err(failed)?;
        self.rx.release_slots(self.rx.own());
        self.rx.sync().map_err(failed)
    }

    fn send(&self) -> Result<EndReport, Error> {
        let (start, mut packets) = (Instant::now(), 0);
        let mut sleeps = 0;
        while start.elapsed() < self.args.time {
            // The clock is read once in 32 batches, because reading it costs more than a small batch.
            for _ in 0..32 {
                let mut slots = self.tx.own().min(self.args.batch);
                if let Some(rate) = self.args.rate
                    && slots > 0
                {
                    let due = (start.elapsed().as_secs_f64() * rate) as u64;
                    slots = slots.min(due.saturating_sub(packets) as u32);
                    if slots == 0 {
                        let next = Duration::from_secs_f64((packets + 1) as f64 / rate);
                        pause(next.saturating_sub(start.elapsed()), self.args.busy);
                        break;
                    }
                }
                if slots == 0 {
                    sleeps += 1;
                    self.wait(self.tx, SILENCE)?;
                    break;
                }
                let ring = self.tx.ring();
                for position in self.tx.first(slots) {
                    // As in pkt-gen, the buffer already holds the frame.
                    ring.set(position, Slot { len: SIZE, flags: Flags::default(), ..ring.slot(position) });
                }
                self.tx.release_slots(slots);
                self.tx.sync().map_err(failed)?;
                packets += u64::from(slots);
            }
        }
        Ok(EndReport { packets, seconds: start.elapsed().as_secs_f64(), sleeps, ..EndReport::default() })
    }

    fn receive(&self) -> Result<EndReport, Error> {
        self.listen()?;
        let mut first = None;
        let mut last = Instant::now();
        let mut packets = 0_u64;
        let mut sleeps = 0;
        loop {
            self.rx.sync().map_err(failed)?;
            let slots = self.rx.own();
            if slots == 0 {
                sleeps += 1;
                let limit = if first.is_some() { SILENCE } else { BEGIN };
                last = if packets > 0 { Instant::now() } else { last };
                if !self.wait(self.rx, limit)? {
                    break;
                }
                first.get_or_insert_with(Instant::now);
                continue;
            }
            let first = *first.get_or_insert_with(Instant::now);
            let ring = self.rx.ring();
            let bytes: u64 = self.rx.first(slots).map(|position| u64::from(ring.slot(position).len)).sum();
            std::hint::black_box(bytes);
            packets += u64::from(slots);
            self.rx.release_slots(slots);
            if first.elapsed() > self.args.time + Duration::from_secs(5) {
                last = Instant::now();
                break;
            }
        }
        let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
        Ok(EndReport { packets, seconds, sleeps, ..EndReport::default() })
    }

    fn send_one(&self) -> Result<(), Error> {
        self.tx.release_slots(1);
        self.tx.sync().map_err(failed)
    }

    fn ping(&self) -> Result<EndReport, Error> {
        self.forget()?;
        let mut times = Histogram::<u64>::new_with_max(100_000_000_000, 3).expect("three digits");
        let (start, per_us) = (Instant::now(), super::super::tsc::frequency() / 1e6);
        // At least one round trip is measured.
        while times.is_empty() || start.elapsed() < self.args.time {
            if self.tx.own() == 0 {
                self.tx.sync().map_err(failed)?;
                continue;
            }
            let sent = cycles();
            self.send_one()?;
            if !self.wait(self.rx, Duration::from_secs(2))? {
                return Err(Error::Gone("a frame did not come back within 2 s".into()));
            }
            times.saturating_record(cycles() - sent);
            // The next sync releases the slots, as in pkt-gen.
            self.rx.release_slots(self.rx.own());
        }
        Ok(EndReport {
            packets: times.len(),
            seconds: start.elapsed().as_secs_f64(),
            rtt_us_min: times.min() as f64 / per_us,
            rtt_us_avg: times.mean() / per_us,
            rtt_us_median: times.value_at_quantile(0.5) as f64 / per_us,
            ..EndReport::default()
        })
    }

    fn pong(&self) -> Result<EndReport, Error> {
        self.listen()?;
        let (start, mut packets) = (Instant::now(), 0);
        while self.wait(self.rx, if packets == 0 { BEGIN } else { self.args.time + SILENCE })? {
            let slots = self.rx.own();
            self.rx.release_slots(slots);
            for _ in 0..slots {
                if self.tx.own() == 0 {
                    self.tx.sync().map_err(failed)?;
                }
                self.send_one()?;
                packets += 1;
            }
        }
        Ok(EndReport { packets, seconds: start.elapsed().as_secs_f64(), ..EndReport::default() })
    }
}

/// Waits until a frame is due.
fn pause(time: Duration, busy: bool) {
    if !busy && time > Duration::from_micros(200) {
        std::thread::sleep(time - Duration::from_micros(100));
    } else {
        std::hint::spin_loop();
    }
}
