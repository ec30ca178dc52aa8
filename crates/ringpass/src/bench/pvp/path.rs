//! The way of a packet: card, switch, network function in a guest's place, switch, card.

use std::hint::{black_box, spin_loop};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass_memory::{Burst, Mempool, MempoolConfig, PageSize, RegionConfig};
use ringpass_models::Model;
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_port::{Error, Port, PortConfig, Queues, Role, RxQueue, State, TxQueue, VhostConfig, VirtioUserConfig};
use ringpass_vhost::{Copies, Copying, Vhost};
use ringpass_virtio_user::VirtioUser;

use super::pattern::{Pattern, Transfer};
use crate::bench::cores::go_on;
use crate::bench::rig::Wire;
use crate::bench::tsc;
use crate::bench::vhost::{Layout, Ring, features};
use crate::drivers;
use crate::worker::cycles;

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    pub pattern: Pattern,
    pub ring: Ring,
    /// Bytes of a frame.
    pub size: usize,
    /// Descriptors of the card's rings and of the guest's.
    pub physical_rx: usize,
    pub physical_tx: usize,
    pub virtual_rx: usize,
    pub virtual_tx: usize,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Packets that came out, in millions for each second of the switch's time.
    pub mpps: f64,
    /// Busy cycles a packet of the switch towards the guest, of the switch from the guest, and of the network function.
    pub cycles: [f64; 3],
    /// Packets that came in and did not come out, of all.
    pub lost: f64,
    /// Packets for which a guest that is to lend buffers had none, of all; with those of the warm-up.
    pub host_buffers: f64,
}

/// What the thread of the network function is told, and what it did.
#[repr(align(128))]
#[derive(Default)]
struct Function {
    gate: AtomicU8,
    moved: AtomicU64,
    busy: AtomicU64,
}

impl Function {
    const WAIT: u8 = 0;
    const WORK: u8 = 1;
    const END: u8 = 2;

    fn done(&self) -> [u64; 2] {
        [&self.moved, &self.busy].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// What the switch did.
#[derive(Clone, Copy, Default)]
struct Switched {
    /// Packets from the card and to it, and cycles of the turns that moved them.
    moved: [u64; 2],
    busy: [u64; 2],
    /// Packets that the card sent.
    sent: usize,
    /// All cycles but those of the card.
    time: u64,
}

/// The way, with all that surrounds it. Dropped in this order: the card gives back what the guest has lent it first.
pub struct Path {
    card: Queues,
    guest: Queues,
    function: Queues,
    wire: Wire,
    physical_rx: usize,
    /// Frames that come from the wire at a time.
    slice: usize,
    ports: [Box<dyn Port>; 3],
}

impl Path {
    const BURST: usize = 32;
    /// Packets of a slice where the three take turns on one thread.
    const IN_TURN: usize = 64;
    /// Descriptors of the card's rings that may wait to be posted or reclaimed.
    const RESERVE: usize = 32;

    /// Connects all of it. Sockets are made in the folder.
    pub fn new(cell: &Cell, pages: PageSize, folder: &FilePath) -> Result<Self, Error> {
        let &Cell { pattern, ring, size, physical_rx, physical_tx, virtual_rx, virtual_tx } = cell;
        let region = RegionConfig { pages, ..Default::default() };
        let pool = |buffers| Mempool::new(&MempoolConfig { buffers, region, ..Default::default() });
        let host = pool(2 * (physical_rx + physical_tx) + 4096)?;
        let model = Card::new(&CardConfig::default());
        let config = PortConfig { rx_ring: physical_rx, tx_ring: physical_tx, ..Default::default() };
        let mut card_port = drivers::open(model.clone(), "bench", &config, &host)?;
        let mut card = card_port.take_queues().remove(0);

        let path = folder.join("guest");
        // A card gives buffers back in an order of its own.
        let layout = if pattern.mapped() { Layout::Plain } else { Layout::InOrder };
        let features = Some(features(ring, layout));
        let copying = |transfer| if transfer == Transfer::FakeZeroCopy { Copying::LeftOut } else { Copying::Real };
        let copies = Copies { to_guest: copying(pattern.rx), from_guest: copying(pattern.tx) };
        let back_end = VhostConfig { path: path.clone(), role: Role::Listen, queues: None, features: features.clone() };
        let mut guest_port = Vhost::open(&back_end, &PortConfig::default(), &host, copies)?;
        // To be asked for before guests can come.
        let lending = if pattern.mapped() { guest_port.lending(0) } else { None };
        let guest = guest_port.take_queues().remove(0);
        lending.map_or(Ok(()), |lending| card.rx.borrow_from(&lending))?;

        let front_end =
            VirtioUserConfig { path, role: Role::Connect, queues: None, features, mac: None, inflight: false };
        let config = PortConfig { rx_ring: virtual_rx, tx_ring: virtual_tx, ..Default::default() };
        let memory = pool(2 * (virtual_rx + virtual_tx) + 4096)?;
        let mut function_port = VirtioUser::open("network function", &front_end, &config, &memory)?;
        let function = function_port.take_queues().remove(0);

        let model: Arc<dyn Model> = model;
        let wire = Wire::new(&model, size)?;
        let slice = 256.min(physical_rx - Self::RESERVE).min(physical_tx - Self::RESERVE);
        let ports: [Box<dyn Port>; 3] = [Box::new(function_port), Box::new(guest_port), card_port];
        let mut path = Self { card, guest, function, wire, physical_rx, slice, ports };
        // From here on the card's ring is as full as can be.
        path.wire.exchange(physical_rx - Self::RESERVE);
        path.wait_for_link()?;
        Ok(path)
    }

    fn wait_for_link(&mut self) -> Result<(), Error> {
        const LIMIT: Duration = Duration::from_secs(10);
        let start = Instant::now();
        while !self.ports[1].link().up {
            go_on()?;
            if start.elapsed() > LIMIT {
                return Err(Error::Other(format!("the network function has not connected in {LIMIT:?}")));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Runs for so much of the switch's time, or half a minute.
    pub fn measure(&mut self, cores: [CoreId; 2], time: Duration) -> Result<Sample, Error> {
        let function = Function::default();
        let host_buffers = self.host_buffers();
        let Self { card, guest, function: queues, wire, physical_rx, slice, ports } = self;
        let mut switch =
            Switch { guest, card, wire, slice: *slice, bursts: [Burst::new(Self::BURST), Burst::new(Self::BURST)] };
        let threads = thread::scope(|scope| {
            let far = scope.spawn(|| run_function(queues, &function, cores[1]));
            let near = scope.spawn(|| {
                core_affinity::set_for_current(cores[0]);
                // Until all buffers in the card's ring are such as it will have.
                let slices = 20 + 2 * *physical_rx / *slice;
                (0..slices).for_each(|_| switch.slice(&function, &mut Switched::default()));
                let before = function.done();
                let switched = switch.run(&function, (time.as_secs_f64() * tsc::frequency()) as u64);
                let after = function.done();
                (switched, [after[0] - before[0], after[1] - before[1]])
            });
            let near = near.join();
            function.gate.store(Function::END, Ordering::Relaxed);
            far.join().and(near)
        });
        let panicked = |_| Error::Other("a thread of the bench has panicked; this is a bug".into());
        let (switched, [function_moved, function_busy]) = threads.map_err(panicked)?;
        if let Some(State::Gone(why)) =
            ports.iter_mut().map(|port| port.state()).find(|state| matches!(state, State::Gone(_)))
        {
            return Err(Error::Other(why));
        }
        go_on()?;
        let per = |cycles: u64, packets: u64| cycles as f64 / packets.max(1) as f64;
        let ([to_guest, from_guest], sent) = (switched.moved, switched.sent as f64);
        Ok(Sample {
            mpps: sent / (switched.time as f64 / tsc::frequency()) / 1e6,
            cycles: [
                per(switched.busy[0], to_guest),
                per(switched.busy[1], from_guest),
                per(function_busy, function_moved),
            ],
            lost: 1.0 - (sent / to_guest.max(1) as f64).min(1.0),
            host_buffers: ((self.host_buffers() - host_buffers) as f64 / to_guest.max(1) as f64).min(1.0),
        })
    }

    /// Frames that the card wrote to the host's buffers, because the guest had lent too few.
    fn host_buffers(&mut self) -> u64 {
        let counters = self.ports[1].extended();
        counters.iter().find(|(name, _)| *name == "mapped_host_buffers").map_or(0, |(_, count)| *count)
    }

    /// The same on one thread, a slice at a time through each of the three: to count instructions. Returns how many
    /// packets passed.
    pub fn pass_in_turn(&mut self, slices: usize) -> usize {
        let other = [forward as Pass; 3];
        let warm_up = 4 + 2 * self.physical_rx.div_ceil(Self::IN_TURN);
        (0..warm_up).for_each(|_| _ = self.pass_slice(other));
        (0..slices).map(|_| self.pass_slice([measured_switch_rx, measured_function, measured_switch_tx])).sum()
    }

    fn pass_slice(&mut self, [switch_rx, function, switch_tx]: [Pass; 3]) -> usize {
        let count = self.slice.min(Self::IN_TURN);
        let mut burst = Burst::new(Self::BURST);
        let mut repeat = |pass: Pass, from: &mut dyn RxQueue, to: &mut dyn TxQueue| {
            let mut moved = 0;
            // Some turns more than needed, as what is behind may be late.
            for _ in 0..count {
                moved += pass(from, to, &mut burst);
                if moved >= count {
                    break;
                }
            }
            moved
        };
        repeat(switch_rx, &mut *self.card.rx, &mut *self.guest.tx);
        repeat(function, &mut *self.function.rx, &mut *self.function.tx);
        let passed = repeat(switch_tx, &mut *self.guest.rx, &mut *self.card.tx);
        self.wire.exchange(count);
        passed
    }
}

/// Moves a burst.
type Pass = fn(&mut dyn RxQueue, &mut dyn TxQueue, &mut Burst) -> usize;

/// The switch's thread, which plays the card too, while the clock stands.
struct Switch<'a> {
    guest: &'a mut Queues,
    card: &'a mut Queues,
    wire: &'a mut Wire,
    slice: usize,
    bursts: [Burst; 2],
}

impl Switch<'_> {
    /// Slice after slice for so many cycles; longer if the network function's thread does not get its CPU meanwhile.
    fn run(&mut self, function: &Function, time: u64) -> Switched {
        const LIMIT: Duration = Duration::from_secs(30);
        let mut switched = Switched::default();
        let start = Instant::now();
        let before = function.done();
        let enough = |switched: &Switched| switched.time >= time && switched.sent > 0 && function.done() != before;
        while !enough(&switched) && start.elapsed() < LIMIT && go_on().is_ok() {
            self.slice(function, &mut switched);
        }
        switched
    }

    /// Both of the switch's threads in turn, until what the card had received is gone. Then the card sends and receives,
    /// during which nothing else is done: a card has no need of the switch's time.
    fn slice(&mut self, function: &Function, switched: &mut Switched) {
        let [to_guest, from_guest] = &mut self.bursts;
        function.gate.store(Function::WORK, Ordering::Release);
        let start = cycles();
        let (mut now, mut taken) = (start, 0);
        while taken < self.slice {
            let received = measured_switch_rx(&mut *self.card.rx, &mut *self.guest.tx, to_guest);
            let then = std::mem::replace(&mut now, cycles());
            if received == 0 {
                break;
            }
            taken += received;
            switched.moved[0] += received as u64;
            switched.busy[0] += now - then;
            let sent = measured_switch_tx(&mut *self.guest.rx, &mut *self.card.tx, from_guest);
            let then = std::mem::replace(&mut now, cycles());
            if sent > 0 {
                switched.moved[1] += sent as u64;
                switched.busy[1] += now - then;
            }
        }
        switched.time += now - start;
        function.gate.store(Function::WAIT, Ordering::Release);
        switched.sent += self.wire.exchange(self.slice);
    }
}

/// The network function's thread: forwards all that comes, as it is.
fn run_function(queues: &mut Queues, function: &Function, core: CoreId) {
    core_affinity::set_for_current(core);
    let mut burst = Burst::new(Path::BURST);
    loop {
        match function.gate.load(Ordering::Acquire) {
            Function::WORK => {}
            Function::END => return,
            _ => {
                spin_loop();
                continue;
            }
        }
        let start = cycles();
        let moved = measured_function(&mut *queues.rx, &mut *queues.tx, &mut burst);
        if moved > 0 {
            function.busy.store(function.busy.load(Ordering::Relaxed) + cycles() - start, Ordering::Relaxed);
            function.moved.store(function.moved.load(Ordering::Relaxed) + moved as u64, Ordering::Relaxed);
        }
    }
}

/// One burst from a queue to another; what does not fit is lost.
#[inline(always)]
fn forward(from: &mut dyn RxQueue, to: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    let received = from.rx_burst(burst);
    if received > 0 {
        to.tx_burst(burst);
        burst.clear();
    }
    received
}

// Callgrind finds these by their names: so they are not inlined, `black_box` keeps their last call from becoming a jump,
// and a number of its own keeps each from being merged with the others.

#[inline(never)]
fn measured_switch_rx(from: &mut dyn RxQueue, to: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    black_box(0u8);
    black_box(forward(from, to, burst))
}

#[inline(never)]
fn measured_switch_tx(from: &mut dyn RxQueue, to: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    black_box(1u8);
    black_box(forward(from, to, burst))
}

#[inline(never)]
fn measured_function(from: &mut dyn RxQueue, to: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    black_box(2u8);
    black_box(forward(from, to, burst))
}

/// The functions that have all of each thread in them, in the order of [`Sample::cycles`].
pub const FUNCTIONS: [&str; 3] = ["measured_switch_rx", "measured_switch_tx", "measured_function"];
