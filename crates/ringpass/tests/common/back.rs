//! A back-end in this process, before which is `ringpass echo`.

use std::path::Path;
use std::time::{Duration, Instant};

use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_port::{Port, PortConfig, Queues, Role, VhostConfig};
use ringpass_vhost::{Copies, Vhost};

/// A back-end, and what comes and goes there.
pub struct Back {
    pub port: Vhost,
    pub queues: Queues,
    pub pool: Mempool,
}

impl Back {
    /// At a socket that it makes or goes to.
    pub fn new(path: &Path, role: Role) -> Self {
        let pool = Mempool::new(&MempoolConfig { buffers: 1024, ..Default::default() }).unwrap();
        let config = VhostConfig { path: path.into(), role, queues: None, features: None };
        let port = Vhost::open(&config, &PortConfig::default(), &pool, Copies::default());
        let mut port = port.unwrap_or_else(|error| panic!("{error}"));
        let queues = port.take_queues().remove(0);
        Self { port, queues, pool }
    }

    /// Sends a burst, if there is anybody, and looks at frames that come back: how many.
    ///
    /// A burst, as whoever yields on a busy machine comes back after a time slice of everybody else: with a frame each, hundreds of
    /// frames would take minutes.
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

    /// Sends frames for so long, to whoever may be there.
    pub fn run(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.round();
        }
    }

    /// Sends frames until enough have come back.
    pub fn echoed(&mut self, count: usize) {
        let (start, mut back) = (Instant::now(), 0);
        while back < count {
            assert!(start.elapsed() < Duration::from_secs(60), "{back} of {count} came back");
            back += self.round();
        }
    }
}
