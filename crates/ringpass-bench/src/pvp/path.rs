//! Path of a packet: card, switch, network function in place of a guest, switch, card.

use std::hint::{black_box, spin_loop};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass::{
    Burst, Error, Mempool, MempoolConfig, PageSize, Port, PortConfig, QueuePair, RxQueue, State, TxQueue, cycles,
    drivers,
};
use ringpass_memory::RegionConfig;
use ringpass_models::Model;
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_port::{Role, VhostConfig, VirtioUserConfig};
use ringpass_vhost::{CopyMode, CopyModes, Vhost};
use ringpass_virtio_user::VirtioUser;

use super::pattern::{Pattern, Transfer};
use crate::cores::{check_interrupted, core_to_core_cycles};
use crate::rig::Wire;
use crate::tsc;
use crate::vhost::{Layout, Ring, features};

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    pub pattern: Pattern,
    pub ring: Ring,
    /// Bytes of a frame.
    pub size: usize,
    /// Descriptors of the card's rings (physical) and of the guest's (virtual).
    pub physical_rx: usize,
    pub physical_tx: usize,
    pub virtual_rx: usize,
    pub virtual_tx: usize,
}

/// Results of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Millions of packets that came out, per second of the switch's time.
    pub mpps: f64,
    /// Busy cycles per packet of the switch towards the guest, of the switch from the guest, and of the network
    /// function.
    pub cycles: [f64; 3],
    /// Share of packets that came in but not out, 0 to 1.
    pub lost: f64,
    /// Share of packets for which a guest that lends buffers had none, 0 to 1; the count includes the warm-up.
    pub host_buffers: f64,
    /// Cycles for a cache line to move from core to core, measured just before and just after.
    pub core_to_core_cycles: [f64; 2],
}

/// Gate and counters of the network function's thread.
#[repr(align(128))]
#[derive(Default)]
struct NetworkFunction {
    gate: AtomicU8,
    moved: AtomicU64,
    busy: AtomicU64,
}

impl NetworkFunction {
    const WAIT: u8 = 0;
    const WORK: u8 = 1;
    const END: u8 = 2;

    fn done(&self) -> [u64; 2] {
        [&self.moved, &self.busy].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// Counters of the switch.
#[derive(Clone, Copy, Default)]
struct Switched {
    /// Packets from the card and to it, and cycles of the rounds that moved them.
    moved: [u64; 2],
    busy: [u64; 2],
    /// Packets that the card sent.
    sent: usize,
    /// All cycles except those of the card.
    time: u64,
}

/// The path with all its parts. The order of the fields matters: the card is dropped first and returns the
/// guest's buffers.
pub struct Path {
    card: QueuePair,
    guest: QueuePair,
    function: QueuePair,
    wire: Wire,
    physical_rx: usize,
    /// Frames that come from the wire at a time.
    slice: usize,
    ports: [Box<dyn Port>; 3],
}

impl Path {
    const BURST: usize = 32;
    /// Packets of a slice when one thread runs all three parts in turn.
    const IN_TURN: usize = 64;
    /// Descriptors of the card's rings that may be waiting to be posted or reclaimed.
    const RESERVE: usize = 32;

    /// Connects all parts. Sockets are created in `folder`.
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
        // A card returns buffers in any order, so the rings cannot be in order.
        let layout = if pattern.mapped() { Layout::Plain } else { Layout::InOrder };
        let features = Some(features(ring, layout));
        let copying = |transfer| if transfer == Transfer::FakeZeroCopy { CopyMode::Skipped } else { CopyMode::Copied };
        let copies = CopyModes { to_guest: copying(pattern.rx), from_guest: copying(pattern.tx) };
        let back_end = VhostConfig { features: features.clone(), ..VhostConfig::new(path.clone(), Role::Listen) };
        let mut guest_port = Vhost::open(&back_end, &PortConfig::default(), &host, copies)?;
        // Lending must be requested before a guest can connect.
        let lending = if pattern.mapped() { guest_port.lending(0) } else { None };
        let guest = guest_port.take_queues().remove(0);
        lending.map_or(Ok(()), |lending| card.rx.borrow_from(&lending))?;

        let front_end = VirtioUserConfig { features, inflight: false, ..VirtioUserConfig::new(path, Role::Connect) };
        let config = PortConfig { rx_ring: virtual_rx, tx_ring: virtual_tx, ..Default::default() };
        let memory = pool(2 * (virtual_rx + virtual_tx) + 4096)?;
        let mut function_port = VirtioUser::open("network function", &front_end, &config, &memory)?;
        let function = function_port.take_queues().remove(0);

        let model: Arc<dyn Model> = model;
        let wire = Wire::new(&model, size)?;
        let slice = 256.min(physical_rx - Self::RESERVE).min(physical_tx - Self::RESERVE);
        let ports: [Box<dyn Port>; 3] = [Box::new(function_port), Box::new(guest_port), card_port];
        let mut path = Self { card, guest, function, wire, physical_rx, slice, ports };
        // Fills the card's Rx ring as far as possible.
        path.wire.exchange(physical_rx - Self::RESERVE);
        path.wait_for_link()?;
        Ok(path)
    }

    fn wait_for_link(&mut self) -> Result<(), Error> {
        const LIMIT: Duration = Duration::from_secs(10);
        let start = Instant::now();
        while !self.ports[1].link().up {
            check_interrupted()?;
            if start.elapsed() > LIMIT {
                return Err(Error::Gone(format!("the network function has not connected in {LIMIT:?}")));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Measures until the switch's time reaches `time`, at most half a minute.
    pub fn measure(&mut self, cores: [CoreId; 2], time: Duration) -> Result<Sample, Error> {
        let function = NetworkFunction::default();
        let before = core_to_core_cycles(cores);
        let host_buffers = self.host_buffers();
        let Self { card, guest, function: queues, wire, physical_rx, slice, ports } = self;
        let mut switch =
            Switch { guest, card, wire, slice: *slice, bursts: [Burst::new(Self::BURST), Burst::new(Self::BURST)] };
        let threads = thread::scope(|scope| {
            let far = scope.spawn(|| run_function(queues, &function, cores[1]));
            let near = scope.spawn(|| {
                core_affinity::set_for_current(cores[0]);
                // Warms up until the card's ring holds only buffers of the kind that it will have.
                let slices = 20 + 2 * *physical_rx / *slice;
                (0..slices).for_each(|_| switch.slice(&function, &mut Switched::default()));
                let before = function.done();
                let switched = switch.run(&function, (time.as_secs_f64() * tsc::frequency()) as u64);
                let after = function.done();
                (switched, [after[0] - before[0], after[1] - before[1]])
            });
            let near = near.join();
            function.gate.store(NetworkFunction::END, Ordering::Relaxed);
            far.join().and(near)
        });
        let panicked = |_| Error::Fault("a thread of the bench has panicked; this is a bug".into());
        let (switched, [function_moved, function_busy]) = threads.map_err(panicked)?;
        if let Some(State::Gone(why)) =
            ports.iter_mut().map(|port| port.state()).find(|state| matches!(state, State::Gone(_)))
        {
            return Err(Error::Gone(why));
        }
        check_interrupted()?;
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
            core_to_core_cycles: [before, core_to_core_cycles(cores)],
            host_buffers: ((self.host_buffers() - host_buffers) as f64 / to_guest.max(1) as f64).min(1.0),
        })
    }

    /// Returns the number of frames that the card wrote to host buffers because the guest had lent too few.
    fn host_buffers(&mut self) -> u64 {
        let counters = self.ports[1].extended();
        counters.iter().find(|(name, _)| *name == "mapped_host_buffers").map_or(0, |(_, count)| *count)
    }

    /// Passes slices through all three parts in turn on one thread, to count instructions. Returns the number
    /// of packets.
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
            // More rounds than needed, because a ring may deliver its packets late.
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

/// Function that moves a burst.
type Pass = fn(&mut dyn RxQueue, &mut dyn TxQueue, &mut Burst) -> usize;

/// The switch's thread. It also runs the card, in time that is not counted.
struct Switch<'a> {
    guest: &'a mut QueuePair,
    card: &'a mut QueuePair,
    wire: &'a mut Wire,
    slice: usize,
    bursts: [Burst; 2],
}

impl Switch<'_> {
    /// Runs slices for `time` cycles; longer, up to 30 s, if the network function's thread does not get its CPU
    /// meanwhile.
    fn run(&mut self, function: &NetworkFunction, time: u64) -> Switched {
        const LIMIT: Duration = Duration::from_secs(30);
        let mut switched = Switched::default();
        let start = Instant::now();
        let before = function.done();
        let enough = |switched: &Switched| switched.time >= time && switched.sent > 0 && function.done() != before;
        while !enough(&switched) && start.elapsed() < LIMIT && check_interrupted().is_ok() {
            self.slice(function, &mut switched);
        }
        switched
    }

    /// Runs both threads of the switch in turn until the frames that the card had received are processed. Then
    /// the card sends and receives while the switch stands still: a real card would not use the switch's time.
    fn slice(&mut self, function: &NetworkFunction, switched: &mut Switched) {
        let [to_guest, from_guest] = &mut self.bursts;
        function.gate.store(NetworkFunction::WORK, Ordering::Release);
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
        function.gate.store(NetworkFunction::WAIT, Ordering::Release);
        switched.sent += self.wire.exchange(self.slice);
    }
}

/// Runs the network function, which forwards all packets unchanged.
fn run_function(queues: &mut QueuePair, function: &NetworkFunction, core: CoreId) {
    core_affinity::set_for_current(core);
    let mut burst = Burst::new(Path::BURST);
    loop {
        match function.gate.load(Ordering::Acquire) {
            NetworkFunction::WORK => {}
            NetworkFunction::END => return,
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

/// Moves one burst from a queue to another; packets that do not fit are lost.
#[inline(always)]
pub fn forward(from: &mut dyn RxQueue, to: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    let received = from.rx_burst(burst);
    if received > 0 {
        to.tx_burst(burst);
        burst.clear();
    }
    received
}

// Callgrind finds these functions by name, so they are not inlined. `black_box` keeps their last call from
// becoming a jump, and a different number in each keeps them from being merged.

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

/// Functions that contain the whole work of each thread, in the order of [`Sample::cycles`].
pub const FUNCTIONS: [&str; 3] = ["measured_switch_rx", "measured_switch_tx", "measured_function"];
