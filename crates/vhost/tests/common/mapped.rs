//! A card whose queue is mapped to the port's: the model with our driver.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringpass_ixgbe::Ixgbe;
use ringpass_memory::{Burst, Flags, Mempool, Packet};
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_port::{Port, PortConfig, Queues, RxQueue, TxQueue, Wake, Wakeable};
use ringpass_vhost_user::Device;
use ringpass_virtio::features::IN_ORDER;

use super::{FEATURES, Rig, frame};

/// Those that a mapped queue has.
pub fn features() -> impl Iterator<Item = u64> {
    FEATURES.into_iter().filter(|features| features & IN_ORDER == 0)
}

/// Frames on their way to the card.
#[derive(Clone)]
pub struct Wire(Arc<Mutex<Vec<Vec<u8>>>>, Mempool);

impl Wakeable for Wire {
    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(Wake::Turns);
    }
}

impl RxQueue for Wire {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let mut frames = self.0.lock().unwrap();
        let count = frames.len().min(burst.room());
        for frame in frames.drain(..count) {
            let mut packet = self.1.alloc().expect("a buffer is left");
            assert!(packet.copy_from(&frame));
            burst.push(packet);
        }
        burst.len() - before
    }
}

impl TxQueue for Wire {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let sent = burst.len();
        burst.clear();
        sent
    }
}

/// A card whose queue is mapped to the port's.
pub struct Mapped {
    pub rig: Rig,
    pub card: Arc<Card>,
    pub driver: Ixgbe,
    rx: Queues,
    wire: Wire,
}

impl Mapped {
    pub fn new() -> Self {
        let config = PortConfig::default();
        let rig = Rig::new(&config);
        let card = Card::new(&CardConfig::default());
        let mut driver = Ixgbe::open(card.clone(), "model", &config, &rig.pool).unwrap();
        let mut rx = driver.take_queues().remove(0);
        rx.rx.borrow_from(&rig.port.lending(0).unwrap()).unwrap();
        let wire = Wire(Arc::default(), rig.pool.clone());
        let mut mapped = Self { rig, card, driver, rx, wire };
        mapped.look();
        mapped
    }

    pub fn look(&mut self) -> Vec<Packet> {
        let mut burst = Burst::new(256);
        self.rx.rx.rx_burst(&mut burst);
        burst.drain().collect()
    }

    /// What the card has received of the frames on its wire.
    pub fn arrive(&mut self, frames: &[Vec<u8>]) -> Vec<Packet> {
        self.look();
        self.arrive_unseen(frames);
        self.look()
    }

    /// Lets frames arrive at the card while nobody looks at its queue.
    pub fn arrive_unseen(&mut self, frames: &[Vec<u8>]) {
        self.wire.0.lock().unwrap().extend_from_slice(frames);
        let mut ends = Queues { rx: Box::new(self.wire.clone()), tx: Box::new(self.wire.clone()) };
        while self.card.step(&mut ends) > 0 {}
    }

    /// Sends them to the guest; how many were not taken.
    pub fn send(&mut self, packets: Vec<Packet>) -> usize {
        let mut burst = Burst::new(256);
        packets.into_iter().for_each(|packet| burst.push(packet));
        self.rig.queues[0].tx.tx_burst(&mut burst);
        burst.len()
    }

    /// Has the session do something that waits until the card has let go.
    pub fn while_polled<T: Send>(&mut self, work: impl FnOnce(&mut dyn Device) -> T + Send) -> T {
        let (device, rx) = (&mut self.rig.device, &mut self.rx.rx);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| work(device));
            let mut burst = Burst::new(32);
            while !working.is_finished() {
                rx.rx_burst(&mut burst);
                burst.clear();
                // The other one may want this processor.
                std::thread::sleep(Duration::from_micros(1));
            }
            working.join().unwrap()
        })
    }

    pub fn counter(&mut self, name: &str) -> u64 {
        self.rig.port.extended().into_iter().find(|(found, _)| *found == name).map_or(0, |(_, value)| value)
    }
}

pub fn frames(count: usize, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| frame(number, len + number)).collect()
}

pub fn lent(packets: &[Packet]) -> usize {
    packets.iter().filter(|packet| packet.flags().any(Flags::LENT)).count()
}

pub fn bare(received: Vec<([u8; 12], Vec<u8>)>, header: usize) -> Vec<Vec<u8>> {
    let known = if header == 12 { [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0] } else { [0; 12] };
    assert!(received.iter().all(|(head, _)| *head == known), "plain headers");
    received.into_iter().map(|(_, frame)| frame).collect()
}
