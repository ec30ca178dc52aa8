//! A ring between two workers.

use ringpass_port::{Port, QueuePair};

/// Creates a cable between two workers: what is sent at one end is received at the other, in order, with room for at least `slots`
/// packets in each direction. Packets pass without a copy. A full cable takes no more, so none is lost on it: what it had no room
/// for stays in the burst. A worker that sleeps on its end is woken by packets, but not by room. Packets that are sent after the
/// other end was dropped are dropped.
///
/// A pipeline of three workers, of which the first receives, the second works, and the third sends:
///
/// ```
/// use ringpass::{Burst, Config, Workers, cable};
///
/// let config = Config::default();
/// let mut ports = ringpass::open(["model:null", "null"], &config)?;
/// # let pool = ports.pool().clone();
/// let [a, b] = ports.take_pair()?;
/// # let ([mut source, a], [b, mut sink]) = (cable("source", 64), cable("sink", 64));
/// let [first, second] = cable("work", 512);
/// let [third, last] = cable("send", 512);
/// let mut workers = Workers::new(&config)?;
/// for (name, mut from, mut to) in [("receive", a.rx, first.tx), ("work", second.rx, third.tx), ("send", last.rx, b.tx)] {
///     workers.spawn(name, move |mut worker| {
///         let mut burst = Burst::new(worker.batch);
///         while worker.running() {
///             // What the next stage had no room for is still in the burst, so this one receives less.
///             from.rx_burst(&mut burst);
///             let sent = to.tx_burst(&mut burst);
///             // While packets wait for room, the worker must not sleep: room wakes nobody.
///             if sent > 0 || burst.is_empty() {
///                 worker.after(sent, &mut [&mut *from]);
///             }
///         }
///         Ok(())
///     })?;
/// }
/// # let mut burst = Burst::new(32);
/// # (0..32).for_each(|_| burst.push(pool.alloc().expect("a buffer is left")));
/// # source.tx.tx_burst(&mut burst);
/// # while sink.rx.rx_burst(&mut burst) > 0 || burst.len() < 32 {}
/// workers.stop();
/// workers.join()?;
/// # Ok::<(), ringpass::Error>(())
/// ```
pub fn cable(name: &str, slots: usize) -> [QueuePair; 2] {
    let (a, b) = ringpass_host_ports::cable(name, slots);
    [a, b].map(|mut end| end.take_queues().pop().expect("an end has one queue pair"))
}
