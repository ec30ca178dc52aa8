//! Two front-ends that keep to the rules and send each other numbered frames, which must all arrive in order.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::{Burst, Mempool, MempoolConfig, Packet};
use ringpass_port::{Port, PortConfig, QueuePair, Role, State, VirtioUserConfig};
use ringpass_virtio_user::VirtioUser;

use crate::common::wait_until;

/// Most frames in flight in each direction: fewer than the receiver has buffers.
const UNDER_WAY: u32 = 128;
/// One of this many frames is a broadcast.
const BROADCAST: u32 = 16;

pub struct Honest {
    pub port: VirtioUser,
    queues: QueuePair,
    pool: Mempool,
    mac: [u8; 6],
    /// Numbers of the last frame that was sent and of the last one that came from the other.
    pub sent: u32,
    pub received: u32,
}

impl Honest {
    pub fn new(socket: &Path, number: u8) -> Self {
        let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() }).expect("a pool");
        let (path, role) = (socket.to_owned(), Role::Connect);
        let config = VirtioUserConfig::new(path, role);
        let port = VirtioUser::open("honest", &config, &PortConfig::default(), &pool);
        let mut port = port.unwrap_or_else(|error| panic!("{error}"));
        let queues = port.take_queues().remove(0);
        wait_until("the link", || port.link().up);
        Self { port, queues, pool, mac: [2, 0, 0, 0, 7, number], sent: 0, received: 0 }
    }

    fn packet(&self, to: [u8; 6], number: u32) -> Packet {
        let to = if number.is_multiple_of(BROADCAST) { [0xff; 6] } else { to };
        let head = [&to[..], &self.mac, &[0x88, 0xb5], &number.to_be_bytes()].concat();
        let len = 60 + number as usize * 37 % 1400;
        let frame: Vec<u8> = head.into_iter().chain((0..).map(|i| (i + number) as u8)).take(len).collect();
        let mut packet = self.pool.alloc().expect("a buffer is left");
        assert!(packet.copy_from(&frame));
        packet
    }

    /// Returns whether a frame reaches the other. The frame has no number, because it is dropped as long as a
    /// port is not up in the switch.
    fn reaches(&mut self, other: &mut Self) -> bool {
        let mut burst = Burst::new(32);
        burst.push(self.packet(other.mac, 0));
        self.queues.tx.tx_burst(&mut burst);
        other.queues.rx.rx_burst(&mut burst);
        burst.iter().any(|packet| packet.array(6) == Some(self.mac))
    }

    /// Sends the next frames, as many as may be in flight.
    fn send(&mut self, other: &Self) {
        let mut burst = Burst::new(32);
        for number in 1..=(UNDER_WAY - (self.sent - other.received)).min(32) {
            burst.push(self.packet(other.mac, self.sent + number));
        }
        self.sent += self.queues.tx.tx_burst(&mut burst) as u32;
    }

    /// Receives; no frame of the other may be missing. Returns how many of them came.
    fn receive(&mut self, other: &Self) -> u64 {
        let mut burst = Burst::new(64);
        self.queues.rx.rx_burst(&mut burst);
        let before = self.received;
        // Other frames are the attacker's.
        for packet in burst.drain().filter(|packet| packet.array(6) == Some(other.mac)) {
            let number = u32::from_be_bytes(packet.array(14).expect("four bytes"));
            if number == 0 {
                continue;
            }
            assert_eq!(number, self.received + 1, "a frame was lost, or came twice");
            assert!(
                packet.to_vec()[18..].iter().zip(0..).all(|(&byte, i)| byte == (i + number) as u8),
                "frame {number}"
            );
            self.received = number;
        }
        (self.received - before).into()
    }
}

/// Waits until the switch has noticed both.
pub fn meet([a, b]: &mut [Honest; 2]) {
    wait_until("the first frames", || a.reaches(b) && b.reaches(a));
}

/// Sends and receives on both sides until `stop` is set, then receives until all frames have arrived.
pub fn exchange([a, b]: &mut [Honest; 2], stop: &AtomicBool, arrived: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        a.send(b);
        b.send(a);
        let moved = a.receive(b) + b.receive(a);
        arrived.fetch_add(moved, Ordering::Relaxed);
        if moved == 0 {
            std::thread::yield_now();
        }
    }
    let start = Instant::now();
    while (a.received, b.received) != (b.sent, a.sent) {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{} of {}, {} of {}",
            a.received,
            b.sent,
            b.received,
            a.sent
        );
        a.receive(b);
        b.receive(a);
    }
    for one in [a, b] {
        assert!(matches!(one.port.state(), State::Running), "{:?}", one.port.state());
        assert!(one.port.extended().contains(&("reconnects", 0)), "{:?}", one.port.extended());
    }
}
