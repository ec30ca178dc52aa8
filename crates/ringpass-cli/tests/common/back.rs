//! A vhost-user back-end in this process, with `ringpass echo` as its front-end.

use std::path::Path;
use std::time::{Duration, Instant};

use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_port::{Port, PortConfig, QueuePair, Role, VhostConfig};
use ringpass_vhost::{CopyModes, Vhost};

/// A back-end and its queues.
pub struct Back {
    pub port: Vhost,
    pub queues: QueuePair,
    pub pool: Mempool,
}

impl Back {
    /// Opens a back-end at a socket that it creates or connects to, as `role` says.
    pub fn new(path: &Path, role: Role) -> Self {
        let pool = Mempool::new(&MempoolConfig { buffers: 1024, ..Default::default() }).unwrap();
        let config = VhostConfig::new(path, role);
        let port = Vhost::open(&config, &PortConfig::default(), &pool, CopyModes::default());
        let mut port = port.unwrap_or_else(|error| panic!("{error}"));
        let queues = port.take_queues().remove(0);
        Self { port, queues, pool }
    }

    /// Sends a burst if a front-end is connected, and checks the frames that come back. Returns their number.
    ///
    /// A whole burst, because on a busy machine a thread that yields continues only after the time slices of
    /// all others: with single frames, hundreds of frames would take minutes.
    fn round(&mut self) -> usize {
        let mut burst = Burst::new(32);
        if self.port.link().up {
            let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[7; 100]].concat();
            while burst.room() > 0 {
                let mut packet = self.pool.alloc().expect("a buffer is left");
                assert!(packet.copy_from(&frame));
                burst.push(packet);
            }
            self.queues.tx.tx_burst(&mut burst);
            burst.clear();
        }
        self.queues.rx.rx_burst(&mut burst);
        assert!(burst.iter().all(|packet| packet.to_vec()[14..] == [7; 100]));
        std::thread::yield_now();
        burst.len()
    }

    /// Sends frames for this time, whether or not a front-end is connected.
    pub fn run(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.round();
        }
    }

    /// Sends frames until `count` have come back.
    pub fn echoed(&mut self, count: usize) {
        let (start, mut back) = (Instant::now(), 0);
        while back < count {
            assert!(start.elapsed() < Duration::from_secs(60), "{back} of {count} came back");
            back += self.round();
        }
    }
}
