//! A back-end that is killed at any moment and restarted, `ringpass echo`, with our front-end in this process:
//! every frame and every buffer is accounted for.

use std::time::{Duration, Instant};

use ringpass_memory::{Burst, Mempool, MempoolConfig, Packet};
use ringpass_port::{Port, PortConfig, QueuePair, Role, State, VirtioUserConfig};
use ringpass_virtio_user::VirtioUser;

use super::{Program, RINGPASS, Random, folder, listened_to, wait_until};

/// Most frames that the process can hold when it is killed: taken from one ring and not yet put into the other.
const HELD: u32 = 64;
/// Most frames in flight: fewer than the return ring has room for, so that none is dropped.
const UNDER_WAY: u32 = 256;

/// A process that sends back what it receives, and the sender in this process.
pub struct Line {
    echo: Option<Program>,
    pub port: VirtioUser,
    queues: QueuePair,
    pool: Mempool,
    folder: tempfile::TempDir,
    /// Numbers of the last frame that was sent and of the last one that came back.
    pub sent: u32,
    pub received: u32,
    pub lost: u32,
    kills: u64,
    random: Random,
}

fn echo(folder: &tempfile::TempDir) -> Program {
    let address = format!("vhost:{},features=packed+in_order", folder.path().join("card").display());
    Program::spawn(&[RINGPASS, "echo", &address, "--json", "--hugepages", "off"])
}

fn length(number: u32) -> usize {
    60 + number as usize * 37 % 1000
}

impl Line {
    /// Connects with a change to the default features.
    pub fn new(features: &str) -> Self {
        let folder = folder();
        let echo = Some(echo(&folder));
        wait_until("the socket", || listened_to(&folder.path().join("card")));
        let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() }).unwrap();
        let (path, features) = (folder.path().join("card"), Some(features.to_owned()));
        let config = VirtioUserConfig { features, ..VirtioUserConfig::new(path, Role::Connect) };
        let port = VirtioUser::open("card", &config, &PortConfig::default(), &pool);
        let mut port = port.unwrap_or_else(|error| panic!("{error}"));
        let queues = port.take_queues().remove(0);
        Self { echo, port, queues, pool, folder, sent: 0, received: 0, lost: 0, kills: 0, random: Random::new(7) }
    }

    fn packet(&self, number: u32) -> Packet {
        let mut packet = self.pool.alloc().expect("a buffer is left");
        let header = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0xee], &[0x88, 0xb5], &number.to_be_bytes()].concat();
        let frame: Vec<u8> = header.into_iter().chain((0..).map(|i| (i + number) as u8)).take(length(number)).collect();
        assert!(packet.copy_from(&frame));
        packet
    }

    /// Sends as fast as possible and receives, for this time.
    pub fn run(&mut self, time: Duration) {
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
            let number = u32::from_be_bytes(packet.array(14).unwrap());
            assert!(number > self.received, "{number} arrives after {}", self.received);
            assert!(
                packet.len() == length(number) && packet.array(18) == Some([(0u32.wrapping_add(number)) as u8]),
                "frame {number}"
            );
            self.lost += number - self.received - 1;
            self.received = number;
        }
    }

    /// Receives until all frames that were sent have come back or are lost.
    fn drain(&mut self) {
        let start = Instant::now();
        while self.received < self.sent {
            assert!(start.elapsed() < Duration::from_secs(60), "{} of {} came back", self.received, self.sent);
            self.receive();
        }
    }

    /// Kills the process under traffic, and restarts it.
    pub fn restart(&mut self) {
        let moment = self.moment();
        self.run(moment);
        drop(self.echo.take());
        // Sending continues without a back-end.
        let moment = self.moment();
        self.run(moment);
        self.echo = Some(echo(&self.folder));
        self.kills += 1;
        let (port, kills) = (&mut self.port, self.kills);
        wait_until("the next session", || port.extended().contains(&("reconnects", kills)));
    }

    /// Returns a random time of up to 33 ms.
    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.random.below(1 << 15))
    }

    /// Ends the run. After the last restart nothing is lost, so the last frame comes back. Each kill cost at
    /// most the frames that the process held, and no buffer is missing.
    pub fn end(mut self) {
        let start = Instant::now();
        while self.received <= 1000 && start.elapsed() < Duration::from_secs(20) {
            self.run(Duration::from_millis(20));
        }
        self.drain();
        let Self { kills, sent, received, lost, .. } = self;
        eprintln!("{sent} frames sent, {lost} lost in {kills} kills");
        assert!(received > 1000 && u64::from(lost) <= kills * u64::from(HELD), "{lost} of {sent} are lost");
        assert!(matches!(self.port.state(), State::Running), "{:?}", self.port.state());
        let Self { port, queues, pool, .. } = self;
        drop((queues, port));
        assert_eq!(pool.outstanding(1), 0, "buffers were lost");
    }
}
