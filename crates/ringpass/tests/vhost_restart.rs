//! A back-end that is killed at any moment and started anew: `ringpass echo`, with our front-end before it. No frame comes
//! back twice or out of turn, none is lost but those that the process held, and no buffer is lost.

mod common;

use std::time::{Duration, Instant};

use common::*;
use ringpass_memory::{Burst, Mempool, MempoolConfig, Packet};
use ringpass_port::{Port, PortConfig, Queues, Role, State, VirtioUserConfig};
use ringpass_virtio_user::VirtioUser;

/// Frames that the process holds at most when it is killed: what it has taken from one ring and not put into the other.
const HELD: u32 = 64;
/// Frames under way at most: fewer than there is room for in the ring that they come back by, so that none is dropped.
const UNDER_WAY: u32 = 256;

/// A process that sends back what comes, and who sends to it.
struct Line {
    echo: Option<Program>,
    port: VirtioUser,
    queues: Queues,
    pool: Mempool,
    folder: tempfile::TempDir,
    /// Numbers of the last frames that were sent and have come back.
    sent: u32,
    received: u32,
    lost: u32,
    random: u64,
}

fn echo(folder: &tempfile::TempDir) -> Program {
    let address = format!("vhost:{},features=packed+in_order", folder.path().join("card").display());
    let echo = Program::spawn(&[RINGPASS, "echo", &address, "--json", "--hugepages", "off"]);
    until("the first line", || !echo.line().is_empty());
    echo
}

fn length(number: u32) -> usize {
    60 + number as usize * 37 % 1000
}

impl Line {
    fn new(features: &str) -> Self {
        let folder = folder();
        let echo = Some(echo(&folder));
        let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() }).unwrap();
        let (path, features) = (folder.path().join("card"), Some(features.to_owned()));
        let config = VirtioUserConfig { path, role: Role::Connect, queues: None, features, mac: None };
        let port = VirtioUser::open("card", &config, &PortConfig::default(), &pool);
        let mut port = port.unwrap_or_else(|error| panic!("{error}"));
        let queues = port.take_queues().remove(0);
        Self { echo, port, queues, pool, folder, sent: 0, received: 0, lost: 0, random: 7 }
    }

    fn packet(&self, number: u32) -> Packet {
        let mut packet = self.pool.alloc().expect("a buffer is left");
        let header = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0xee], &[0x88, 0xb5], &number.to_be_bytes()].concat();
        let frame: Vec<u8> = header.into_iter().chain((0..).map(|i| (i + number) as u8)).take(length(number)).collect();
        assert!(packet.copy_from(&frame));
        packet
    }

    /// Sends as fast as may be and receives what comes, for so long.
    fn run(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            let count = (UNDER_WAY - (self.sent - self.received)).min(32);
            let mut burst = Burst::new(32);
            for number in 1..=count {
                burst.push(self.packet(self.sent + number));
            }
            self.sent += self.queues.tx.tx_burst(&mut burst) as u32;
            self.receive();
        }
    }

    fn receive(&mut self) {
        let mut burst = Burst::new(64);
        self.queues.rx.rx_burst(&mut burst);
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

    /// Receives until all that was sent has come back, or been lost.
    fn drain(&mut self) {
        let start = Instant::now();
        while self.received < self.sent {
            assert!(start.elapsed() < Duration::from_secs(20), "{} of {} came back", self.received, self.sent);
            self.receive();
        }
    }

    /// Kills the process and starts it anew.
    fn restart(&mut self) {
        drop(self.echo.take());
        // Frames go on being sent to nobody.
        let moment = self.moment();
        self.run(moment);
        self.echo = Some(echo(&self.folder));
        let port = &mut self.port;
        until("the link", || port.link().up);
    }

    /// Some milliseconds, never the same.
    fn moment(&mut self) -> Duration {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_micros(self.random >> 33 & 0x7fff)
    }
}

#[test]
fn a_back_end_that_is_killed_loses_no_more_than_it_held() {
    for features in ["", "-in_order", "-in_order-indirect_desc", "-packed", "-packed-in_order", "-event_idx-in_order"] {
        let mut line = Line::new(features);
        let notes = line.port.notes();
        let noted = if features.contains("-in_order") { "notes what is in flight" } else { "has not given back" };
        assert!(notes.iter().any(|note| note.contains(noted)), "{notes:?}");
        const KILLS: u32 = 12;
        for _ in 0..KILLS {
            let moment = line.moment();
            line.run(moment);
            line.restart();
        }
        line.run(Duration::from_millis(20));
        // After the last start nothing is lost: so the last frame comes back.
        line.drain();
        eprintln!("'{features}': {} sent, {} lost in {KILLS} kills", line.sent, line.lost);
        assert!(line.received > 1000 && line.lost <= KILLS * HELD, "{} of {} are lost", line.lost, line.sent);
        assert!(matches!(line.port.state(), State::Running), "{:?}", line.port.state());
        assert!(line.port.extended().contains(&("reconnects", KILLS.into())), "{:?}", line.port.extended());
        let Line { port, queues, pool, .. } = line;
        drop((queues, port));
        assert_eq!(pool.outstanding(1), 0, "buffers were lost");
    }
}
