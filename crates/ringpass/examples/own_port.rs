//! A port of your own, which receives what is sent to it. It serves wherever a port does; here it is the wire of a software card.
//! `cargo run -p ringpass --example own_port`
use std::sync::mpsc::{Receiver, Sender, channel};

use ringpass::{Burst, Packet, Port, QueuePair, RxQueue, TxQueue, WakeSource, Wakeable};

struct Loopback(Option<QueuePair>);
struct Rx(Receiver<Packet>);
struct Tx(Sender<Packet>);

impl Port for Loopback {
    fn name(&self) -> &str {
        "loopback"
    }
    fn take_queues(&mut self) -> Vec<QueuePair> {
        self.0.take().into_iter().collect()
    }
}
impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        self.0.try_iter().take(burst.room()).for_each(|packet| burst.push(packet));
        burst.len() - before
    }
}
impl Wakeable for Rx {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled) // nothing to wait on, so idle loops look every 50 µs
    }
}
impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        burst.drain().map(|packet| self.0.send(packet)).filter(Result::is_ok).count()
    }
}
fn main() {
    let (tx, rx) = channel();
    let mut port = Loopback(Some(QueuePair { rx: Box::new(Rx(rx)), tx: Box::new(Tx(tx)) }));
    let mut queues = port.take_queues().remove(0);
    let mut burst = Burst::new(32);
    let pool = ringpass::Mempool::new(&Default::default()).expect("memory");
    burst.push(pool.alloc().expect("a buffer"));
    println!("sent {}, received {}", queues.tx.tx_burst(&mut burst), queues.rx.rx_burst(&mut burst));
}
