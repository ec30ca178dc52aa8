//! One end of a measurement, as a process of its own: what pkt-gen does, on netmap's rings.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringpass_netmap::client::Port;
use ringpass_netmap::{Flags, Patience, PortRing, Slot};
use ringpass_port::Error;
use serde::{Deserialize, Serialize};

use crate::bridge::open;
use crate::options::seconds;
use crate::stats::say;
use crate::worker::cycles;

/// One end of 'bench netmap'
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES:\n  ringpass bench netmap-end send netmap:x{1 --batch 256 -t 2")]
pub struct Args {
    role: Role,
    /// A netmap port
    port: String,
    /// Slots of rings that are made by this
    #[arg(long)]
    slots: Option<usize>,
    /// Slots that are given up together
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
    /// Sleep at once
    #[arg(long)]
    blocking: bool,
    #[arg(short = 't', long, value_parser = seconds, default_value = "1")]
    time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Sends as many frames as fit.
    Send,
    /// Receives them.
    Receive,
    /// Sends one frame and waits for it to come back.
    Ping,
    /// Sends back.
    Pong,
}

/// What an end has seen.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Frames.
    pub packets: u64,
    /// From the first to the last of them.
    pub seconds: f64,
    /// Processor time in the meantime.
    pub cpu_seconds: f64,
    /// How often it has woken the other side.
    pub rung: u64,
    /// How often it went to sleep.
    pub sleeps: u64,
    /// Round trips in µs.
    pub rtt_us_min: f64,
    /// See `rtt_us_min`.
    pub rtt_us_avg: f64,
    /// See `rtt_us_min`.
    pub rtt_us_median: f64,
}

/// Bytes of a frame, without its checksum.
const SIZE: u16 = 60;
/// After so long without a frame, a receiver has seen all.
const SILENCE: Duration = Duration::from_millis(300);

/// Before the first frame, for as long as the other end may need to begin on a busy machine.
const BEGIN: Duration = Duration::from_secs(10);

/// Runs an end.
pub fn run(args: Args) -> Result<(), Error> {
    if let Some(id) = args.cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let mut port = open(&args.port, None, args.slots, None)?;
    if args.blocking {
        port.set_patience(Patience::none());
    }
    let (Some(tx), Some(rx)) = (port.tx().first(), port.rx().first()) else {
        return Err(Error::Other("a port with rings both ways is needed".into()));
    };
    let end = End { port: &port, tx, rx, args: &args };
    end.fill();
    end.announce()?;
    // The other end may begin.
    say("ready");
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    let before = (port.rung(), processor_time()?);
    let mut seen = match args.role {
        Role::Send => end.send()?,
        Role::Receive => end.receive()?,
        Role::Ping => end.ping()?,
        Role::Pong => end.pong()?,
    };
    seen.rung = port.rung() - before.0;
    seen.cpu_seconds = (processor_time()? - before.1).as_secs_f64();
    say(&serde_json::to_string(&seen).expect("numbers"));
    // A switch goes with its ports, and what its worker has used with it: until that was read, this stays.
    let _ = std::io::stdin().read_line(&mut line);
    Ok(())
}

fn processor_time() -> Result<Duration, Error> {
    super::super::cpu::used(std::process::id())
}

struct End<'a> {
    port: &'a Port,
    tx: &'a PortRing,
    rx: &'a PortRing,
    args: &'a Args,
}

fn failed(error: impl ToString) -> Error {
    Error::Other(error.to_string())
}

impl End<'_> {
    /// Whether this end has the first address; the other has the second.
    fn is_first(&self) -> bool {
        matches!(self.args.role, Role::Send | Role::Ping)
    }

    fn frame(&self) -> Vec<u8> {
        let [own, other] = if self.is_first() { [1, 2] } else { [2, 1] };
        let mut frame = vec![2, 0, 0, 0, 0, other, 2, 0, 0, 0, 0, own, 0x88, 0xb5];
        frame.resize(SIZE.into(), 0);
        frame
    }

    /// Writes the frame into each buffer, once.
    fn fill(&self) {
        let frame = self.frame();
        for position in 0..self.tx.ring().slots() {
            let slot = Slot { len: SIZE, flags: Flags::default(), ..self.tx.ring().slot(position) };
            if self.port.buffers().write(slot, &frame) {
                self.tx.ring().set(position, slot);
            }
        }
    }

    /// Sends one frame, so that switches know where this end is. The other end forgets what came before it was told to begin.
    fn announce(&self) -> Result<(), Error> {
        if self.args.port.starts_with("vale") {
            self.tx.give_up(1);
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

    /// Drops what has come, and says so: the other end may begin.
    fn listen(&self) -> Result<(), Error> {
        self.forget()?;
        say("listens");
        Ok(())
    }

    /// Drops what has come.
    fn forget(&self) -> Result<(), Error> {
        self.rx.sync().map_err(failed)?;
        self.rx.give_up(self.rx.own());
        self.rx.sync().map_err(failed)
    }

    fn send(&self) -> Result<Seen, Error> {
        let (start, mut packets) = (Instant::now(), 0);
        let mut sleeps = 0;
        while start.elapsed() < self.args.time {
            // The clock costs more than a small batch.
            for _ in 0..32 {
                let mut slots = self.tx.own().min(self.args.batch);
                if let Some(rate) = self.args.rate {
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
                    // As pkt-gen does: the frame is there already.
                    ring.set(position, Slot { len: SIZE, flags: Flags::default(), ..ring.slot(position) });
                }
                self.tx.give_up(slots);
                self.tx.sync().map_err(failed)?;
                packets += u64::from(slots);
            }
        }
        Ok(Seen { packets, seconds: start.elapsed().as_secs_f64(), sleeps, ..Seen::default() })
    }

    fn receive(&self) -> Result<Seen, Error> {
        self.listen()?;
        let (mut first, mut last, mut packets, mut sleeps) = (None, Instant::now(), 0_u64, 0);
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
            self.rx.give_up(slots);
            if first.elapsed() > self.args.time + Duration::from_secs(5) {
                last = Instant::now();
                break;
            }
        }
        let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
        Ok(Seen { packets, seconds, sleeps, ..Seen::default() })
    }

    fn send_one(&self) -> Result<(), Error> {
        self.tx.give_up(1);
        self.tx.sync().map_err(failed)
    }

    fn ping(&self) -> Result<Seen, Error> {
        self.forget()?;
        let mut times = Histogram::<u64>::new_with_max(100_000_000_000, 3).expect("three digits");
        let (start, per_us) = (Instant::now(), super::super::tsc::frequency() / 1e6);
        // Once at least.
        while times.is_empty() || start.elapsed() < self.args.time {
            if self.tx.own() == 0 {
                self.tx.sync().map_err(failed)?;
                continue;
            }
            let sent = cycles();
            self.send_one()?;
            if !self.wait(self.rx, Duration::from_secs(2))? {
                return Err(Error::Other("a frame did not come back within 2 s".into()));
            }
            times.saturating_record(cycles() - sent);
            // Released with the next look, as by pkt-gen.
            self.rx.give_up(self.rx.own());
        }
        Ok(Seen {
            packets: times.len(),
            seconds: start.elapsed().as_secs_f64(),
            rtt_us_min: times.min() as f64 / per_us,
            rtt_us_avg: times.mean() / per_us,
            rtt_us_median: times.value_at_quantile(0.5) as f64 / per_us,
            ..Seen::default()
        })
    }

    fn pong(&self) -> Result<Seen, Error> {
        self.listen()?;
        let (start, mut packets) = (Instant::now(), 0);
        while self.wait(self.rx, if packets == 0 { BEGIN } else { self.args.time + SILENCE })? {
            let slots = self.rx.own();
            self.rx.give_up(slots);
            for _ in 0..slots {
                if self.tx.own() == 0 {
                    self.tx.sync().map_err(failed)?;
                }
                self.send_one()?;
                packets += 1;
            }
        }
        Ok(Seen { packets, seconds: start.elapsed().as_secs_f64(), ..Seen::default() })
    }
}

/// Until a frame is due.
fn pause(time: Duration, busy: bool) {
    if !busy && time > Duration::from_micros(200) {
        std::thread::sleep(time - Duration::from_micros(100));
    } else {
        std::hint::spin_loop();
    }
}
