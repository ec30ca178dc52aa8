//! A worker of its own for each guest (`--worker-per-guest`): nobody else touches the guest's memory.
//!
//! An access to memory that a guest is just taking away waits in the kernel. Here it keeps that guest's worker waiting and
//! no other: frames pass between it and the switch's workers through queues in this process.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass::{Address, Burst, Error, Idle, Packet, QueuePair, RxQueue, TxQueue, WakeSource, Wakeable, Worker};
use ringpass_ipc::WakeFd;

use super::plan::PortPlan;
use crate::run::Run;

/// Workers of guests that are not started yet.
#[derive(Default)]
pub struct GuestWorkers(Vec<Relay>);

/// Returns whether a port's address is that of a guest.
pub fn is_guest(plan: &PortPlan) -> bool {
    fn guest(address: &Address) -> bool {
        match address {
            Address::Vhost(..) => true,
            Address::Capture(_, inner) | Address::Faults(_, inner) => guest(inner),
            _ => false,
        }
    }
    plan.address.parse().is_ok_and(|address| guest(&address))
}

impl GuestWorkers {
    /// Creates an empty list for a switch with these ports.
    ///
    /// # Errors
    /// If there is no guest, or cards receive into a guest's memory, which its worker alone would have to touch.
    pub fn new(plans: &[PortPlan]) -> Result<Self, Error> {
        let wrong = |why: &str| Err(Error::Config(format!("--worker-per-guest: {why}")));
        if plans.iter().any(|plan| !plan.maps.is_empty()) {
            return wrong(
                "a card that receives for a guest (--map) uses the guest's memory too; leave out one of the two",
            );
        }
        if !plans.iter().any(is_guest) {
            return wrong("no port is a guest's (vhost:PATH)");
        }
        Ok(Self::default())
    }

    /// Gives a pair of a guest's queues to a worker of its own; returns the ends for the switch's worker.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn take(&mut self, guest: QueuePair) -> Result<QueuePair, Error> {
        let passage = || Passage::new().map_err(|source| Error::os("a queue between workers", source));
        let (to_switch, to_guest) = (passage()?, passage()?);
        self.0.push(Relay { guest, to_switch: Entrance(to_switch.clone()), to_guest: Exit(to_guest.clone()) });
        Ok(QueuePair { rx: Box::new(Exit(to_switch)), tx: Box::new(Entrance(to_guest)) })
    }

    /// Starts the workers.
    pub fn start(self, run: &mut Run) -> Result<(), Error> {
        let config = run.config.clone();
        self.0.into_iter().try_for_each(|relay| {
            let idle = config.idle();
            run.spawn(move |worker| relay.run(&worker, idle))
        })
    }
}

/// A guest's worker, which moves frames between the guest's queues and the switch.
struct Relay {
    guest: QueuePair,
    to_switch: Entrance,
    to_guest: Exit,
}

impl Relay {
    fn run(mut self, worker: &Worker, mut idle: Idle) {
        let mut burst = Burst::new(worker.batch);
        while worker.running() {
            let moved = self.round(&mut burst);
            worker.dropped(burst.len());
            burst.clear();
            idle.after(moved, &mut [&mut *self.guest.rx, &mut self.to_guest]);
        }
    }

    /// Moves up to a burst each way. What the guest has no room for is left in the burst.
    fn round(&mut self, burst: &mut Burst) -> usize {
        let mut moved = 1;
        // Without room at the switch, frames stay with the guest, and this worker goes on looking for room.
        if self.to_switch.0.room() >= burst.room() {
            moved = self.guest.rx.rx_burst(burst);
            self.to_switch.tx_burst(burst);
        }
        moved += self.to_guest.rx_burst(burst);
        self.guest.tx.tx_burst(burst);
        moved
    }
}

/// Frames on their way from one worker to another.
struct Passage {
    waiting: Mutex<Waiting>,
    wake: WakeFd,
}

#[derive(Default)]
struct Waiting {
    packets: VecDeque<Packet>,
    /// Set while the receiving worker sleeps, or is about to.
    armed: bool,
}

impl Passage {
    /// Most frames on their way, at least two bursts.
    const ROOM: usize = 512;

    fn new() -> std::io::Result<Arc<Self>> {
        let waiting = Waiting { packets: VecDeque::with_capacity(Self::ROOM), armed: false };
        Ok(Arc::new(Self { waiting: Mutex::new(waiting), wake: WakeFd::new()? }))
    }

    /// Locks for as long as it takes to move a burst. Nothing waits with the lock held.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self) -> usize {
        Self::ROOM - self.lock().packets.len()
    }
}

/// The end of a passage where frames go in.
struct Entrance(Arc<Passage>);

impl TxQueue for Entrance {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        let mut waiting = self.0.lock();
        let taken = burst.len().min(Passage::ROOM - waiting.packets.len());
        waiting.packets.extend(burst.drain().take(taken));
        let wake = taken > 0 && std::mem::take(&mut waiting.armed);
        drop(waiting);
        if wake {
            self.0.wake.wake();
        }
        taken
    }
}

/// The end of a passage where frames come out.
struct Exit(Arc<Passage>);

impl RxQueue for Exit {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut waiting = self.0.lock();
        let came = burst.room().min(waiting.packets.len());
        waiting.packets.drain(..came).for_each(|packet| burst.push(packet));
        came
    }
}

impl Wakeable for Exit {
    fn arm(&mut self) {
        self.0.lock().armed = true;
    }

    fn disarm(&mut self) {
        self.0.lock().armed = false;
        self.0.wake.clear();
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Readable(self.0.wake.as_fd()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use ringpass::{Mempool, MempoolConfig};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// A guest that sends nothing, and whose memory keeps its worker waiting until it is let go on.
    struct Slow {
        go_on: Receiver<()>,
        received: Sender<Packet>,
    }

    impl RxQueue for Slow {
        fn rx_burst(&mut self, _: &mut Burst) -> usize {
            0
        }
    }

    impl Wakeable for Slow {
        fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
            each(WakeSource::Never);
        }
    }

    impl TxQueue for Slow {
        fn tx_burst(&mut self, burst: &mut Burst) -> usize {
            let taken = burst.len();
            for packet in burst.drain() {
                let _ = self.go_on.recv();
                self.received.send(packet).expect("the test receives");
            }
            taken
        }
    }

    fn slow() -> (Slow, Sender<()>, Receiver<Packet>) {
        let ((go_on, wait), (received, packets)) = (channel(), channel());
        (Slow { go_on: wait, received }, go_on, packets)
    }

    fn frames(pool: &Mempool, numbers: std::ops::Range<usize>) -> Burst {
        let mut burst = Burst::new(256);
        for number in numbers {
            let mut packet = pool.alloc().expect("a buffer");
            assert!(packet.copy_from(&[number as u8; 60][..]));
            burst.push(packet);
        }
        burst
    }

    #[test]
    fn a_guest_that_keeps_its_worker_waiting_keeps_nobody_else() {
        let pool = Mempool::new(&MempoolConfig { buffers: 2048, ..Default::default() }).expect("a pool");
        let ((slow, go_on, packets), (idle, ..)) = (slow(), slow());
        let mut workers = GuestWorkers::default();
        let mut switch = workers.take(QueuePair { rx: Box::new(idle), tx: Box::new(slow) }).expect("eventfds");
        let mut relay = workers.0.pop().expect("it was taken");
        std::thread::scope(|scope| {
            // One burst is being written to the guest, and that waits.
            switch.tx.tx_burst(&mut frames(&pool, 0..32));
            let moved = scope.spawn(move || {
                let mut burst = Burst::new(32);
                let mut moved = 0;
                while moved < 32 + Passage::ROOM {
                    moved += relay.round(&mut burst);
                }
                moved
            });
            go_on.send(()).expect("the worker waits");
            packets.recv_timeout(Duration::from_secs(60)).expect("the first frame of the burst");
            // The switch goes on until the queue is full, then keeps what has no room.
            let mut sent = 0;
            loop {
                let mut burst = frames(&pool, sent..sent + 100);
                sent += switch.tx.tx_burst(&mut burst);
                if !burst.is_empty() {
                    break;
                }
            }
            assert_eq!(sent, Passage::ROOM);
            assert_eq!(switch.rx.rx_burst(&mut Burst::new(32)), 0);
            assert!(!moved.is_finished());
            (1..32 + Passage::ROOM).for_each(|_| go_on.send(()).expect("the worker waits"));
            let numbers = (1..32).chain(0..Passage::ROOM);
            for number in numbers {
                let packet = packets.recv_timeout(Duration::from_secs(60)).expect("the next frame");
                assert_eq!(packet.array::<1>(0), Some([number as u8]));
            }
            assert_eq!(moved.join().expect("the worker"), 32 + Passage::ROOM);
        });
        drop((switch, packets));
        assert_eq!(pool.outstanding(1), 0);
    }

    #[test]
    fn a_sleeping_worker_wakes_for_the_first_frame() {
        let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() }).expect("a pool");
        let passage = Passage::new().expect("eventfds");
        let (mut entrance, mut exit) = (Entrance(passage.clone()), Exit(passage));
        let awake = |exit: &Exit| {
            let mut descriptor = [PollFd::from_borrowed_fd(exit.0.wake.as_fd(), PollFlags::IN)];
            poll(&mut descriptor, Some(&Timespec::default())).expect("a descriptor") > 0
        };
        entrance.tx_burst(&mut frames(&pool, 0..1));
        assert!(!awake(&exit), "nobody has asked");
        exit.arm();
        entrance.tx_burst(&mut frames(&pool, 0..1));
        assert!(awake(&exit));
        exit.disarm();
        assert!(!awake(&exit));
        let mut burst = Burst::new(32);
        assert_eq!(exit.rx_burst(&mut burst), 2);
    }
}
