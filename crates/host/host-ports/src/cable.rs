//! A cable between two ports of one process: what is sent at one end is received at the other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ringpass_memory::{Burst, Packet};
use ringpass_port::{Link, Port, PortStatus, QueuePair, RxQueue, State, Stats, TxQueue, WakeSource, Wakeable};
use rustix::event::{EventfdFlags, eventfd};

use crate::need_wakeup::NeedWakeup;
use crate::ring::{Consumer, Producer, ring};

/// One end of a [`cable`]: a port with one queue pair.
pub struct CableEnd {
    name: String,
    status: Arc<PortStatus>,
    queues: Vec<QueuePair>,
}

/// Wakes the receiver of one direction.
struct WakeEvent {
    need_wakeup: NeedWakeup,
    event: OwnedFd,
}

struct Rx {
    ring: Consumer<Packet>,
    wake_event: Arc<WakeEvent>,
    status: Arc<PortStatus>,
}

struct Tx {
    ring: Producer<Packet>,
    wake_event: Arc<WakeEvent>,
    status: Arc<PortStatus>,
}

/// Creates a cable with the ends `NAME/0` and `NAME/1` and room for at least `slots` packets in each direction.
/// A full cable accepts no more packets, so none is lost on it. When one end is dropped, the other reports that
/// it is gone.
pub fn cable(name: &str, slots: usize) -> (CableEnd, CableEnd) {
    let way = || {
        let (tx, rx) = ring(slots);
        let event =
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("the process has a descriptor left");
        let wake_event = Arc::new(WakeEvent { need_wakeup: NeedWakeup::new(), event });
        ((tx, wake_event.clone()), (rx, wake_event))
    };
    let (there, back) = (way(), way());
    (CableEnd::new(format!("{name}/0"), there.0, back.1), CableEnd::new(format!("{name}/1"), back.0, there.1))
}

impl CableEnd {
    fn new(name: String, tx: (Producer<Packet>, Arc<WakeEvent>), rx: (Consumer<Packet>, Arc<WakeEvent>)) -> Self {
        let status = Arc::new(PortStatus::new(1));
        let tx = Tx { ring: tx.0, wake_event: tx.1, status: status.clone() };
        let rx = Rx { ring: rx.0, wake_event: rx.1, status: status.clone() };
        Self { name, status, queues: vec![QueuePair { rx: Box::new(rx), tx: Box::new(tx) }] }
    }
}

const GONE: &str = "the other end of the cable is gone";

impl Wakeable for Rx {
    fn arm(&mut self) {
        self.wake_event.need_wakeup.prepare_to_wait();
    }

    fn disarm(&mut self) {
        self.wake_event.need_wakeup.finish_wait();
        // Would block if nobody has signalled the event, which is no error.
        let _ = rustix::io::read(&self.wake_event.event, &mut [0; 8]);
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Readable(self.wake_event.event.as_fd()));
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let (mut packets, mut bytes) = (0, 0);
        for packet in self.ring.take(burst.room()) {
            (packets, bytes) = (packets + 1, bytes + packet.total_len());
            burst.push(packet);
        }
        if packets > 0 {
            self.status.rx(0).count(packets, bytes, 0);
        } else if self.ring.is_closed() && self.ring.ready(1) == 0 {
            self.status.set_gone(|| GONE.into());
        }
        packets
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        if self.ring.is_closed() {
            let dropped = burst.len();
            burst.clear();
            self.status.set_gone(|| GONE.into());
            self.status.tx(0).count(0, 0, dropped);
            return dropped;
        }
        let packets = self.ring.room(burst.len());
        if packets > 0 {
            let bytes = burst[..packets].iter().map(Packet::total_len).sum();
            self.ring.put(burst.drain().take(packets));
            if self.wake_event.need_wakeup.needs_wakeup() {
                // The write fails only if the counter is full; then the receiver is awake already.
                let _ = rustix::io::write(&self.wake_event.event, &1u64.to_ne_bytes());
            }
            self.status.tx(0).count(packets, bytes, 0);
        }
        packets
    }
}

impl Port for CableEnd {
    fn name(&self) -> &str {
        &self.name
    }

    fn link(&mut self) -> Link {
        Link { up: !self.status.is_gone(), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.status.stats()
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.status.queue_stats()
    }

    fn state(&mut self) -> State {
        self.status.state()
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }
}
