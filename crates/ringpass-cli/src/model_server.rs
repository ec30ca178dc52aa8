//! The subcommands `ringpass model 82599` and `ringpass model virtio-net`: software cards for other processes,
//! served over vfio-user.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringpass::{
    Config, Error, MacAddress, Mempool, MempoolConfig, PortConfig, Ports, QueuePair, RxQueue, WakeSource, Wakeable,
    Worker,
};
use ringpass_ipc::SocketPlace;
use ringpass_models::{Model, ixgbe, virtio};
use ringpass_vfio_user::{Device, Event, Listener, Server, prepare_notifiers};
use rustix::event::{PollFlags, epoll};
use serde_json::Value;

use crate::native_driver::NativeDriver;
use crate::options::{SandboxOptions, base_config, latency_budget, seconds, within};
use crate::output::{is_verbose, note};
use crate::run::{Run, close};
use crate::stats::{Fields, OutputStream, fields};
use ringpass::open::open_wire;
use ringpass::sandbox::{Needs, Sandbox};

/// Serve software network cards to virtual machines and other processes
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which card: 82599 or virtio-net
    #[arg(value_parser = ["82599", "virtio-net"])]
    card: String,
    /// Socket to serve a card at, with mode=, user=, group= for others who may connect; repeat for more cards
    #[arg(long, value_name = "PATH[,mode=0660…]", required_unless_present = "command", conflicts_with = "command")]
    socket: Vec<SocketPlace>,
    /// Port at the other end of a card's wire; one for each socket, in the same order
    #[arg(long, value_name = "PORT", required = true)]
    wire: Vec<String>,
    /// PCI device ID of the cards [default: 10fb, or 1041 for virtio-net; 1000 has the legacy interface too; 10f7 for a
    /// command]
    #[arg(long, value_name = "ID", value_parser = device)]
    device: Option<u16>,
    /// virtio-net: features to add to or remove from the defaults, such as packed+in_order-mrg_rxbuf
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    features: Option<String>,
    /// virtio-net: largest number of queue pairs
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=64))]
    queues: usize,
    /// MAC address of a card; repeat for more cards [default: 02:82:59:90:00:01, …]
    #[arg(long)]
    mac: Vec<MacAddress>,
    /// Faults of the cards and when they occur, to test drivers: no-eop@100-100+removed@5000, length-long%0.01
    #[arg(long, value_name = "LIST", default_value = "seed=1", hide_default_value = true)]
    lies: String,
    /// Largest payload of a frame on the wires in bytes, 68 to 9710
    #[arg(long, value_name = "BYTES", default_value = "1500", value_parser = within(68..=9710))]
    mtu: usize,
    /// End after this many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Seconds between lines of statistics
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print statistics for machines, one JSON object a line
    #[arg(long)]
    json: bool,
    /// Never sleep: poll all the time
    #[arg(long)]
    poll: bool,
    /// Latency that the card may add so that packets collect while it sleeps, in microseconds, 0 to 10000; none below 30
    #[arg(long, value_name = "MICROSECONDS", default_value = "50", value_parser = latency_budget)]
    latency_budget: Duration,
    /// CPU to run on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// Take this card for a wire even if its kernel interface is in use
    #[arg(long, value_name = "ADDRESS")]
    take_over: Vec<String>,
    /// 82599: run this command, in whose view the cards are PCI devices that uio_pci_generic has, and end with it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = r#"EXAMPLES:
  a card for a virtual machine, with a TAP interface at the far end of its wire:
      sudo ringpass model 82599 --socket /run/card0 --wire tap:wire0
      qemu-system-x86_64 -m 1G -machine q35,memory-backend=m0 \
          -object memory-backend-memfd,id=m0,size=1G,share=on \
          -device '{"driver":"vfio-user-pci","socket":{"path":"/run/card0","type":"unix"}}' …
      (QEMU 10.1 or newer, as the user that the socket belongs to)
  the same card under Ringpass's own driver:
      sudo ringpass fwd vfio-user:/run/card0 tap:other
  a virtio card, for a guest that has no driver for the other one:
      sudo ringpass model virtio-net --features packed --socket /run/card0 --wire tap:wire0
  any driver in user space, without a virtual machine (as root; DPDK and others take huge pages):
      sudo ringpass model 82599 --wire tap:left --wire tap:right -- \
          dpdk-testpmd -l 0,1 -a 0000:f0:00.0 -a 0000:f0:01.0 -- --auto-start
  two cards, jumbo frames:
      sudo ringpass model 82599 --mtu 9710 --socket /run/card0 --wire tap:wire0 \
          --socket /run/card1 --wire packet:eth1"#;

fn device(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| "write four hexadecimal digits, such as 10fb".into())
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    if args.card == "virtio-net" { virtio_net(args) } else { intel(args) }
}

fn intel(args: Args) -> Result<(), Error> {
    let lies = args.lies.parse().map_err(Error::Config)?;
    // A backplane, unlike the default, has no module, whose bus drivers clock bit by bit.
    let device = args.device.unwrap_or(if args.command.is_empty() { 0x10fb } else { 0x10f7 });
    if let Some(features) = &args.features {
        return Err(Error::Config(format!("--features {features} is for virtio-net")));
    }
    let make = |mac| ixgbe::Card::new(&ixgbe::CardConfig { device, mac, lies, ..Default::default() });
    if !args.command.is_empty() {
        return run_command(&args, make);
    }
    serve_all(&args, |mac| {
        let card = make(mac);
        let counted = card.clone();
        let counters: Counters = Arc::new(move || ringpass::ixgbe_counters(&counted));
        CardParts { device: ixgbe::VfioUserFunction::new(card.clone()), card, counters }
    })
}

fn virtio_net(args: Args) -> Result<(), Error> {
    use ringpass_virtio::features::{ACCESS_PLATFORM, MQ, MTU, offer};
    if let [program, ..] = &args.command[..] {
        let program = program.display();
        return Err(Error::Config(format!(
            "-- {program}: commands see cards of the 82599; serve virtio-net at a --socket"
        )));
    }
    let interface = match args.device {
        None | Some(0x1041) => virtio::Interface::Modern,
        Some(0x1000) => virtio::Interface::Transitional,
        Some(other) => return Err(Error::Config(format!("--device {other:04x}: virtio-net is 1041 or 1000"))),
    };
    // Without ACCESS_PLATFORM: the kernel of a guest without an IOMMU uses physical addresses anyway.
    let wishes = args.features.as_deref().unwrap_or_default();
    let offered = offer(virtio::VirtioConfig::DEFAULT_FEATURES, wishes).map_err(Error::Config)?;
    let several = if args.queues > 1 { MQ } else { 0 };
    let config = virtio::VirtioConfig {
        interface,
        features: (offered | MTU | several) & !ACCESS_PLATFORM,
        queue_pairs: args.queues as u16,
        mtu: args.mtu as u16,
        lies: args.lies.parse().map_err(Error::Config)?,
        ..Default::default()
    };
    serve_all(&args, |mac| {
        let card = virtio::VirtioCard::new(&virtio::VirtioConfig { mac, ..config });
        let counted = card.clone();
        let counters: Counters = Arc::new(move || ringpass::virtio_counters(&counted));
        CardParts { device: virtio::VfioUserFunction::new(card.clone()), card, counters }
    })
}

/// Reads the counters of a card.
type Counters = Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>;

/// A card that is to be served.
struct CardParts<D> {
    /// What the client of its socket uses.
    device: D,
    /// What the model's thread steps.
    card: Arc<dyn Model>,
    counters: Counters,
}

/// Returns the MAC address of the card with a number.
fn mac(args: &Args, card: usize) -> MacAddress {
    args.mac.get(card).copied().unwrap_or(MacAddress([2, 0x82, 0x59, 0x90, 0, card as u8 + 1]))
}

/// Starts a run in a sandbox.
fn start(args: &Args, sandbox: Sandbox, poll: bool) -> Result<Run, Error> {
    let config = Config {
        port: PortConfig { mtu: args.mtu, ..Default::default() },
        cpu: args.cpu.iter().copied().collect(),
        time: args.time,
        poll,
        latency_budget: args.latency_budget,
        take_over: args.take_over.clone(),
        sandbox,
        user: args.sandbox.user,
        ..base_config()
    };
    Run::new(config, args.json, args.interval)
}

/// Opens the far ends of the cards' wires.
fn open_wires(args: &Args, run: &Run) -> Result<Ports, Error> {
    let pool = pool(args.wire.len(), args.mtu)?;
    let mut needs = Needs::new(run.config.user);
    // The wire receives all frames: the card does the MAC filtering.
    let config = PortConfig { queues: 1, promiscuous: true, ..run.config.port };
    let open = |wire: &String| open_wire(&wire.parse()?, &config, &pool, &run.config, &mut needs);
    let wires = args.wire.iter().map(open).collect::<Result<_, Error>>()?;
    Ok(Ports::new(wires, pool, needs))
}

/// Serves one card, created by `make`, on each socket.
fn serve_all<D: Device + Send + 'static>(args: &Args, make: impl Fn(MacAddress) -> CardParts<D>) -> Result<(), Error> {
    if args.socket.len() != args.wire.len() || args.mac.len() > args.socket.len() {
        let sockets = args.socket.len();
        let wires = args.wire.len();
        let macs = args.mac.len();
        return Err(Error::Config(format!(
            "{sockets} sockets, {wires} wires, {macs} MAC addresses; each card has one --socket, one --wire and up to \
             one --mac"
        )));
    }
    let mut run = start(args, args.sandbox.sandbox(Sandbox::Server), args.poll)?;
    let listen = |(number, socket): (usize, &SocketPlace)| {
        let listener = Listener::bind_for(&socket.path, &socket.access)?;
        Ok(ServedCard::new(listener, make(mac(args, number))))
    };
    let mut served_cards = args.socket.iter().enumerate().map(listen).collect::<Result<Vec<_>, Error>>()?;
    let mut wires = open_wires(args, &run)?;
    let status: Vec<CardStatus> = served_cards.iter().map(|served| served.status.clone()).collect();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
    let epoll = epoll.map_err(|errno| Error::os("a set to wait on", errno))?;
    prepare_notifiers().map_err(|source| Error::os("interrupts for guests", source))?;
    run.enter_sandbox(wires.needs())?;
    for (served, wire) in served_cards.iter_mut().zip(&mut *wires) {
        served.wire = wire.take_queues().pop();
    }
    run.spawn(move |worker| serve(ServedCards { all: served_cards, epoll }, worker))?;
    let result = run.control(&mut wires, &mut |_| report(&status));
    close(wires);
    result
}

/// Runs a command with a card, created by `make`, on each wire.
fn run_command(args: &Args, make: impl Fn(MacAddress) -> Arc<ixgbe::Card>) -> Result<(), Error> {
    if args.mac.len() > args.wire.len() {
        let (wires, macs) = (args.wire.len(), args.mac.len());
        return Err(Error::Config(format!("{wires} wires, {macs} MAC addresses; each card has up to one --mac")));
    }
    // Without a sandbox, as drivers' memory is found in /proc; and polling, as a driver's writes wake nobody.
    let mut run = start(args, Sandbox::Off, true)?;
    // The command has standard output for itself.
    run.printer.sink = OutputStream::Stderr;
    run.printer.live &= args.json || is_verbose();
    let mut wires = open_wires(args, &run)?;
    let cards: Vec<_> = (0..args.wire.len()).map(|number| make(mac(args, number))).collect();
    let (program, arguments) = args.command.split_first().expect("the caller has looked");
    let mut command = Command::new(program);
    command.args(arguments);
    let mut driver = NativeDriver::start(&cards, command)?;
    driver.attach(wires.iter_mut().map(|wire| wire.take_queues().pop()));
    let (work, running) = driver.split(|| 0);
    let mut counters = |_: &_| with_counters(cards.iter().map(|card| (Fields::new(), ringpass::ixgbe_counters(card))));
    let result = run.spawn(work).and_then(|()| run.control(&mut wires, &mut counters));
    close(wires);
    let finished = running.finish();
    result.and(finished)
}

/// Creates the buffers for frames in flight between wires and cards. The cards' own buffers are in the guests'
/// memory.
fn pool(wires: usize, mtu: usize) -> Result<Mempool, Error> {
    const A_WIRE: usize = 2048;
    let size = (mtu + 64).next_multiple_of(64).max(2048);
    Ok(Mempool::new(&MempoolConfig { buffers: A_WIRE * wires, size, ..MempoolConfig::default() })?)
}

/// A card with its wire and its vfio-user server.
struct ServedCard<D> {
    server: Server<D>,
    card: Arc<dyn Model>,
    wire: Option<QueuePair>,
    status: CardStatus,
    log: EventLog,
    /// Rounds since the client was last polled.
    rounds_since_poll: u32,
    /// Time of the client's last message.
    last_message: Instant,
}

/// Card state that the main thread prints.
#[derive(Clone)]
struct CardStatus {
    socket: PathBuf,
    counters: Counters,
    connected: Arc<AtomicBool>,
    clients: Arc<AtomicU64>,
}

impl<D: Device> ServedCard<D> {
    /// Rounds between two polls for messages and new clients; each poll is a system call.
    const ROUNDS_PER_POLL: u32 = 8;
    /// Largest gap between two messages of a busy client.
    const BUSY_GAP: Duration = Duration::from_millis(1);
    /// Longest time for which one busy client is served while the other cards wait. `QUIET_POLLS` polls without
    /// a message end it earlier.
    const BUSY_LIMIT: Duration = Duration::from_millis(2);
    const QUIET_POLLS: u32 = 50;

    fn new(listener: Listener, CardParts { device, card, counters }: CardParts<D>) -> Self {
        let socket = listener.path().to_owned();
        let status = CardStatus { socket, counters, connected: Arc::default(), clients: Arc::default() };
        let log = EventLog::new(format!("{}", status.socket.display()));
        let server = Server::new(listener, device);
        Self { server, card, wire: None, status, log, rounds_since_poll: 0, last_message: Instant::now() }
    }

    /// Runs one round and returns the number of packets moved. Messages do not count, so that a driver that
    /// queries the link from time to time does not keep the model from sleeping.
    fn turn(&mut self) -> usize {
        let packets = self.wire.as_mut().map_or(0, |wire| self.card.step(wire));
        self.rounds_since_poll += 1;
        if self.rounds_since_poll < Self::ROUNDS_PER_POLL {
            return packets;
        }
        self.rounds_since_poll = 0;
        let Self { server, status, log, .. } = self;
        server.accept_client(&mut |event| record_event(&event, status, log));
        if self.serve() > 0 {
            let before = std::mem::replace(&mut self.last_message, Instant::now());
            if packets == 0 && before.elapsed() < Self::BUSY_GAP {
                self.serve_while_busy();
            }
        }
        self.status.connected.store(self.server.connected(), Ordering::Relaxed);
        packets
    }

    /// Serves a client that sends one request after another, so that it does not wait for a sleep each time.
    fn serve_while_busy(&mut self) {
        let (mut quiet, start) = (0, Instant::now());
        while start.elapsed() < Self::BUSY_LIMIT {
            quiet = if self.serve() > 0 { 0 } else { quiet + 1 };
            if quiet == Self::QUIET_POLLS {
                return;
            }
        }
    }

    fn serve(&mut self) -> usize {
        let Self { server, status, log, .. } = self;
        server.serve(&mut |event| record_event(&event, status, log))
    }

    /// Calls `with` for each descriptor that can bring work, except the wire's.
    fn descriptors(&self, mut with: impl FnMut(BorrowedFd<'_>, PollFlags)) {
        self.server.wait_on().for_each(|(fd, flags)| with(fd, flags));
        with(self.card.waker(), PollFlags::IN);
    }
}

/// Counts and logs an event of a client.
fn record_event(event: &Event, status: &CardStatus, log: &mut EventLog) {
    if let Event::Connected = event {
        status.clients.fetch_add(1, Ordering::Relaxed);
    }
    log.event(event);
}

/// Log of client events. At most `LINES` lines a second are printed, so that a client that reconnects all the
/// time cannot flood the terminal.
struct EventLog {
    name: String,
    second: Instant,
    lines: u32,
}

impl EventLog {
    const LINES: u32 = 10;

    fn new(name: String) -> Self {
        Self { name, second: Instant::now(), lines: 0 }
    }

    fn event(&mut self, event: &Event) {
        if self.second.elapsed() > Duration::from_secs(1) {
            (self.second, self.lines) = (Instant::now(), 0);
        }
        self.lines += 1;
        let name = &self.name;
        match event {
            _ if self.lines == Self::LINES => errln!("{name}: more happens than is shown here"),
            _ if self.lines > Self::LINES => {}
            Event::Connected => note(&format!("{name}: a client has connected")),
            Event::Busy => errln!("{name}: a second client was turned away; a card has one"),
            Event::Refused(why) => errln!("{name}: refused: {why}"),
            Event::Ended(why) => note(&format!("{name}: {why}; the card is free")),
            Event::Failed(why) => errln!("{name}: no client could be let in: {why}"),
        }
    }
}

/// All served cards, as one source to wait for.
struct ServedCards<D> {
    all: Vec<ServedCard<D>>,
    epoll: OwnedFd,
}

impl<D: Device> ServedCards<D> {
    fn turn(&mut self) -> usize {
        self.all.iter_mut().map(ServedCard::turn).sum()
    }
}

/// Calls `with` for each descriptor that a wire waits on.
fn readable(wire: &dyn RxQueue, mut with: impl FnMut(BorrowedFd<'_>)) {
    wire.wake_sources(&mut |wake| {
        if let WakeSource::Readable(fd) = wake {
            with(fd);
        }
    });
}

impl<D: Device> Wakeable for ServedCards<D> {
    fn arm(&mut self) {
        for served in &mut self.all {
            served.card.prepare_to_wait();
            let add = |fd: BorrowedFd<'_>, flags: PollFlags| {
                let flags = epoll::EventFlags::from_bits_retain(u32::from(flags.bits()));
                // A descriptor that cannot be added cannot wake the worker; it still wakes when its sleep limit
                // is over.
                let _ = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), flags);
            };
            served.descriptors(add);
            if let Some(wire) = &mut served.wire {
                wire.rx.arm();
                if served.card.interest().frames {
                    readable(&*wire.rx, |fd| add(fd, PollFlags::IN));
                }
            }
        }
    }

    fn disarm(&mut self) {
        for served in &mut self.all {
            let delete = |fd: BorrowedFd<'_>, _| {
                let _ = epoll::delete(&self.epoll, fd);
            };
            served.descriptors(delete);
            if let Some(wire) = &mut served.wire {
                readable(&*wire.rx, |fd| delete(fd, PollFlags::IN));
                wire.rx.disarm();
            }
            served.card.finish_wait();
            // The wake-up may be due to a message, so the next round polls the client.
            served.rounds_since_poll = ServedCard::<D>::ROUNDS_PER_POLL;
        }
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        let mut turns = false;
        for served in &self.all {
            let interest = served.card.interest();
            turns |= interest.room || interest.turn.is_some();
            if let Some(wire) = served.wire.as_ref().filter(|_| interest.frames) {
                wire.rx.wake_sources(&mut |wake| turns |= matches!(wake, WakeSource::Polled | WakeSource::At(_)));
            }
        }
        each(if turns { WakeSource::Polled } else { WakeSource::Readable(self.epoll.as_fd()) });
    }
}

/// Runs the cards until the worker is told to stop.
fn serve<D: Device>(mut served_cards: ServedCards<D>, mut worker: Worker) {
    while worker.running() {
        let moved = served_cards.turn();
        worker.after(moved, &mut [&mut served_cards]);
    }
    served_cards.all.iter_mut().for_each(|served| served.server.end());
}

/// Returns the state and the counters of all cards that are served.
fn report(status: &[CardStatus]) -> Fields {
    with_counters(status.iter().map(|status| {
        let card = fields([
            ("socket", status.socket.to_string_lossy().into()),
            ("connected", status.connected.load(Ordering::Relaxed).into()),
            ("clients", status.clients.load(Ordering::Relaxed).into()),
        ]);
        (card, (status.counters)())
    }))
}

/// Returns the fields of all cards, with their counters.
fn with_counters(cards: impl Iterator<Item = (Fields, Vec<(&'static str, u64)>)>) -> Fields {
    let (mut all, mut objects) = (Fields::new(), Vec::new());
    for (number, (mut card, counters)) in cards.enumerate() {
        for (name, count) in counters {
            let name = name.trim_start_matches("model_");
            card.insert(name.to_owned(), count.into());
            // As fields of their own, the counters that the wires' statistics lack: reasons why frames were lost.
            if count > 0 && !name.ends_with("_packets") && !name.ends_with("_bytes") {
                all.insert(format!("card{number}_{name}"), count.into());
            }
        }
        objects.push(Value::Object(card));
    }
    all.insert("cards".into(), objects.into());
    all
}
