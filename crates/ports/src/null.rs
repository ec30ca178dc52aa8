//! The port that receives nothing and drops all that is sent.

use std::sync::Arc;

use ringpass_memory::Burst;
use ringpass_port::{
    Error, Link, MacAddress, Port, PortConfig, Queues, RxQueue, State, Stats, Status, TxQueue, Wake, Wakeable, passes,
};

/// `null`.
pub struct Null {
    status: Arc<Status>,
    queues: Vec<Queues>,
}

struct Rx;

struct Tx {
    status: Arc<Status>,
    queue: usize,
    mtu: usize,
}

impl Null {
    /// Cannot fail.
    pub fn open(config: &PortConfig) -> Self {
        let status = Arc::new(Status::new(config.queues));
        let tx = |queue| Tx { status: status.clone(), queue, mtu: config.mtu };
        let queues = (0..config.queues).map(|queue| Queues { rx: Box::new(Rx), tx: Box::new(tx(queue)) }).collect();
        Self { status, queues }
    }
}

impl Wakeable for Rx {
    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(Wake::Never);
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
        let sent = burst.iter().filter(|packet| passes(packet, self.mtu));
        let (packets, bytes) = sent.fold((0, 0), |(packets, bytes), packet| (packets + 1, bytes + packet.total_len()));
        burst.clear();
        self.status.tx(self.queue).count(packets, bytes, taken - packets);
        taken
    }
}

impl Port for Null {
    fn name(&self) -> &str {
        "null"
    }

    fn mac(&self) -> MacAddress {
        MacAddress::default()
    }

    fn link(&mut self) -> Link {
        Link { up: true, mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.status.stats()
    }

    fn state(&mut self) -> State {
        State::Running
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}
