//! Tests that each queue wakes by its wake sources when there is something to receive, and not before.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_host_ports::capture_file::{Direction, Writer};
use ringpass_host_ports::{Capture, Faults, Null, PacketSocket, Pcap, Tap, cable};
use ringpass_memory::{Burst, Loans};
use ringpass_port::lending::{Lender, Lending};
use ringpass_port::{
    Error, FaultsConfig, Idle, Link, MacAddress, PcapConfig, Port, PortConfig, QueuePair, ReplaySpeed, Rule, RxQueue,
    TxQueue, WakeSource, Wakeable,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Returns whether the queue's wake source is ready now.
fn wake_sources(rx: &dyn RxQueue) -> bool {
    let [WakeSource::Readable(fd)] = WakeSource::all(rx)[..] else { panic!("nothing to wait on") };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).expect("poll") > 0
}

#[test]
fn a_cable_wakes_an_armed_receiver_only() {
    let (mut left, mut right) = cable("c", 64);
    let (mut at_left, mut at_right, pool) = (queues(&mut left), queues(&mut right), pool());
    send(&mut at_left, &pool, &frames(1));
    assert!(!wake_sources(&*at_right.rx), "nobody sleeps");
    receive_exactly(&mut at_right, 1);
    at_right.rx.arm();
    assert!(!wake_sources(&*at_right.rx), "nothing has come");
    send(&mut at_left, &pool, &frames(2));
    assert!(wake_sources(&*at_right.rx));
    at_right.rx.disarm();
    assert!(!wake_sources(&*at_right.rx), "what woke is taken away");
    assert_eq!(receive(&mut at_right).len(), 2);
    at_right.rx.arm();
    at_right.rx.disarm();
    send(&mut at_left, &pool, &frames(1));
    assert!(!wake_sources(&*at_right.rx), "awake again");
}

#[test]
fn decorators_wake_as_what_they_wrap() {
    let directory = tempfile::tempdir().expect("a folder for a test");
    let pool = pool();
    let (mut left, right) = cable("c", 64);
    let faults = Faults::wrap(Box::new(right), FaultsConfig::default(), &pool);
    let mut right = Capture::wrap(Box::new(faults), &directory.path().join("x.pcap")).expect("a capture");
    let (mut at_left, mut at_right) = (queues(&mut left), queues(&mut right));
    at_right.rx.arm();
    assert!(!wake_sources(&*at_right.rx));
    send(&mut at_left, &pool, &frames(1));
    assert!(wake_sources(&*at_right.rx));
    at_right.rx.disarm();
    assert!(!wake_sources(&*at_right.rx));
}

#[test]
fn packets_wake_a_thread_that_sleeps_between_them() {
    const PACKETS: usize = 200;
    let (mut left, mut right) = cable("c", 64);
    let (mut at_left, QueuePair { mut rx, .. }, pool) = (queues(&mut left), queues(&mut right), pool());
    let received = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut idle, mut burst) = (Idle::new(false), Burst::new(8));
            while received.load(Relaxed) < PACKETS {
                let packets = rx.rx_burst(&mut burst);
                burst.clear();
                received.fetch_add(packets, Relaxed);
                idle.after(packets, &mut [&mut *rx]);
            }
        });
        let took = (0..PACKETS).map(|i| {
            // Long enough for the receiver to fall asleep, at times.
            std::thread::sleep(Duration::from_micros(i as u64 * 10));
            let start = Instant::now();
            send(&mut at_left, &pool, &frames(1));
            poll_until("a packet", || received.load(Relaxed) > i);
            start.elapsed()
        });
        let mut took: Vec<_> = took.collect();
        took.sort();
        // Each missed wake-up would take 100 ms; some take long when the machine is busy.
        assert!(took[PACKETS / 2] < Duration::from_millis(50), "{took:?}");
    });
}

#[test]
fn kernel_interfaces_wake_by_their_descriptors() {
    let (a, b) = veth();
    let open = |namespace: &Namespace, name: &str| {
        namespace.enter(|| PacketSocket::open(name, &PortConfig::default(), &pool())).expect("a packet socket")
    };
    let (mut port_a, mut port_b) = (open(&a, "va"), open(&b, "vb"));
    let (mut at_a, mut at_b, pool) = (queues(&mut port_a), queues(&mut port_b), pool());
    at_b.rx.arm();
    assert!(!wake_sources(&*at_b.rx));
    send(&mut at_a, &pool, &frames(1));
    poll_until("the frame", || wake_sources(&*at_b.rx));
    at_b.rx.disarm();
    receive_exactly(&mut at_b, 1);
    assert!(!wake_sources(&*at_b.rx));
    // The kernel reports a link that goes down, once.
    b.ip(&["link", "set", "vb", "down"]);
    poll_until("the end of the link", || wake_sources(&*at_b.rx));
    at_b.rx.disarm();
    assert!(!wake_sources(&*at_b.rx), "that would wake for ever");

    let mut tap = a.enter(|| Tap::open("rp0", &PortConfig::default(), &crate::common::pool())).expect("a TAP");
    let mut behind = open(&a, "rp0");
    let (mut at_tap, mut at_socket) = (queues(&mut tap), queues(&mut behind));
    assert!(!wake_sources(&*at_tap.rx));
    send(&mut at_socket, &pool, &frames(1));
    poll_until("the frame", || wake_sources(&*at_tap.rx));
    receive_exactly(&mut at_tap, 1);
    assert!(!wake_sources(&*at_tap.rx));
}

#[test]
fn null_and_files_that_have_ended_never_wake() {
    let config = PortConfig::default();
    assert!(matches!(WakeSource::all(&*queues(&mut Null::open(&config)).rx)[..], [WakeSource::Never]));

    let directory = tempfile::tempdir().expect("a folder for a test");
    let file = directory.path().join("x.pcap");
    let mut writer = Writer::create(&file).expect("a file");
    for nanos in [0, 30_000_000] {
        writer.write(nanos, Direction::Received, &frame(1, 60)).expect("a frame is written");
    }
    writer.finish().expect("a file");
    let speed = ReplaySpeed::Recorded(0.5);
    let pcap = PcapConfig { input: Some(file), repeat: 1, speed, ..Default::default() };
    let mut port = Pcap::open(&pcap, &config, &pool()).expect("a capture file");
    let mut queues = queues(&mut port);
    assert_eq!(receive(&mut queues).len(), 1);
    let [WakeSource::At(due)] = WakeSource::all(&*queues.rx)[..] else { panic!("the second frame has a time") };
    let wait = due.saturating_duration_since(Instant::now());
    assert!(wait <= Duration::from_millis(61), "{wait:?}");
    std::thread::sleep(wait);
    assert_eq!(receive(&mut queues).len(), 1);
    poll_until("the end", || {
        receive(&mut queues).is_empty() && matches!(WakeSource::all(&*queues.rx)[..], [WakeSource::Never])
    });
    assert!(matches!(port.state(), ringpass_port::State::Finished));
}

/// A port that implements every method a decorator might forget to pass on, and records its calls.
struct Able(Asked);

type Asked = Arc<Mutex<Vec<String>>>;

fn note(asked: &Asked, what: impl Into<String>) {
    asked.lock().unwrap().push(what.into());
}

struct Nobody;

impl Lender for Nobody {
    fn lend(&self, _: &mut Loans<'_>) {}
}

impl Wakeable for Able {
    fn arm(&mut self) {
        note(&self.0, "arm");
    }

    fn disarm(&mut self) {
        note(&self.0, "disarm");
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Never);
        each(WakeSource::Polled);
    }
}

impl RxQueue for Able {
    fn rx_burst(&mut self, _: &mut Burst) -> usize {
        0
    }

    fn borrow_from(&mut self, _: &Arc<Lending>) -> Result<(), Error> {
        note(&self.0, "borrow");
        Ok(())
    }
}

impl TxQueue for Able {
    fn tx_burst(&mut self, _: &mut Burst) -> usize {
        0
    }
}

impl Port for Able {
    fn name(&self) -> &str {
        "able"
    }

    fn mac(&self) -> MacAddress {
        MacAddress([2; 6])
    }

    fn link(&mut self) -> Link {
        Link { up: true, mbps: 7 }
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        vec![("able", 7)]
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        vec![QueuePair { rx: Box::new(Able(self.0.clone())), tx: Box::new(Able(self.0.clone())) }]
    }

    fn set_promiscuous(&mut self, _: bool) -> Result<(), Error> {
        note(&self.0, "promiscuous");
        Ok(())
    }

    fn steer(&mut self, _: &Rule, queue: usize) -> Result<(), Error> {
        note(&self.0, format!("steer {queue}"));
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        note(&self.0, "finish");
        Ok(())
    }

    fn lending(&mut self, pair: usize) -> Option<Arc<Lending>> {
        (pair == 5).then(|| Lending::new(Box::new(Nobody)))
    }

    fn notes(&self) -> Vec<String> {
        vec!["able".into()]
    }
}

/// A method that a decorator did not pass on would be answered by the trait's default.
#[test]
fn decorators_pass_on_everything() {
    let directory = tempfile::tempdir().expect("a folder for a test");
    let asked = Asked::default();
    let faults = Faults::wrap(Box::new(Able(asked.clone())), FaultsConfig::default(), &pool());
    let mut port = Capture::wrap(Box::new(faults), &directory.path().join("x.pcap")).expect("a capture");
    assert_eq!((port.mac(), port.link()), (MacAddress([2; 6]), Link { up: true, mbps: 7 }));
    assert_eq!(port.extended()[0], ("able", 7));
    assert!(port.notes().contains(&"able".to_owned()));
    port.set_promiscuous(true).unwrap();
    port.steer(&Rule::Address { mac: MacAddress([2; 6]), vlan: None }, 3).expect("the card behind can steer");
    let lending = port.lending(5).expect("the guest behind lends");
    assert!(port.lending(4).is_none());
    let mut queues = queues(&mut port);
    assert!(
        matches!(WakeSource::all(&*queues.rx)[..], [WakeSource::Never, WakeSource::Polled]),
        "both things to wait for"
    );
    queues.rx.arm();
    queues.rx.disarm();
    queues.rx.borrow_from(&lending).expect("the queue behind can borrow");
    drop(queues);
    port.finish().expect("nothing is lost");
    assert_eq!(*asked.lock().unwrap(), ["promiscuous", "steer 3", "arm", "disarm", "borrow", "finish"]);
}
