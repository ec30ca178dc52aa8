//! A decorator that injects faults into a port's traffic: it drops, duplicates, reorders and corrupts packets
//! at random. The same seed gives the same faults.

use std::sync::Arc;

use ringpass_memory::{Burst, Mempool, Packet};
use ringpass_port::{FaultsConfig, Port, PortDecorator, PortStatus, QueuePair, RxDecorator, RxQueue, Stats, TxQueue};

use crate::buffers::SparePackets;

/// The port `faults,…:PORT`.
pub struct Faults {
    name: String,
    inner: Box<dyn Port>,
    config: FaultsConfig,
    pool: Mempool,
    status: Arc<PortStatus>,
    notes: Vec<String>,
}

impl Faults {
    /// Wraps a port whose queues have not been taken yet.
    pub fn wrap(inner: Box<dyn Port>, config: FaultsConfig, pool: &Mempool) -> Self {
        let name = format!("faults:{}", inner.name());
        let FaultsConfig { drop, duplicate, reorder, corrupt, seed } = config;
        let notes =
            vec![format!("drop={drop}, duplicate={duplicate}, reorder={reorder}, corrupt={corrupt}, seed={seed}")];
        Self { name, inner, config, pool: pool.clone(), status: Arc::new(PortStatus::new(0)), notes }
    }
}

/// A random number generator (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, OOPSLA
/// 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns `true` with the given probability: never for 0, always for 1.
    fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

/// The faults of one direction of one queue.
struct FaultInjector {
    config: FaultsConfig,
    random: SplitMix,
    copies: SparePackets,
    /// A packet held back until another one has passed.
    held: Option<Packet>,
    /// Packets into which faults are to be injected.
    fresh: Burst,
    /// Packets ready to be passed on.
    ready: Burst,
}

/// Number of packets processed at a time.
const INJECT_BATCH: usize = 64;

impl FaultInjector {
    fn new(config: FaultsConfig, stream: u64, pool: &Mempool) -> Self {
        let random = SplitMix(SplitMix(config.seed).next() ^ SplitMix(!stream).next());
        // A packet makes at most two ready ones (with its duplicate); the one held back may follow.
        let (fresh, ready) = (Burst::new(INJECT_BATCH), Burst::new(2 * INJECT_BATCH + 1));
        Self { config, random, copies: SparePackets::new(pool), held: None, fresh, ready }
    }

    /// Injects faults into the fresh packets, and moves them to `ready`, which must be empty. Returns how many
    /// were dropped.
    fn inject(&mut self) -> usize {
        let mut drops = 0;
        let Self { config, random, copies, held, fresh, ready } = self;
        for mut packet in fresh.drain() {
            // Each packet takes the same number of random numbers, so that its faults do not depend on those of
            // other packets.
            let dropped = random.chance(config.drop);
            let doubled = random.chance(config.duplicate);
            let reordered = random.chance(config.reorder);
            let corrupted = random.chance(config.corrupt);
            let bit = random.next();
            if dropped {
                drops += 1;
                continue;
            }
            if corrupted && !packet.is_empty() {
                let bit = bit % (8 * packet.len() as u64);
                let at = bit as usize / 8;
                let [byte] = packet.array(at).expect("a byte of the frame");
                packet.write(at, &[byte ^ 1 << (bit % 8)]);
            }
            if reordered && held.is_none() {
                *held = Some(packet);
                continue;
            }
            let copy = if doubled { copies.copy_of(&packet) } else { None };
            ready.push(packet);
            copy.into_iter().chain(held.take()).for_each(|packet| ready.push(packet));
        }
        drops
    }

    /// Makes the packet that is held back ready, because no other packet follows.
    fn release(&mut self) {
        if let Some(packet) = self.held.take() {
            self.ready.push(packet);
        }
    }
}

struct Rx {
    inner: Box<dyn RxQueue>,
    injector: FaultInjector,
    status: Arc<PortStatus>,
    queue: usize,
}

impl RxDecorator for Rx {
    fn inner(&self) -> &dyn RxQueue {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn RxQueue {
        &mut *self.inner
    }

    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let (mut packets, mut bytes) = (0, 0);
        while burst.room() > 0 {
            if self.injector.ready.is_empty() {
                if self.inner.rx_burst(&mut self.injector.fresh) == 0 {
                    self.injector.release();
                }
                let drops = self.injector.inject();
                self.status.rx(self.queue).count(0, 0, drops);
                if self.injector.ready.is_empty() {
                    break;
                }
            }
            for packet in self.injector.ready.drain().take(burst.room()) {
                (packets, bytes) = (packets + 1, bytes + packet.total_len());
                burst.push(packet);
            }
        }
        if packets > 0 {
            self.status.rx(self.queue).count(packets, bytes, 0);
        }
        packets
    }

    /// Returns no timestamps: packets with faults do not correspond to those of the inner port's last burst.
    fn rx_timestamps(&self) -> &[u64] {
        &[]
    }
}

struct Tx {
    inner: Box<dyn TxQueue>,
    injector: FaultInjector,
    status: Arc<PortStatus>,
    queue: usize,
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut taken = 0;
        let idle = burst.is_empty();
        loop {
            self.inner.tx_burst(&mut self.injector.ready);
            if idle && self.injector.ready.is_empty() {
                self.injector.release();
                self.inner.tx_burst(&mut self.injector.ready);
            }
            if burst.is_empty() || !self.injector.ready.is_empty() {
                return taken;
            }
            for packet in burst.drain().take(INJECT_BATCH) {
                self.injector.fresh.push(packet);
                taken += 1;
            }
            let drops = self.injector.inject();
            self.status.tx(self.queue).count(0, 0, drops);
        }
    }
}

impl Drop for Tx {
    /// Sends the packet that is held back, as it was accepted for sending.
    fn drop(&mut self) {
        self.tx_burst(&mut Burst::new(1));
        self.status.tx(self.queue).count(0, 0, self.injector.ready.len());
    }
}

/// Returns the counters of a port, or of a queue pair, with those of the faults.
fn with_faults(inner: Stats, own: Stats) -> Stats {
    Stats {
        rx_packets: own.rx_packets,
        rx_bytes: own.rx_bytes,
        rx_drops: inner.rx_drops + own.rx_drops,
        tx_drops: inner.tx_drops + own.tx_drops,
        ..inner
    }
}

impl PortDecorator for Faults {
    fn inner(&self) -> &dyn Port {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Port {
        &mut *self.inner
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// Returns the counters. Received packets are counted after the faults, sent packets are those that the
    /// inner port has sent.
    fn stats(&mut self) -> Stats {
        with_faults(self.inner.stats(), self.status.stats())
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        let own = self.status.queue_stats();
        self.inner.queue_stats().into_iter().zip(own).map(|(inner, own)| with_faults(inner, own)).collect()
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        let queues = self.inner.take_queues();
        if queues.is_empty() {
            return queues;
        }
        let status = Arc::new(PortStatus::new(queues.len()));
        let wrap = |(queue, QueuePair { rx, tx })| {
            let injector = |stream| FaultInjector::new(self.config, stream, &self.pool);
            let rx = Rx { inner: rx, injector: injector(2 * queue as u64), status: status.clone(), queue };
            let tx = Tx { inner: tx, injector: injector(2 * queue as u64 + 1), status: status.clone(), queue };
            QueuePair { rx: Box::new(rx), tx: Box::new(tx) }
        };
        let queues = queues.into_iter().enumerate().map(wrap).collect();
        self.status = status;
        queues
    }

    fn notes(&self) -> Vec<String> {
        self.inner.notes().into_iter().chain(self.notes.iter().cloned()).collect()
    }
}
