//! `ringpass model 82599` and `ringpass model virtio-net`: software cards for other processes, over vfio-user.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use ringpass_memory::{Mempool, MempoolConfig};
use ringpass_models::{Model, ixgbe, virtio};
use ringpass_port::{Error, MacAddress, Port, PortConfig, Queues, RxQueue, Wake, Wakeable};
use ringpass_vfio_user::{Device, Event, Listener, Server, prepare_signals};
use rustix::event::{PollFlags, epoll};
use serde_json::Value;

use crate::open::{close, open_address};
use crate::options::{Options, seconds, within};
use crate::run::Run;
use crate::sandbox::Sandbox;
use crate::stats::{Fields, fields};
use crate::worker::Worker;

/// Serve software network cards to virtual machines and other processes
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which card: 82599 or virtio-net
    #[arg(value_parser = ["82599", "virtio-net"])]
    card: String,
    /// Socket to serve a card at; again for another card
    #[arg(long, value_name = "PATH", required = true)]
    socket: Vec<PathBuf>,
    /// Port at the far end of that card's wire; one for each socket, in the same order
    #[arg(long, value_name = "PORT", required = true)]
    wire: Vec<String>,
    /// PCI device id of the cards [default: 10fb, or 1041 for virtio-net; 1000 has the legacy interface too]
    #[arg(long, value_name = "ID", value_parser = device)]
    device: Option<u16>,
    /// virtio-net: features to offer beyond or short of the usual, as packed+in_order-mrg_rxbuf
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    features: Option<String>,
    /// virtio-net: most pairs of queues
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=64))]
    queues: usize,
    /// MAC address of a card; again for the next [default: 02:82:59:90:00:01, …]
    #[arg(long)]
    mac: Vec<MacAddress>,
    /// What the cards lie about and when, to test drivers: no-eop@100-100+removed@5000, length-long%0.01
    #[arg(long, value_name = "LIST", default_value = "seed=1", hide_default_value = true)]
    lies: String,
    /// Largest payload of a frame on the wires in bytes, 68 to 9710
    #[arg(long, value_name = "BYTES", default_value = "1500", value_parser = within(68..=9710))]
    mtu: usize,
    /// End after so many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Print statistics for machines, one JSON object a line
    #[arg(long)]
    json: bool,
    /// Never sleep: poll on
    #[arg(long)]
    poll: bool,
    /// CPU to run on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Keep user, capabilities, files and all system calls after start-up
    #[arg(long)]
    no_sandbox: bool,
    /// Take this card for a wire even if its kernel interface is in use
    #[arg(long, value_name = "ADDRESS")]
    take_over: Vec<String>,
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
  two cards, jumbo frames:
      sudo ringpass model 82599 --mtu 9710 --socket /run/card0 --wire tap:wire0 \
          --socket /run/card1 --wire packet:eth1"#;

fn device(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|_| "write four hexadecimal digits, as 10fb".into())
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    if args.card == "virtio-net" { virtio_net(args) } else { intel(args) }
}

fn intel(args: Args) -> Result<(), Error> {
    let lies = args.lies.parse().map_err(Error::Other)?;
    let device = args.device.unwrap_or(0x10fb);
    if let Some(features) = &args.features {
        return Err(Error::Other(format!("--features {features} is for virtio-net")));
    }
    serve_all(&args, |mac| {
        let card = ixgbe::Card::new(&ixgbe::CardConfig { device, mac, lies, ..Default::default() });
        let counted = card.clone();
        let counters: Counters = Arc::new(move || intel_counters(&counted));
        (ixgbe::Served::new(card.clone()), card as Arc<dyn Model>, counters)
    })
}

fn virtio_net(args: Args) -> Result<(), Error> {
    use ringpass_virtio::features::{ACCESS_PLATFORM, MQ, MTU, offer};
    let interface = match args.device {
        None | Some(0x1041) => virtio::Interface::Modern,
        Some(0x1000) => virtio::Interface::Transitional,
        Some(other) => return Err(Error::Other(format!("--device {other:04x}: virtio-net is 1041 or 1000"))),
    };
    // A guest's kernel without an IOMMU uses the card's own addresses all the same.
    let wishes = args.features.as_deref().unwrap_or_default();
    let offered = offer(virtio::VirtioConfig::USUAL, wishes).map_err(Error::Other)?;
    let several = if args.queues > 1 { MQ } else { 0 };
    let config = virtio::VirtioConfig {
        interface,
        features: (offered | MTU | several) & !ACCESS_PLATFORM,
        queue_pairs: args.queues as u16,
        mtu: args.mtu as u16,
        lies: args.lies.parse().map_err(Error::Other)?,
        ..Default::default()
    };
    serve_all(&args, |mac| {
        let card = virtio::VirtioCard::new(&virtio::VirtioConfig { mac, ..config });
        let counted = card.clone();
        let counters: Counters = Arc::new(move || {
            let bare = |(name, count): (&'static str, u64)| (name.trim_start_matches("model_"), count);
            crate::model::virtio_counters(&counted).into_iter().map(bare).collect()
        });
        (virtio::Served::new(card.clone()), card as Arc<dyn Model>, counters)
    })
}

/// What a card has counted.
type Counters = Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>;

/// Serves a card that `make` makes at each socket.
fn serve_all<D: Device + Send + 'static>(
    args: &Args,
    make: impl Fn(MacAddress) -> (D, Arc<dyn Model>, Counters),
) -> Result<(), Error> {
    if args.socket.len() != args.wire.len() || args.mac.len() > args.socket.len() {
        let (sockets, wires, macs) = (args.socket.len(), args.wire.len(), args.mac.len());
        return Err(Error::Other(format!(
            "{sockets} sockets, {wires} wires, {macs} MAC addresses; each card has one --socket, one --wire and up to \
             one --mac"
        )));
    }
    let options = Options {
        cpu: args.cpu.iter().copied().collect(),
        mtu: args.mtu,
        time: args.time,
        json: args.json,
        poll: args.poll,
        no_sandbox: args.no_sandbox,
        take_over: args.take_over.clone(),
        ..crate::Defaults::parse_from(["ringpass"]).options
    };
    let mut run = Run::new(options)?;
    let pool = pool(args.wire.len(), args.mtu)?;
    let (mut wires, mut machines): (Vec<Box<dyn Port>>, Vec<Machine<D>>) = Default::default();
    for (i, (socket, wire)) in args.socket.iter().zip(&args.wire).enumerate() {
        let listener = Listener::bind(socket).map_err(|error| Error::Other(error.to_string()))?;
        let mac = args.mac.get(i).copied().unwrap_or_else(|| MacAddress([2, 0x82, 0x59, 0x90, 0, i as u8 + 1]));
        let wire = wire.parse()?;
        // What the driver does not listen for, the card filters.
        let config = PortConfig { queues: 1, promiscuous: true, ..run.options.port() };
        wires.push(open_address(&wire, &config, &pool, &run.options)?);
        machines.push(Machine::new(listener, make(mac)));
    }
    let shown: Vec<Shown> = machines.iter().map(|machine| machine.shown.clone()).collect();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
    let epoll = epoll.map_err(|errno| Error::Os { what: "a set to wait on".into(), source: errno.into() })?;
    prepare_signals().map_err(|source| Error::Os { what: "interrupts for guests".into(), source })?;
    run.enter_sandbox_as(if args.no_sandbox { Sandbox::Off } else { Sandbox::Server })?;
    for (machine, wire) in machines.iter_mut().zip(&mut wires) {
        machine.wire = wire.take_queues().pop();
    }
    run.spawn(move |worker| serve(Machines { all: machines, epoll }, worker));
    let result = run.control(&mut wires, &mut |_| report(&shown));
    close(wires, &pool);
    result
}

/// Buffers for the frames that are on their way between wires and cards; the guests' memory is theirs.
fn pool(wires: usize, mtu: usize) -> Result<Mempool, Error> {
    const A_WIRE: usize = 2048;
    let size = (mtu + 64).next_multiple_of(64).max(2048);
    Ok(Mempool::new(&MempoolConfig { buffers: A_WIRE * wires, size, ..MempoolConfig::default() })?)
}

/// A card, its wire, and the server that has it.
struct Machine<D> {
    server: Server<D>,
    card: Arc<dyn Model>,
    wire: Option<Queues>,
    shown: Shown,
    log: Log,
    /// Rounds without a look at the client.
    unseen: u32,
    /// When the client last had something to say.
    spoken: Instant,
}

/// What the main thread shows of a machine.
#[derive(Clone)]
struct Shown {
    socket: PathBuf,
    counters: Counters,
    connected: Arc<AtomicBool>,
    clients: Arc<AtomicU64>,
}

impl<D: Device> Machine<D> {
    /// Messages and clients are looked for every so many rounds: each look is a system call.
    const ROUNDS: u32 = 8;
    /// Messages that come so soon after one another are a conversation.
    const SOON: Duration = Duration::from_millis(1);
    /// How long one is followed while the other cards wait, and how many looks without a message end it.
    const TALK: Duration = Duration::from_millis(2);
    const PAUSE: u32 = 50;

    fn new(listener: Listener, (device, card, counters): (D, Arc<dyn Model>, Counters)) -> Self {
        let socket = listener.path().to_owned();
        let shown = Shown { socket, counters, connected: Arc::default(), clients: Arc::default() };
        let log = Log::new(format!("{}", shown.socket.display()));
        let server = Server::new(listener, device);
        Self { server, card, wire: None, shown, log, unseen: 0, spoken: Instant::now() }
    }

    /// One round: how many packets moved. Messages do not count: a driver that asks for the link now and then does not
    /// keep the model from sleeping.
    fn turn(&mut self) -> usize {
        let packets = self.wire.as_mut().map_or(0, |wire| self.card.step(wire));
        self.unseen += 1;
        if self.unseen < Self::ROUNDS {
            return packets;
        }
        self.unseen = 0;
        let Self { server, shown, log, .. } = self;
        server.welcome(&mut |event| note(&event, shown, log));
        if self.serve() > 0 {
            let before = std::mem::replace(&mut self.spoken, Instant::now());
            if packets == 0 && before.elapsed() < Self::SOON {
                self.talk();
            }
        }
        self.shown.connected.store(self.server.connected(), Ordering::Relaxed);
        packets
    }

    /// A client that asks one thing after the other is not kept waiting by a sleep each time.
    fn talk(&mut self) {
        let (mut quiet, start) = (0, Instant::now());
        while start.elapsed() < Self::TALK {
            quiet = if self.serve() > 0 { 0 } else { quiet + 1 };
            if quiet == Self::PAUSE {
                return;
            }
        }
    }

    fn serve(&mut self) -> usize {
        let Self { server, shown, log, .. } = self;
        server.serve(&mut |event| note(&event, shown, log))
    }

    /// What may bring something to do, but for the wire.
    fn descriptors(&self, mut with: impl FnMut(BorrowedFd<'_>, PollFlags)) {
        self.server.wait_on().for_each(|(fd, flags)| with(fd, flags));
        with(self.card.bell(), PollFlags::IN);
    }
}

/// Takes note of what has happened to a client.
fn note(event: &Event, shown: &Shown, log: &mut Log) {
    if let Event::Connected = event {
        shown.clients.fetch_add(1, Ordering::Relaxed);
    }
    log.event(event);
}

/// What happens to clients, for people. A client that connects all the time does not fill the terminal.
struct Log {
    name: String,
    second: Instant,
    lines: u32,
}

impl Log {
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
            Event::Connected => errln!("{name}: a client has connected"),
            Event::Busy => errln!("{name}: a second client was turned away; a card has one"),
            Event::Refused(why) => errln!("{name}: refused: {why}"),
            Event::Ended(why) => errln!("{name}: {why}; the card is free"),
            Event::Failed(why) => errln!("{name}: no client could be let in: {why}"),
        }
    }
}

/// All machines, as one thing to wait for.
struct Machines<D> {
    all: Vec<Machine<D>>,
    epoll: OwnedFd,
}

impl<D: Device> Machines<D> {
    fn turn(&mut self) -> usize {
        self.all.iter_mut().map(Machine::turn).sum()
    }
}

/// The descriptors that a wire waits on.
fn readable(wire: &dyn RxQueue, mut with: impl FnMut(BorrowedFd<'_>)) {
    wire.wakes(&mut |wake| {
        if let Wake::Readable(fd) = wake {
            with(fd);
        }
    });
}

impl<D: Device> Wakeable for Machines<D> {
    fn arm(&mut self) {
        for machine in &mut self.all {
            machine.card.doze();
            let add = |fd: BorrowedFd<'_>, flags: PollFlags| {
                let flags = epoll::EventFlags::from_bits_retain(u32::from(flags.bits()));
                // What is not there cannot wake; the limit of every sleep sees to that.
                let _ = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), flags);
            };
            machine.descriptors(add);
            if let Some(wire) = &mut machine.wire {
                wire.rx.arm();
                if machine.card.wants().frames {
                    readable(&*wire.rx, |fd| add(fd, PollFlags::IN));
                }
            }
        }
    }

    fn disarm(&mut self) {
        for machine in &mut self.all {
            let delete = |fd: BorrowedFd<'_>, _| {
                let _ = epoll::delete(&self.epoll, fd);
            };
            machine.descriptors(delete);
            if let Some(wire) = &mut machine.wire {
                readable(&*wire.rx, |fd| delete(fd, PollFlags::IN));
                wire.rx.disarm();
            }
            machine.card.rise();
            // It may be a message that has woken.
            machine.unseen = Machine::<D>::ROUNDS;
        }
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        let mut turns = false;
        for machine in &self.all {
            let wants = machine.card.wants();
            turns |= wants.room || wants.turn.is_some();
            if let Some(wire) = machine.wire.as_ref().filter(|_| wants.frames) {
                wire.rx.wakes(&mut |wake| turns |= matches!(wake, Wake::Turns | Wake::At(_)));
            }
        }
        each(if turns { Wake::Turns } else { Wake::Readable(self.epoll.as_fd()) });
    }
}

/// The worker.
fn serve<D: Device>(mut machines: Machines<D>, mut worker: Worker) {
    while worker.running() {
        let moved = machines.turn();
        worker.after(moved, &mut [&mut machines]);
    }
    machines.all.iter_mut().for_each(|machine| machine.server.end());
}

/// What the cards have counted.
fn report(shown: &[Shown]) -> Fields {
    let card = |shown: &Shown| {
        let mut card = fields([
            ("socket", shown.socket.to_string_lossy().into()),
            ("connected", shown.connected.load(Ordering::Relaxed).into()),
            ("clients", shown.clients.load(Ordering::Relaxed).into()),
        ]);
        card.extend((shown.counters)().into_iter().map(|(name, count)| (name.to_owned(), count.into())));
        Value::Object(card)
    };
    let mut all = fields([("cards", shown.iter().map(card).collect::<Vec<_>>().into())]);
    for (i, shown) in shown.iter().enumerate() {
        // In words, what is not in the wires' statistics: why frames were lost.
        for (name, count) in (shown.counters)().into_iter().filter(|(_, count)| *count > 0) {
            if !name.ends_with("_packets") && !name.ends_with("_bytes") {
                all.insert(format!("card{i}_{name}"), count.into());
            }
        }
    }
    all
}

fn intel_counters(card: &ixgbe::Card) -> Vec<(&'static str, u64)> {
    let counters = card.counters();
    vec![
        ("rx_packets", counters.rx_packets),
        ("rx_bytes", counters.rx_bytes),
        ("rx_filtered", counters.rx_filtered),
        ("rx_oversize", counters.rx_oversize),
        ("rx_no_descriptor", counters.rx_no_descriptor),
        ("rx_queue_disabled", counters.rx_queue_disabled),
        ("rx_buffer_full", counters.rx_buffer_full),
        ("rx_no_link", counters.rx_no_link),
        ("tx_packets", counters.tx_packets),
        ("tx_bytes", counters.tx_bytes),
        ("tx_malformed", counters.tx_malformed),
        ("tx_no_buffer", counters.tx_no_buffer),
        ("dma_faults", counters.dma_faults),
    ]
}
