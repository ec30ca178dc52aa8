//! Tests of the driver with ports of this machine, over vfio-user.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Host, mac, pipe_hosts, region, served, shared};
use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_pci::{PciDevice, VfioUser};
use ringpass_port::{Idle, Port, PortConfig, QueuePair, State};
use ringpass_ptnet::driver::PtnetPort;

const LIMIT: Duration = Duration::from_secs(20);

fn pool() -> Mempool {
    Mempool::new(&MempoolConfig::default()).unwrap()
}

fn open(path: &Path, config: &PortConfig, pool: &Mempool) -> Result<PtnetPort, ringpass_port::Error> {
    let memory = path.with_extension("mem");
    PtnetPort::open(
        VfioUser::open(path)?,
        &|_| Ok(VfioUser::open(&memory)? as Arc<dyn PciDevice>),
        "port",
        config,
        pool,
    )
}

fn only(port: &mut PtnetPort) -> QueuePair {
    port.take_queues().pop().unwrap()
}

/// Builds a frame that contains a number and whose length depends on it.
fn frame(number: u32, most: usize) -> Vec<u8> {
    let len = 60 + number as usize * 37 % (most - 59);
    let mut frame: Vec<u8> = (0..len).map(|at| (at as u32 ^ number) as u8).collect();
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_le_bytes());
    frame
}

/// Sends frames numbered from the start of `numbers` on, as far as there is room. Returns how many.
fn send(queues: &mut QueuePair, pool: &Mempool, numbers: std::ops::Range<u32>, most: usize) -> u32 {
    let mut burst = Burst::new(32);
    for number in numbers.take(32) {
        let Some(mut packet) = pool.alloc() else { break };
        let bytes = frame(number, most);
        let (here, rest) = bytes.split_at(bytes.len().min(packet.capacity()));
        assert!(packet.copy_from(here));
        for piece in rest.chunks(1000) {
            let mut more = pool.alloc().unwrap();
            assert!(more.copy_from(piece));
            packet.append(more);
        }
        burst.push(packet);
    }
    queues.tx.tx_burst(&mut burst) as u32
}

/// Receives frames and checks their content. Returns how many.
fn receive(queues: &mut QueuePair, from: u32, most: usize) -> u32 {
    let mut burst = Burst::new(64);
    let received = queues.rx.rx_burst(&mut burst) as u32;
    assert_eq!(burst.len(), received as usize);
    for (number, packet) in (from..).zip(burst.iter()) {
        let bytes: Vec<u8> = packet.segments().flat_map(|segment| segment.to_vec()).collect();
        assert!(bytes == frame(number, most), "frame {number} of {} bytes", bytes.len());
    }
    received
}

#[test]
fn frames_pass_a_pipe_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let mut region = region(1, 64);
    let hosts = pipe_hosts(folder.path(), &mut region, 64);
    let (pool, config) = (pool(), PortConfig::default());
    let [mut a, mut b] = [0, 1].map(|end: usize| open(&hosts[end].path, &config, &pool).unwrap());
    assert_eq!((a.mac(), b.mac()), (mac(1), mac(2)));
    let [mut one, mut two] = [&mut a, &mut b].map(only);
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let start = Instant::now();
    while received != [10_000; 2] {
        for (way, (from, to)) in [(&mut one, &mut two)].into_iter().enumerate() {
            sent[way] += send(from, &pool, sent[way]..10_000, 1514);
            received[way] += receive(to, received[way], 1514);
            sent[1] += send(to, &pool, sent[1]..10_000, 1514);
            received[1] += receive(from, received[1], 1514);
        }
        assert!(start.elapsed() < LIMIT, "{sent:?} {received:?}");
    }
    for port in [&mut a, &mut b] {
        let stats = port.stats();
        assert_eq!([stats.tx_packets, stats.rx_packets, stats.tx_drops, stats.rx_drops], [10_000, 10_000, 0, 0]);
        assert!(matches!(port.state(), State::Running));
    }
    drop((one, two, a, b));
    for host in hosts {
        let counts = host.counters.get();
        assert_eq!((counts.invalid_positions, counts.peer_faults, counts.creates), (0, 0, 1));
        host.end();
    }
}

/// Long frames take several slots and several buffers of the pool; with several rings, each frame returns on the
/// ring with the same index.
#[test]
fn several_rings_and_long_frames() {
    let folder = tempfile::tempdir().unwrap();
    let mut region = region(4, 256);
    let (server, port, wake) = served(&mut region, 4, 256);
    let host = Host::new(folder.path(), "card", shared(&region, 3), port, wake);
    let stop = Arc::new(AtomicBool::new(false));
    let echo = server.echo(stop.clone());
    let pool = pool();
    let config = PortConfig { queues: 4, mtu: 9000, ..Default::default() };
    let mut port = open(&host.path, &config, &pool).unwrap();
    let mut queues = port.take_queues();
    let (mut sent, mut received) = ([0; 4], [0; 4]);
    let start = Instant::now();
    while received != [1000; 4] {
        for (n, queues) in queues.iter_mut().enumerate() {
            sent[n] += send(queues, &pool, sent[n]..1000, 9000);
            received[n] += receive(queues, received[n], 9000);
        }
        assert!(start.elapsed() < LIMIT, "{sent:?} {received:?}");
    }
    drop((queues, port));
    // One queue has all Rx rings; the other Tx rings stay idle.
    let mut port = open(&host.path, &PortConfig::default(), &pool).unwrap();
    let mut queues = only(&mut port);
    let (mut sent, mut received) = (0, 0);
    while received < 1000 {
        sent += send(&mut queues, &pool, sent..1000, 1514);
        received += receive(&mut queues, received, 1514);
        assert!(start.elapsed() < LIMIT, "{sent:?} {received:?}");
    }
    assert!(open(&host.path, &PortConfig { queues: 5, ..config }, &pool).is_err());
    stop.store(true, Ordering::Relaxed);
    echo.join().unwrap();
}

/// All threads on the path sleep; a frame wakes each of them every time.
#[test]
fn sleepers_are_woken() {
    let folder = tempfile::tempdir().unwrap();
    let mut region = region(1, 64);
    let hosts = pipe_hosts(folder.path(), &mut region, 64);
    let pool = pool();
    let [mut a, mut b] = [0, 1].map(|end: usize| open(&hosts[end].path, &PortConfig::default(), &pool).unwrap());
    let (mut one, mut two) = (only(&mut a), only(&mut b));
    let stop = Arc::new(AtomicBool::new(false));
    let its = stop.clone();
    let answering = std::thread::spawn(move || {
        let (mut idle, mut burst) = (Idle::new(false), Burst::new(32));
        while !its.load(Ordering::Relaxed) {
            let received = two.rx.rx_burst(&mut burst);
            two.tx.tx_burst(&mut burst);
            idle.after(received, &mut [&mut *two.rx]);
        }
    });
    let counts = || hosts.each_ref().map(|host| host.counters.get());
    let (mut took, begin) = (Vec::new(), Instant::now());
    // On a busy machine the threads take longer to fall asleep.
    while took.len() < 20 || counts()[0].kicks < 10 || counts()[1].interrupts < 10 {
        assert!(begin.elapsed() < 3 * LIMIT, "{:?}", counts());
        // Longer than they spin, and just after their periodic check.
        std::thread::sleep(Duration::from_millis(110));
        let (start, number) = (Instant::now(), took.len() as u32);
        assert_eq!(send(&mut one, &pool, number..number + 1, 1514), 1);
        one.rx.arm();
        while receive(&mut one, number, 1514) == 0 {
            assert!(start.elapsed() < LIMIT);
            std::thread::yield_now();
        }
        one.rx.disarm();
        took.push(start.elapsed());
    }
    // Threads that are not woken check every 100 ms. Others may be delayed by the scheduler.
    took.sort();
    assert!(took[took.len() / 4] < Duration::from_millis(80), "{took:?}");
    let ([first, second], most) = (counts(), 10 * took.len() as u64);
    assert!(first.kicks <= most && second.interrupts <= most, "{first:?} {second:?}");
    stop.store(true, Ordering::Relaxed);
    answering.join().unwrap();
}

/// When the host goes, the port ends; waits for a missing host are bounded.
#[test]
fn the_host_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut region = region(1, 64);
    let [a, b] = pipe_hosts(folder.path(), &mut region, 64);
    let pool = pool();
    let mut port = open(&a.path, &PortConfig::default(), &pool).unwrap();
    let mut queues = only(&mut port);
    assert_eq!(send(&mut queues, &pool, 0..1, 1514), 1);
    let path = a.path.clone();
    a.end();
    assert!(matches!(port.state(), State::Gone(why) if why.contains("registers")));
    assert!(!port.link().up);
    let start = Instant::now();
    assert_eq!((send(&mut queues, &pool, 1..2, 1514), receive(&mut queues, 0, 1514)), (0, 0));
    drop((queues, port));
    assert!(open(&path, &PortConfig::default(), &pool).is_err() && start.elapsed() < LIMIT);
    drop(b);
}

#[test]
fn what_is_no_port_and_what_has_other_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut region = region(1, 64);
    let hosts = pipe_hosts(folder.path(), &mut region, 64);
    let pool = pool();
    let other = |path: &Path| {
        let (path, config) = (path.to_owned(), PortConfig::default());
        let bus = VfioUser::open(&hosts[0].path).unwrap();
        let find = move |_| Ok(VfioUser::open(&path)? as Arc<dyn PciDevice>);
        PtnetPort::open(bus, &find, "port", &config, &pool).map(drop).unwrap_err().to_string()
    };
    assert!(other(&folder.path().join("nothing")).contains("is a server running there?"));
    let error = other(&hosts[1].path);
    assert!(error.contains("1b36:000d") && !error.contains('\n'), "{error}");
    // Another region, with another number.
    let mut elsewhere = crate::common::region(1, 64);
    let (_, mut port, wake) = served(&mut elsewhere, 1, 64);
    port.memory_id = 9;
    let host = Host::new(folder.path(), "c", shared(&elsewhere, 9), port, wake);
    let error = other(&host.path.with_extension("mem"));
    assert!(error.contains("memory 9, the port 7"), "{error}");
}
