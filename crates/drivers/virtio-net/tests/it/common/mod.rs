//! The driver on a model of the card, with a wire that the test controls.

#![allow(dead_code)] // Each test file uses a part of this module.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringpass_memory::{Burst, Mempool, MempoolConfig, Packet};
use ringpass_models::virtio::{VirtioCard, VirtioConfig};
use ringpass_port::{Error, Port, PortConfig, QueuePair};
use ringpass_testing::{Stop, Wire, scattered};
use ringpass_virtio_net::VirtioNet;

/// Buffers of a rig's pool.
pub const BUFFERS: usize = 1024;

/// Runs `work`, which waits for the card, while another thread steps the card.
pub fn stepping<R>(card: &VirtioCard, ends: &mut QueuePair, work: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                card.step(ends);
                std::thread::yield_now();
            }
        });
        work()
    })
}

/// A port on a card.
pub struct Rig {
    pub queues: Vec<QueuePair>,
    pub port: VirtioNet,
    pub card: Arc<VirtioCard>,
    pub ends: QueuePair,
    pub wire: Wire,
    pub pool: Mempool,
}

impl Rig {
    pub fn new(config: &PortConfig, card: &VirtioConfig) -> Self {
        Self::open(config, card).unwrap_or_else(|error| panic!("{error}: {config:?}, {card:?}"))
    }

    pub fn open(config: &PortConfig, card: &VirtioConfig) -> Result<Self, Error> {
        let pool = Mempool::new(&MempoolConfig { buffers: BUFFERS, ..Default::default() }).unwrap();
        let wire = Wire::new(64, 30_000);
        let mut ends = wire.ends();
        let card = VirtioCard::new(card);
        let opened = stepping(&card, &mut ends, || VirtioNet::open(card.clone(), "model", config, &pool));
        let mut port = opened.inspect_err(|_| assert_eq!(card.fault(), None))?;
        let queues = port.take_queues();
        assert_eq!(queues.len(), config.queues);
        Ok(Self { queues, port, card, ends, wire, pool })
    }

    /// Steps the card until it has nothing to do.
    pub fn step(&mut self) {
        for _ in 0..10_000 {
            if self.card.step(&mut self.ends) == 0 {
                return;
            }
        }
        panic!("the card never rests");
    }

    /// Runs `work`, which waits for the card, on the port.
    pub fn ask<R>(&mut self, work: impl FnOnce(&mut VirtioNet) -> R) -> R {
        let Self { card, ends, port, .. } = self;
        stepping(card, ends, || work(port))
    }

    /// Puts frames on the wire and returns what arrives at a queue.
    pub fn receive(&mut self, queue: usize, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Packet> {
        self.wire.frames().to_card.extend(frames);
        self.step();
        self.arrived(queue)
    }

    pub fn arrived(&mut self, queue: usize) -> Vec<Packet> {
        let mut burst = Burst::new(256);
        self.queues[queue].rx.rx_burst(&mut burst);
        burst.drain().collect()
    }

    /// Sends packets and returns the frames that leave the card.
    pub fn send(&mut self, packets: impl IntoIterator<Item = Packet>) -> Vec<Vec<u8>> {
        let mut burst = Burst::new(256);
        packets.into_iter().for_each(|packet| burst.push(packet));
        let count = burst.len();
        assert_eq!(self.queues[0].tx.tx_burst(&mut burst), count);
        self.step();
        self.sent()
    }

    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        self.wire.frames().from_card.drain(..).collect()
    }

    /// Returns a packet with this frame, in buffers of up to `piece` bytes each.
    pub fn packet(&self, frame: &[u8], piece: usize) -> Packet {
        scattered(&self.pool, frame, piece)
    }

    /// Asserts that the driver has kept to the protocol.
    pub fn judge(&self) {
        let counters = self.card.counters();
        assert_eq!(self.card.fault(), None, "{counters:?}");
        let wrong = [
            counters.wrong_notifications,
            counters.wrong_accesses,
            counters.dma_faults,
            counters.tx_odd_headers,
            counters.tx_malformed,
            counters.faults,
        ];
        assert_eq!(wrong, [0; 6], "{counters:?}");
    }
}

/// Returns a broadcast frame of `len` bytes with recognisable content.
pub fn frame(len: usize) -> Vec<u8> {
    let header = [&[0xff; 6][..], &[0x02, 0, 0, 0, 0, 0xee], &[0x88, 0xb5]].concat();
    header.into_iter().chain((0..).map(|i: u32| (i * 7 + i / 251 + len as u32) as u8)).take(len).collect()
}
