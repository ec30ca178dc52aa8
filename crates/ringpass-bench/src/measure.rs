//! Measurements of `bench driver`. The models fill the rings, which is not timed. Then the driver's calls are
//! timed, in the loop of a forwarder between two ports, until the rings are used up.

use std::hint::black_box;

use ringpass::{
    Burst, Error, Flags, Mempool, MempoolConfig, Offloads, PageSize, PortConfig, QueuePair, RxQueue, TxQueue,
};
use ringpass_memory::{Cache, Headers, L4, RegionConfig};

use super::rig::{Driver, FRAME, Rig, Wire};
use super::tsc;

/// A part of the packet path that is measured separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `rx_burst`, including the posting of new buffers.
    Rx,
    /// `tx_burst`, including the reclaiming of sent buffers.
    Tx,
    /// The application, which changes one byte of each packet.
    Forward,
    /// Allocation from a mempool and release. `Rx` and `Tx` include their own.
    Memory,
    /// The whole path in one piece, as a forwarder runs it.
    Total,
}

impl Stage {
    /// All stages, in the order of the tables.
    pub const ALL: [Stage; 5] = [Stage::Rx, Stage::Tx, Stage::Forward, Stage::Memory, Stage::Total];

    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        ["rx", "tx", "forward", "memory", "total"][self as usize]
    }

    /// Returns the name of the function that contains the whole stage and nothing else.
    pub fn function(self) -> &'static str {
        ["measured_rx", "measured_tx", "measured_forward", "measured_memory", "measured_total"][self as usize]
    }
}

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Driver under test.
    pub driver: Driver,
    /// Packets in a burst.
    pub batch: usize,
    /// Descriptors in each ring.
    pub ring: usize,
    /// Pages for packets and rings.
    pub pages: PageSize,
    /// Whether checksum verdicts and hashes of received frames are read, and a checksum is requested for each
    /// sent frame.
    pub offloads: bool,
    /// Set if the driver may use vector instructions.
    pub vector: bool,
}

/// Cycles per packet of each stage, in the order of [`Stage::ALL`], for each round.
#[derive(Default)]
pub struct Samples([Vec<f64>; 5]);

impl Samples {
    /// Returns median, minimum and 90th percentile of a stage.
    pub fn summary(&self, stage: Stage) -> [f64; 3] {
        let mut rounds = self.0[stage as usize].clone();
        rounds.sort_by(f64::total_cmp);
        [50, 0, 90].map(|percent| rounds[(rounds.len() - 1) * percent / 100])
    }
}

/// Returns the number of descriptors of a ring that may be waiting to be posted or reclaimed: the size of the
/// driver's batches.
fn reserve(cell: &Cell) -> usize {
    match cell.driver {
        Driver::Ixgbe => 32,
        Driver::Virtio(_) => 64.min(cell.ring / 2),
    }
}

/// The forwarder with its cards and wires.
pub struct Bench {
    rig: Rig,
    wires: [Wire; 2],
    /// Frames that each card receives in a round.
    fill: usize,
    burst: Burst,
    /// Buffers for the stage `Memory`.
    cache: Cache,
    offloads: bool,
}

impl Bench {
    /// Rounds before those that are recorded.
    const WARM_UP: usize = 20;

    /// Opens the ports and connects the wires.
    pub fn new(cell: &Cell) -> Result<Self, Error> {
        let region = RegionConfig { pages: cell.pages, ..Default::default() };
        let pool = Mempool::new(&MempoolConfig { buffers: 2 * cell.ring + 1024, region, ..Default::default() })?;
        let asked = cell.offloads;
        let config = PortConfig {
            rx_ring: cell.ring,
            tx_ring: cell.ring,
            offloads: Offloads { checksum: asked, hash: asked, vlan: asked, tso: asked },
            vector: cell.vector,
            ..PortConfig::default()
        };
        let rig = Rig::new(cell.driver, cell.pages, config)?;
        let wires = [Wire::new(&rig.cards[0], FRAME)?, Wire::new(&rig.cards[1], FRAME)?];
        Ok(Self {
            rig,
            wires,
            fill: cell.ring - reserve(cell),
            burst: Burst::new(cell.batch),
            cache: pool.cache(),
            offloads: cell.offloads,
        })
    }

    /// Returns the number of packets that a round forwards.
    pub fn packets(&self) -> usize {
        2 * self.fill
    }

    /// Runs the warm-up, then adds `rounds` rounds to the samples.
    pub fn run(&mut self, rounds: usize, samples: &mut Samples) -> Result<(), Error> {
        (0..Self::WARM_UP).try_for_each(|_| self.round().map(drop))?;
        for _ in 0..rounds {
            let cycles = self.round()?;
            samples.0.iter_mut().zip(cycles).for_each(|(stage, cycles)| stage.push(cycles));
        }
        Ok(())
    }

    /// Runs one round of each kind. They alternate, so that a disturbance affects all stages alike. Returns
    /// cycles per packet.
    pub fn round(&mut self) -> Result<[f64; 5], Error> {
        let packets = self.packets();
        self.fill_rings();
        let total = timed(|| match self.offloads {
            false => measured_total::<false>(&mut self.rig.queues, &mut self.burst, packets),
            true => measured_total::<true>(&mut self.rig.queues, &mut self.burst, packets),
        })
        .0;
        self.check()?;
        self.fill_rings();
        let [rx, tx, forward] = self.stages(packets);
        self.check()?;
        let memory = timed(|| measured_memory(&mut self.cache, &mut self.burst, packets)).0;
        Ok([rx, tx, forward, memory, total].map(|cycles| cycles as f64 / packets as f64))
    }

    /// Fills the Rx rings; not timed.
    fn fill_rings(&mut self) {
        self.wires.iter_mut().for_each(|wire| _ = wire.exchange(self.fill));
    }

    /// Empties the Tx rings, and fails if a packet is missing; not timed.
    fn check(&mut self) -> Result<(), Error> {
        let sent: usize = self.wires.iter_mut().map(|wire| wire.exchange(0)).sum();
        if sent == self.packets() {
            return Ok(());
        }
        Err(Error::Fault(format!("the forwarder lost packets: {} came and {sent} went; this is a bug", self.packets())))
    }

    /// Does the work of [`measured_total`] with each call timed.
    fn stages(&mut self, packets: usize) -> [u64; 3] {
        let mut sums = [0; 3];
        let (mut moved, mut ways) = (0, 0);
        while moved < packets && ways <= 2 * packets {
            let [a, b] = &mut self.rig.queues;
            let (rx, tx) = if ways % 2 == 0 { (&mut *a.rx, &mut *b.tx) } else { (&mut *b.rx, &mut *a.tx) };
            let burst = &mut self.burst;
            let (cycles, received) = timed(|| measured_rx(rx, burst));
            sums[0] += cycles;
            sums[2] += timed(|| match self.offloads {
                false => measured_forward::<false>(burst),
                true => measured_forward::<true>(burst),
            })
            .0;
            sums[1] += timed(|| measured_tx(tx, burst)).0;
            burst.clear();
            (moved, ways) = (moved + received, ways + 1);
        }
        sums
    }
}

/// Returns the cycles that `f` takes, without those of the measurement itself, and its result.
#[inline(always)]
fn timed<R>(f: impl FnOnce() -> R) -> (u64, R) {
    let from = tsc::fenced();
    let result = f();
    (tsc::fenced().saturating_sub(from).saturating_sub(tsc::pair_cost()), result)
}

// The functions below are measured. Callgrind finds them by name, so they are not inlined, and `black_box`
// keeps their last call from becoming a jump.

#[inline(never)]
fn measured_total<const OFFLOADS: bool>(queues: &mut [QueuePair; 2], burst: &mut Burst, packets: usize) -> usize {
    let [a, b] = queues;
    let (mut moved, mut rounds) = (0, 0);
    while moved < packets && rounds <= packets {
        moved += pass::<OFFLOADS>(&mut *a.rx, &mut *b.tx, burst) + pass::<OFFLOADS>(&mut *b.rx, &mut *a.tx, burst);
        rounds += 1;
    }
    moved
}

#[inline(never)]
fn measured_rx(rx: &mut dyn RxQueue, burst: &mut Burst) -> usize {
    black_box(rx.rx_burst(burst))
}

#[inline(never)]
fn measured_tx(tx: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    black_box(tx.tx_burst(burst))
}

#[inline(never)]
fn measured_forward<const OFFLOADS: bool>(burst: &mut Burst) {
    touch::<OFFLOADS>(burst);
}

#[inline(never)]
fn measured_memory(cache: &mut Cache, burst: &mut Burst, packets: usize) {
    let mut moved = 0;
    while moved < packets {
        cache.alloc(burst);
        moved += burst.len().max(1);
        burst.clear();
    }
}

/// Header lengths of the frames.
const UDP: Headers = Headers { l2: 14, l3: 20, l4: 8, protocol: L4::Udp };

/// Forwards one burst in one direction.
#[inline]
fn pass<const OFFLOADS: bool>(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    let received = rx.rx_burst(burst);
    if received > 0 {
        touch::<OFFLOADS>(burst);
        tx.tx_burst(burst);
        burst.clear();
    }
    received
}

/// Changes a byte of each packet, as ixy's forwarder does, so that its data is loaded into the cache. With
/// offloads, checks the checksum verdict too and requests a checksum.
#[inline]
fn touch<const OFFLOADS: bool>(burst: &mut Burst) {
    for packet in burst.iter_mut() {
        if let Some([byte]) = packet.array(48) {
            packet.write(48, &[byte.wrapping_add(1)]);
        }
        if OFFLOADS && !packet.flags().any(Flags::L3_BAD) {
            packet.request_checksum(UDP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_of_a_round_is_forwarded_and_every_stage_takes_time() {
        let sizes = [(1, 64, false), (7, 256, true), (256, 64, false), (32, 4096, true)];
        for ((batch, ring, offloads), (_, driver)) in sizes.into_iter().cycle().zip(Driver::ALL) {
            let mut bench =
                Bench::new(&Cell { driver, batch, ring, pages: PageSize::Ordinary, offloads, vector: true }).unwrap();
            for _ in 0..3 {
                // `round` fails if a frame is missing.
                let cycles = bench.round().unwrap();
                assert!(
                    cycles.iter().all(|&cycles| cycles > 0.0),
                    "{driver:?}, batch {batch}, ring {ring}: {cycles:?}"
                );
            }
        }
    }

    #[test]
    fn a_forwarder_that_loses_frames_is_an_error() {
        let cell = Cell {
            driver: Driver::Ixgbe,
            batch: 32,
            ring: 64,
            pages: PageSize::Ordinary,
            offloads: false,
            vector: true,
        };
        let mut bench = Bench::new(&cell).unwrap();
        bench.fill_rings();
        let [a, b] = &mut bench.rig.queues;
        pass::<false>(&mut *a.rx, &mut *b.tx, &mut bench.burst);
        assert!(bench.check().unwrap_err().to_string().contains("64 came and 32 went"));
    }
}
