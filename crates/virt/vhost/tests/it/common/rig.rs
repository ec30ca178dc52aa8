//! A port with its device, and test frames.

use ringpass_memory::{Burst, Mempool, MempoolConfig, Packet};
use ringpass_port::{Port, PortConfig, QueuePair};
pub use ringpass_testing::bytes_of;
use ringpass_testing::packet;
use ringpass_vhost::{Backend, DEFAULT_FEATURES, Vhost};
use ringpass_vhost_user::Device;

use super::BUFFERS;

/// A port whose queues have been taken, and the device behind it.
pub struct Rig {
    pub port: Vhost,
    pub queues: Vec<QueuePair>,
    pub device: Backend,
    pub pool: Mempool,
}

impl Rig {
    /// Returns why the session is to end, if it is.
    pub fn fault(&mut self) -> Option<String> {
        self.device.fault().map(|end| end.to_string())
    }

    pub fn new(config: &PortConfig) -> Self {
        Self::with_pool(config, &MempoolConfig { buffers: BUFFERS, ..Default::default() })
    }

    pub fn with_pool(config: &PortConfig, pool: &MempoolConfig) -> Self {
        let pool = Mempool::new(pool).unwrap();
        let (mut port, device) = Vhost::new("vhost:test", DEFAULT_FEATURES, config, &pool, Default::default()).unwrap();
        let queues = port.take_queues();
        Self { port, queues, device, pool }
    }

    /// Receives everything that the guest has sent.
    pub fn receive(&mut self, queue: usize) -> Vec<Packet> {
        let (mut burst, mut packets) = (Burst::new(32), Vec::new());
        while self.queues[queue].rx.rx_burst(&mut burst) > 0 {
            packets.extend(burst.drain());
        }
        packets
    }

    /// Receives everything that the guest has sent, as bytes.
    pub fn frames(&mut self, queue: usize) -> Vec<Vec<u8>> {
        self.receive(queue).iter().map(bytes_of).collect()
    }

    pub fn packet(&self, frame: &[u8]) -> Packet {
        packet(&self.pool, frame)
    }

    /// Sends frames. Returns how many were not taken.
    pub fn send(&mut self, queue: usize, frames: &[Vec<u8>]) -> usize {
        let mut burst = Burst::new(256);
        frames.iter().for_each(|frame| burst.push(self.packet(frame)));
        self.queues[queue].tx.tx_burst(&mut burst);
        burst.len()
    }
}

/// Builds a frame whose content depends on `number`.
pub fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i * 7 + number * 13) as u8).collect();
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Builds a TCP segment over IPv4 with `payload` bytes of payload and no checksum.
pub fn tcp(payload: usize) -> Vec<u8> {
    let mut frame = vec![0; 54 + payload];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    (frame[22], frame[23], frame[46]) = (64, 6, 0x50);
    frame
}
