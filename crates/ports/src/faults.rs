//! A decorator that spoils what passes a port: drops, doubles, reorders and corrupts packets by chance, the same for the
//! same seed.

use std::sync::Arc;

use ringpass_memory::{Burst, Lending, Mempool, Packet};
use ringpass_port::{
    Error, FaultsConfig, Link, MacAddress, Port, Queues, Rule, RxQueue, State, Stats, Status, TxQueue, Wake, Wakeable,
};

use crate::buffers::Buffers;

/// `faults,…:PORT`.
pub struct Faults {
    name: String,
    inner: Box<dyn Port>,
    config: FaultsConfig,
    pool: Mempool,
    status: Arc<Status>,
    notes: Vec<String>,
}

impl Faults {
    /// Wraps a port whose queues were not taken yet.
    pub fn wrap(inner: Box<dyn Port>, config: FaultsConfig, pool: &Mempool) -> Self {
        let name = format!("faults:{}", inner.name());
        let FaultsConfig { drop, duplicate, reorder, corrupt, seed } = config;
        let notes =
            vec![format!("drop={drop}, duplicate={duplicate}, reorder={reorder}, corrupt={corrupt}, seed={seed}")];
        Self { name, inner, config, pool: pool.clone(), status: Arc::new(Status::new(0)), notes }
    }
}

/// Random numbers (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Never with probability 0, always with 1.
    fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

/// The faults of one direction of one queue.
struct Spoiler {
    config: FaultsConfig,
    random: SplitMix,
    copies: Buffers,
    /// Held back until another packet has passed.
    held: Option<Packet>,
    /// Fresh packets, to be spoiled.
    fresh: Burst,
    /// Spoiled packets, on their way out.
    ready: Burst,
}

/// Packets that are spoiled at a time.
const FRESH: usize = 64;

impl Spoiler {
    fn new(config: FaultsConfig, stream: u64, pool: &Mempool) -> Self {
        let random = SplitMix(SplitMix(config.seed).next() ^ SplitMix(!stream).next());
        // One fresh packet makes at most two ready ones, with the one held back on top.
        let (fresh, ready) = (Burst::new(FRESH), Burst::new(2 * FRESH + 1));
        Self { config, random, copies: Buffers::new(pool), held: None, fresh, ready }
    }

    /// Spoils the fresh packets into ready ones; there must be no ready ones yet. Returns how many were dropped.
    fn spoil(&mut self) -> usize {
        let mut drops = 0;
        let Self { config, random, copies, held, fresh, ready } = self;
        for mut packet in fresh.drain() {
            // As many random numbers for each packet, so that one's fate does not depend on another's.
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

    /// Nothing follows: what was held back is ready.
    fn release(&mut self) {
        if let Some(packet) = self.held.take() {
            self.ready.push(packet);
        }
    }
}

struct Rx {
    inner: Box<dyn RxQueue>,
    spoiler: Spoiler,
    status: Arc<Status>,
    queue: usize,
}

#[deny(clippy::missing_trait_methods)]
impl Wakeable for Rx {
    fn arm(&mut self) {
        self.inner.arm();
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        self.inner.wakes(each);
    }
}

#[deny(clippy::missing_trait_methods)]
impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let (mut packets, mut bytes) = (0, 0);
        while burst.room() > 0 {
            if self.spoiler.ready.is_empty() {
                if self.inner.rx_burst(&mut self.spoiler.fresh) == 0 {
                    self.spoiler.release();
                }
                let drops = self.spoiler.spoil();
                self.status.rx(self.queue).count(0, 0, drops);
                if self.spoiler.ready.is_empty() {
                    break;
                }
            }
            for packet in self.spoiler.ready.drain().take(burst.room()) {
                (packets, bytes) = (packets + 1, bytes + packet.total_len());
                burst.push(packet);
            }
        }
        if packets > 0 {
            self.status.rx(self.queue).count(packets, bytes, 0);
        }
        packets
    }

    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        self.inner.borrow_from(lending)
    }

    /// None: spoiled packets are others than those of the inner port's last burst.
    fn recorded(&self) -> &[u64] {
        &[]
    }

    fn has_link(&self) -> bool {
        self.inner.has_link()
    }
}

struct Tx {
    inner: Box<dyn TxQueue>,
    spoiler: Spoiler,
    status: Arc<Status>,
    queue: usize,
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut taken = 0;
        let idle = burst.is_empty();
        loop {
            self.inner.tx_burst(&mut self.spoiler.ready);
            if idle && self.spoiler.ready.is_empty() {
                self.spoiler.release();
                self.inner.tx_burst(&mut self.spoiler.ready);
            }
            if burst.is_empty() || !self.spoiler.ready.is_empty() {
                return taken;
            }
            for packet in burst.drain().take(FRESH) {
                self.spoiler.fresh.push(packet);
                taken += 1;
            }
            let drops = self.spoiler.spoil();
            self.status.tx(self.queue).count(0, 0, drops);
        }
    }
}

impl Drop for Tx {
    /// What is held back was taken to be sent.
    fn drop(&mut self) {
        self.tx_burst(&mut Burst::new(1));
        self.status.tx(self.queue).count(0, 0, self.spoiler.ready.len());
    }
}

#[deny(clippy::missing_trait_methods)]
impl Port for Faults {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.inner.mac()
    }

    fn link(&mut self) -> Link {
        self.inner.link()
    }

    /// Received is what came out of the faults, sent is what the port behind sent.
    fn stats(&mut self) -> Stats {
        let (inner, own) = (self.inner.stats(), self.status.stats());
        Stats {
            rx_packets: own.rx_packets,
            rx_bytes: own.rx_bytes,
            rx_drops: inner.rx_drops + own.rx_drops,
            tx_drops: inner.tx_drops + own.tx_drops,
            ..inner
        }
    }

    fn state(&mut self) -> State {
        self.inner.state()
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        let queues = self.inner.take_queues();
        if queues.is_empty() {
            return queues;
        }
        let status = Arc::new(Status::new(queues.len()));
        let wrap = |(queue, Queues { rx, tx })| {
            let spoiler = |stream| Spoiler::new(self.config, stream, &self.pool);
            let rx = Rx { inner: rx, spoiler: spoiler(2 * queue as u64), status: status.clone(), queue };
            let tx = Tx { inner: tx, spoiler: spoiler(2 * queue as u64 + 1), status: status.clone(), queue };
            Queues { rx: Box::new(rx), tx: Box::new(tx) }
        };
        let queues = queues.into_iter().enumerate().map(wrap).collect();
        self.status = status;
        queues
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        self.inner.set_promiscuous(on)
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        self.inner.extended()
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.inner.finish()
    }

    fn steer(&mut self, rule: &Rule, queue: usize) -> Result<(), Error> {
        self.inner.steer(rule, queue)
    }

    fn lending(&self, pair: usize) -> Option<Arc<Lending>> {
        self.inner.lending(pair)
    }

    fn notes(&self) -> Vec<String> {
        self.inner.notes().into_iter().chain(self.notes.iter().cloned()).collect()
    }
}
