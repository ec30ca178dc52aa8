//! A NIC whose Rx queue is mapped to the port: the model with our driver.

use std::sync::Arc;
use std::time::Duration;

use ringpass_intel::ixgbe::Ixgbe;
use ringpass_memory::{Burst, Flags, Packet};
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_port::{Port, PortConfig, QueuePair};
use ringpass_testing::Wire;
use ringpass_vhost_user::Device;
use ringpass_virtio::features::IN_ORDER;

use super::{FEATURES, Rig, frame};

/// Returns the feature sets that a mapped queue supports.
pub fn features() -> impl Iterator<Item = u64> {
    FEATURES.into_iter().filter(|features| features & IN_ORDER == 0)
}

/// A NIC whose Rx queue is mapped to the port.
pub struct Mapped {
    pub rig: Rig,
    pub card: Arc<Card>,
    pub driver: Ixgbe,
    rx: QueuePair,
    wire: Wire,
}

impl Mapped {
    pub fn new() -> Self {
        let config = PortConfig::default();
        let mut rig = Rig::new(&config);
        let card = Card::new(&CardConfig::default());
        let mut driver = Ixgbe::open(card.clone(), "model", &config, &rig.pool).unwrap();
        let mut rx = driver.take_queues().remove(0);
        rx.rx.borrow_from(&rig.port.lending(0).unwrap()).unwrap();
        let wire = Wire::new(256, 2048);
        let mut mapped = Self { rig, card, driver, rx, wire };
        mapped.look();
        mapped
    }

    pub fn look(&mut self) -> Vec<Packet> {
        let mut burst = Burst::new(256);
        self.rx.rx.rx_burst(&mut burst);
        burst.drain().collect()
    }

    /// Lets frames arrive at the NIC and returns what its queue received.
    pub fn arrive(&mut self, frames: &[Vec<u8>]) -> Vec<Packet> {
        self.look();
        self.arrive_unseen(frames);
        self.look()
    }

    /// Lets frames arrive at the NIC while nobody polls its queue.
    pub fn arrive_unseen(&mut self, frames: &[Vec<u8>]) {
        self.wire.frames().to_card.extend(frames.iter().cloned());
        let mut ends = self.wire.ends();
        while self.card.step(&mut ends) > 0 {}
    }

    /// Sends packets to the guest. Returns how many were not taken.
    pub fn send(&mut self, packets: Vec<Packet>) -> usize {
        let mut burst = Burst::new(256);
        packets.into_iter().for_each(|packet| burst.push(packet));
        self.rig.queues[0].tx.tx_burst(&mut burst);
        burst.len()
    }

    /// Runs `work` on another thread, where it may wait until the NIC has returned its buffers, and polls the
    /// NIC meanwhile.
    pub fn while_polled<T: Send>(&mut self, work: impl FnOnce(&mut dyn Device) -> T + Send) -> T {
        let (device, rx) = (&mut self.rig.device, &mut self.rx.rx);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| work(device));
            let mut burst = Burst::new(32);
            while !working.is_finished() {
                rx.rx_burst(&mut burst);
                burst.clear();
                // Leaves the processor to the other thread, which may need it.
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
