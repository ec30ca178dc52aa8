//! Back-ends that are killed at any moment and started anew: `ringpass fwd` between two of them, and our front-ends at
//! both ends of it. No frame arrives twice or out of turn, what a back-end had taken from neither ring is not lost, and
//! neither are buffers.

mod common;

use std::time::{Duration, Instant};

use common::*;
use ringpass_memory::{Burst, Mempool, MempoolConfig, Packet};
use ringpass_port::{Port, PortConfig, Queues, Role, State, VirtioUserConfig};
use ringpass_virtio_user::VirtioUser;

/// Frames that a forwarder holds at most when it is killed: what it has taken from one ring and not put into the other.
const HELD: u32 = 64;

/// A forwarder between two sockets, and who is at their ends.
struct Line {
    forwarder: Program,
    ports: [VirtioUser; 2],
    queues: [Queues; 2],
    pool: Mempool,
    folder: tempfile::TempDir,
    /// Numbers of the last frames that were sent and received, from the first port to the second.
    sent: u32,
    received: u32,
    lost: u32,
    random: u64,
}

fn forward(folder: &tempfile::TempDir) -> Program {
    let [a, b] =
        ["a", "b"].map(|name| format!("vhost:{},features=packed+in_order", folder.path().join(name).display()));
    let forwarder = Program::spawn(&[RINGPASS, "fwd", &a, &b, "--json", "--hugepages", "off"]);
    until("the forwarder's first line", || !forwarder.line().is_empty());
    forwarder
}

fn length(number: u32) -> usize {
    60 + number as usize * 37 % 1000
}

impl Line {
    fn new(features: &str) -> Self {
        let folder = folder();
        let forwarder = forward(&folder);
        let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() }).unwrap();
        let mut ports = ["a", "b"].map(|name| {
            let (path, features) = (folder.path().join(name), Some(features.to_owned()));
            let config = VirtioUserConfig { path, role: Role::Connect, queues: None, features, mac: None };
            VirtioUser::open(name, &config, &PortConfig::default(), &pool).unwrap_or_else(|error| panic!("{error}"))
        });
        let queues = ports.each_mut().map(|port| port.take_queues().remove(0));
        let (sent, received, lost, random) = (0, 0, 0, 7);
        Self { forwarder, ports, queues, pool, folder, sent, received, lost, random }
    }

    fn packet(&self, number: u32) -> Packet {
        let mut packet = self.pool.alloc().expect("a buffer is left");
        let header = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0xee], &[0x88, 0xb5], &number.to_be_bytes()].concat();
        let frame: Vec<u8> = header.into_iter().chain((0..).map(|i| (i + number) as u8)).take(length(number)).collect();
        assert!(packet.copy_from(&frame));
        packet
    }

    /// Sends as fast as there is room and receives what comes, for so long.
    fn run(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            let mut burst = Burst::new(32);
            for number in 1..=32 {
                burst.push(self.packet(self.sent + number));
            }
            self.sent += self.queues[0].tx.tx_burst(&mut burst) as u32;
            self.receive();
        }
    }

    fn receive(&mut self) {
        let mut burst = Burst::new(64);
        self.queues[1].rx.rx_burst(&mut burst);
        for packet in burst.drain() {
            let number = u32::from_be_bytes(packet[14..18].try_into().unwrap());
            assert!(number > self.received, "{number} arrives after {}", self.received);
            assert!(
                packet.len() == length(number) && packet[18] == (0u32.wrapping_add(number)) as u8,
                "frame {number}"
            );
            self.lost += number - self.received - 1;
            self.received = number;
        }
    }

    /// Receives until the last frame has arrived.
    fn drain(&mut self) {
        // The last may be lost, as any that the forwarder held: others follow it.
        let (start, mut last) = (Instant::now(), Instant::now());
        while last.elapsed() < Duration::from_millis(200) {
            assert!(start.elapsed() < Duration::from_secs(20), "{} of {} arrived", self.received, self.sent);
            let before = self.received;
            self.receive();
            if self.received != before {
                last = Instant::now();
            }
        }
    }

    /// Kills the forwarder and starts it anew.
    fn restart(&mut self) {
        self.forwarder.signal("KILL");
        // Frames go on being sent to nobody, until the ring is full.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.run(Duration::from_micros(self.random >> 33 & 0x3fff));
        self.forwarder = forward(&self.folder);
        let ports = &mut self.ports;
        until("the links", || ports.iter_mut().all(|port| port.link().up));
    }
}

#[test]
fn forwarders_that_are_killed_lose_no_more_than_they_held() {
    for features in ["", "-in_order", "-in_order-indirect_desc", "-packed", "-packed-in_order", "-event_idx-in_order"] {
        let mut line = Line::new(features);
        let inflight = line.ports[0].notes().iter().any(|note| note.contains("none of it is lost"));
        assert!(inflight, "{:?}", line.ports[0].notes());
        const KILLS: u32 = 12;
        for _ in 0..KILLS {
            let moment = Duration::from_micros(10_000 + (line.random >> 20 & 0x7fff));
            line.run(moment);
            line.restart();
        }
        line.run(Duration::from_millis(20));
        line.drain();
        eprintln!("'{features}': {} sent, {} lost in {KILLS} kills", line.sent, line.lost + line.sent - line.received);
        assert!(line.received > 1000);
        assert!(line.lost <= KILLS * HELD, "{} frames are lost", line.lost);
        assert_eq!(line.received, line.sent, "after the last start all arrive");
        for port in &mut line.ports {
            assert!(matches!(port.state(), State::Running), "{:?}", port.state());
            assert!(port.extended().contains(&("reconnects", KILLS.into())), "{:?}", port.extended());
        }
        let Line { ports, queues, pool, .. } = line;
        drop((queues, ports));
        assert_eq!(pool.outstanding(1), 0, "buffers were lost");
    }
}
