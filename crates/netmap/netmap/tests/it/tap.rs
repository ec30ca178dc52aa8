//! Monitors of a pipe, which follow the copies that its sender makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use ringpass_memory::{DmaRegion, Memory, RegionConfig};
use ringpass_netmap::{
    Buffers, Flags, Follower, Notifier, Pools, PortMemory, PortRing, Region, Shape, Slot, Tap, attach_monitor,
    attach_pipe,
};

struct Bench {
    tx: PortRing,
    rx: PortRing,
    buffers: Buffers,
    tap: Arc<Tap>,
    tap_memory: Memory,
    ends: [PortMemory; 2],
    /// How often the monitors were woken.
    wakes: Arc<AtomicUsize>,
    region: Region,
}

fn region() -> Region {
    let pools = Pools { ring_bytes: 1 << 20, ..Pools::default() };
    Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn shape(slots: u32) -> Shape {
    Shape { rings: [1; 2], slots: [slots; 2], host_rings: [0; 2] }
}

impl Bench {
    fn new(slots: u32) -> Self {
        let mut region = region();
        let ends =
            PortMemory::pipe(&mut region, ["p{1", "p}1"], shape(slots)).unwrap_or_else(|error| panic!("{error}"));
        let tap_memory: Memory = DmaRegion::new(Tap::bytes([1; 2]), &RegionConfig::default()).unwrap().into();
        let tap = Tap::new(&tap_memory, [1; 2]).expect("it fits");
        let buffers = Buffers::of(region.memory(), region.pools()).unwrap();
        let wakes = Arc::new(AtomicUsize::new(0));
        let wake: Notifier = Arc::new({
            let wakes = wakes.clone();
            move || _ = wakes.fetch_add(1, Relaxed)
        });
        let nobody: Notifier = Arc::new(|| ());
        let (csb, places) = (ends[0].csb().clone().into(), ends.each_ref().map(PortMemory::interface));
        let attach = |own: usize| {
            let tap = Some((&tap, &buffers, &wake));
            attach_pipe(region.memory(), (places[own], places[1 - own]), own == 0, &csb, &nobody, tap).expect("rings")
        };
        let ([mut tx, _], [_, mut rx]) = (attach(0), attach(1));
        let (tx, rx) = (tx.pop().unwrap(), rx.pop().unwrap());
        Self { tx, rx, buffers, tap, tap_memory, ends, wakes, region }
    }

    /// Sends numbered frames. Returns how many there was room for.
    fn send(&self, numbers: std::ops::Range<u32>) -> u32 {
        self.tx.sync().unwrap();
        let sent = self.tx.own().min(numbers.len() as u32);
        for (n, position) in self.tx.first(sent).enumerate() {
            let mut slot = self.tx.ring().slot(position);
            slot.len = 60;
            let frame = (numbers.start + n as u32).to_le_bytes().repeat(15);
            assert!(self.buffers.write(slot, &frame));
            self.tx.ring().set(position, slot);
        }
        self.tx.release_slots(sent);
        self.tx.sync().unwrap();
        sent
    }

    fn receive(&self) -> Vec<u32> {
        receive(&self.rx, &self.buffers)
    }

    fn words(&self) -> ringpass_memory::Cells<AtomicU64> {
        self.tap_memory.cells(0, Tap::bytes([1; 2]) / 8).unwrap()
    }
}

/// Receives all frames. Returns their numbers; `u32::MAX` for a frame that is not as one was sent.
fn receive(ring: &PortRing, buffers: &Buffers) -> Vec<u32> {
    ring.sync().unwrap();
    let number = |position| {
        let slot = ring.ring().slot(position);
        let mut bytes = vec![0; usize::from(slot.len)];
        let words = buffers.read(slot, &mut bytes).map(|_| bytes.chunks_exact(4).collect::<Vec<_>>());
        let first = words.filter(|words| words.len() == 15 && words.iter().all(|word| *word == words[0]));
        first.map_or(u32::MAX, |words| u32::from_le_bytes(words[0].try_into().unwrap()))
    };
    let own = ring.own();
    let numbers = ring.first(own).map(number).collect();
    ring.release_slots(own);
    ring.sync().unwrap();
    numbers
}

/// A monitor of what the first end sends, with a memory of its own.
struct Monitor {
    rx: PortRing,
    buffers: Buffers,
    _memory: (PortMemory, Region),
}

impl Monitor {
    fn new(bench: &Bench, slots: u32) -> Self {
        let mut region = region();
        let (memory, _) =
            PortMemory::new(&mut region, "m", shape(slots), true).unwrap_or_else(|error| panic!("{error}"));
        let buffers = Buffers::of(region.memory(), region.pools()).unwrap();
        let csb = memory.csb().clone().into();
        let logs = (&buffers, &bench.tap);
        let rings = attach_monitor(region.memory(), memory.interface(), &csb, logs, (true, [true, false]));
        let [_, mut rx] = rings.expect("rings");
        bench.ends[0].set_watched(true, 0, true);
        Self { rx: rx.pop().unwrap(), buffers, _memory: (memory, region) }
    }

    fn receive(&self) -> Vec<u32> {
        receive(&self.rx, &self.buffers)
    }
}

#[test]
fn monitors_follow_at_their_own_pace() {
    let bench = Bench::new(256);
    assert_eq!((bench.send(0..5), bench.receive().len()), (5, 5));
    let [quick, slow] = [1024, 16].map(|slots| Monitor::new(&bench, slots));
    let (mut sent, mut seen) = (5, Vec::new());
    while sent < 5000 {
        sent += bench.send(sent..sent + 200);
        assert_eq!(bench.receive().last(), Some(&(sent - 1)));
        seen.extend(quick.receive());
    }
    assert_eq!(seen, (5..sent).collect::<Vec<_>>(), "from its start on");
    // The slow one has lost all but the last ones, which it still gets.
    let late: Vec<_> = std::iter::from_fn(|| Some(slow.receive()).filter(|some| !some.is_empty())).flatten().collect();
    assert_eq!(late, (sent - 1024..sent).collect::<Vec<_>>());
    // Slots without a buffer of the monitor stay empty.
    quick.rx.ring().set(quick.rx.position(1), Slot { buffer: u32::MAX, ..Slot::default() });
    bench.send(sent..sent + 3);
    assert_eq!(quick.receive(), [sent, u32::MAX, sent + 1, sent + 2]);
    bench.ends[0].set_watched(true, 0, false);
    bench.send(0..3);
    assert!(quick.receive().is_empty());
    drop(bench.region);
}

/// A sender wakes monitors once for each time that one has asked.
#[test]
fn monitors_are_woken_once() {
    let bench = Bench::new(256);
    let [one, other] = [64, 64].map(|slots| Monitor::new(&bench, slots));
    let wakes = |sends: u32| {
        (0..sends).for_each(|n| _ = (bench.send(n..n + 1), bench.receive()));
        bench.wakes.swap(0, Relaxed)
    };
    assert_eq!(wakes(3), 0, "nobody waits");
    assert_eq!((one.receive().len(), other.receive().len()), (3, 3));
    assert!(one.rx.arm().unwrap() && other.rx.arm().unwrap());
    assert_eq!(wakes(10), 1);
    assert!(!one.rx.arm().unwrap(), "frames are there");
    one.rx.disarm();
    assert_eq!(one.receive().len(), 10);
    assert!(one.rx.arm().unwrap());
    assert_eq!(wakes(10), 1);
}

/// An entry that a sender has begun and not ended, as it was killed, is passed over when there are others behind it.
#[test]
fn a_sender_that_dies_loses_its_entry() {
    let bench = Bench::new(64);
    let monitor = Monitor::new(&bench, 64);
    bench.send(0..2);
    // The words of the first log.
    bench.words()[8].fetch_add(1, Relaxed);
    assert_eq!(monitor.receive(), [0, 1]);
    bench.send(2..4);
    assert_eq!(monitor.receive(), [2, 3]);
}

/// Whatever others write to the log and the monitor's ring, the pipe goes on, and nothing panics or waits.
#[test]
fn logs_full_of_lies_harm_their_monitors_only() {
    let bench = Bench::new(64);
    let [monitor, liar] = [64, 64].map(|slots| Monitor::new(&bench, slots));
    let (words, mut random, mut sent) = (bench.words(), 7_u64, 0);
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 20
    };
    for round in 0..3000 {
        let place = match next() % 4 {
            // The words of all logs.
            0 => [0, 1, 8, 16][(next() % 4) as usize],
            // The words of some entry.
            1 => 264 * (2 + next() % 2048) + next() % 3,
            _ => next() % words.len() as u64,
        };
        let value = [next(), next() << 40, u64::MAX - next() % 3, next() % 3000, u64::MAX][(next() % 5) as usize];
        words[place as usize].store(value, Relaxed);
        let ring = liar.rx.ring();
        let position = next() as u32 % 64;
        ring.set(position, Slot { buffer: next() as u32 >> (round % 32), len: next() as u16, ..ring.slot(position) });
        ring.header().head.store(next() as u32 % 80, Relaxed);
        let _ = liar.rx.sync();
        let more = bench.send(sent..sent + next() as u32 % 60);
        assert_eq!(bench.receive(), (sent..sent + more).collect::<Vec<_>>());
        sent += more;
        assert!(monitor.receive().len() < 64);
    }
    // An honest one that comes now is all right.
    words[1].store(0, Relaxed);
    let honest = Monitor::new(&bench, 64);
    bench.send(sent..sent + 9);
    assert_eq!(honest.receive(), (sent..sent + 9).collect::<Vec<_>>());
}

/// A monitor on another thread sees frames as a whole, or not at all.
#[test]
fn frames_are_whole() {
    let bench = Bench::new(1024);
    let monitor = Monitor::new(&bench, 1024);
    let last = 200_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while seen < last - 1 {
                for number in monitor.receive() {
                    assert!(number != u32::MAX && (seen == 0 || number > seen), "{number} after {seen}");
                    seen = number;
                }
            }
        });
        let mut sent = 0;
        while sent < last {
            sent += bench.send(sent..last.min(sent + 700));
            bench.receive();
        }
    });
}

#[test]
fn logs_lie_in_their_memory() {
    let memory: Memory = DmaRegion::new(Tap::bytes([1; 2]) - 4096, &RegionConfig::default()).unwrap().into();
    assert!(Tap::new(&memory, [1; 2]).is_none());
    for rings in [[1, 1], [3, 2], [1, 16], [16, 16], [u16::MAX; 2], [0, 0]] {
        assert!(Tap::bytes(rings) < 5 << 20);
        let memory: Memory = DmaRegion::new(Tap::bytes(rings), &RegionConfig::default()).unwrap().into();
        let tap = Tap::new(&memory, rings).expect("it fits");
        assert!(tap.log(true, 16).is_none() && tap.log(false, 0).is_some());
        let last = (0..16).filter_map(|ring| tap.log(false, ring)).max().unwrap();
        let _ = Follower::new(&tap, last, Flags::default());
    }
}

#[test]
#[ignore = "measures"]
fn speed() {
    let bench = Bench::new(1024);
    for batch in [1, 32, 256] {
        for monitored in [false, true, false, true] {
            let monitor = monitored.then(|| Monitor::new(&bench, 1024));
            bench.ends[0].set_watched(true, 0, monitored);
            let start = std::time::Instant::now();
            let frames = 20_000_000;
            let mut sent = 0;
            while sent < frames {
                bench.tx.sync().unwrap();
                let some = bench.tx.own().min(batch);
                for position in bench.tx.first(some) {
                    let slot = bench.tx.ring().slot(position);
                    bench.tx.ring().set(position, Slot { len: 60, ..slot });
                }
                bench.tx.release_slots(some);
                bench.tx.sync().unwrap();
                bench.rx.sync().unwrap();
                bench.rx.release_slots(bench.rx.own());
                bench.rx.sync().unwrap();
                sent += some;
            }
            let nanos = start.elapsed().as_nanos() as f64 / f64::from(frames);
            println!("batch {batch}, monitored {monitored}: {nanos:.1} ns a frame");
            drop(monitor);
        }
    }
}
