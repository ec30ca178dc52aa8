//! A port that receives nothing and drops everything sent.

use std::sync::Arc;

use ringpass_memory::{Burst, FrameBatch};
use ringpass_port::{
    FrameSink, Port, PortConfig, PortStatus, QueuePair, RxQueue, Stats, TxQueue, WakeSource, Wakeable, fits_mtu,
    frame_fits_mtu,
};

/// The port `null`.
pub struct Null {
    status: Arc<PortStatus>,
    queues: Vec<QueuePair>,
}

struct Rx;

struct Tx {
    status: Arc<PortStatus>,
    queue: usize,
    mtu: usize,
}

impl Null {
    /// Opens the port, which never fails.
    pub fn open(config: &PortConfig) -> Self {
        let status = Arc::new(PortStatus::new(config.queues));
        let tx = |queue| Tx { status: status.clone(), queue, mtu: config.mtu };
        let queues = (0..config.queues).map(|queue| QueuePair { rx: Box::new(Rx), tx: Box::new(tx(queue)) }).collect();
        Self { status, queues }
    }
}

impl Wakeable for Rx {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Never);
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, _: &mut Burst) -> usize {
        0
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = burst.len();
        let sent = burst.iter().filter(|packet| fits_mtu(packet, self.mtu));
        let (packets, bytes) = sent.fold((0, 0), |(packets, bytes), packet| (packets + 1, bytes + packet.total_len()));
        burst.clear();
        self.status.tx(self.queue).count(packets, bytes, taken - packets);
        taken
    }

    fn frame_sink(&mut self) -> Option<&mut dyn FrameSink> {
        Some(self)
    }
}

impl FrameSink for Tx {
    fn send(&mut self, frames: &FrameBatch) {
        let sent = frames.iter().filter(|frame| frame_fits_mtu(*frame, frame.len(), self.mtu));
        let (packets, bytes) = sent.fold((0, 0), |(packets, bytes), frame| (packets + 1, bytes + frame.len()));
        self.status.tx(self.queue).count(packets, bytes, frames.len() - packets);
    }
}

impl Port for Null {
    fn name(&self) -> &str {
        "null"
    }

    fn stats(&mut self) -> Stats {
        self.status.stats()
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.status.queue_stats()
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }
}
