//! Tests that a port survives the kill of its driver's process at any moment and serves the next one.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{pipe_hosts, region};
use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_pci::{PciDevice, VfioUser};
use ringpass_port::{Port, PortConfig, QueuePair, State};
use ringpass_ptnet::driver::PtnetPort;

const LIMIT: Duration = Duration::from_secs(20);
/// Environment variables of the process to be killed: the port's socket, and the number of its first frame.
const PORT: &str = "RINGPASS_TEST_PORT";
const FIRST: &str = "RINGPASS_TEST_FIRST";
/// Largest number of frames of one process.
const EACH: u32 = 1 << 24;

fn open(path: &Path, pool: &Mempool) -> Result<(PtnetPort, QueuePair), ringpass_port::Error> {
    let memory = path.with_extension("mem");
    let memory = |_| Ok(VfioUser::open(&memory)? as Arc<dyn PciDevice>);
    let mut port = PtnetPort::open(VfioUser::open(path)?, &memory, "port", &PortConfig::default(), pool)?;
    let queues = port.take_queues().pop().unwrap();
    Ok((port, queues))
}

/// Opens the port as [`open`] does, retrying until the previous process is gone.
fn open_soon(path: &Path, pool: &Mempool) -> (PtnetPort, QueuePair) {
    let start = Instant::now();
    loop {
        match open(path, pool) {
            Ok(opened) => return opened,
            Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
        }
    }
}

/// Fills a frame with its number, repeated in each 32-bit word.
fn fill(packet: &mut ringpass_memory::Packet, number: u32) {
    packet.set_len(60 + 4 * (number as usize % 300));
    (0..packet.len() / 4).for_each(|word| packet.write(4 * word, &number.to_le_bytes()));
}

fn number(packet: &[u8]) -> u32 {
    let number = u32::from_le_bytes(packet[..4].try_into().unwrap());
    assert_eq!(packet.len(), 60 + 4 * (number as usize % 300), "frame {number}");
    assert!(packet.chunks_exact(4).all(|word| word == number.to_le_bytes()), "frame {number} is torn");
    number
}

/// Sends frames with numbers from `next` on. Returns the number after the last.
fn send(queues: &mut QueuePair, pool: &Mempool, next: u32) -> u32 {
    let mut burst = Burst::new(32);
    pool.cache().alloc(&mut burst);
    (next..).zip(burst.iter_mut()).for_each(|(number, packet)| fill(packet, number));
    next + queues.tx.tx_burst(&mut burst) as u32
}

/// The process to be killed; not a test by itself.
#[test]
fn process_to_be_killed() {
    let Some(path) = std::env::var_os(PORT) else { return };
    let pool = Mempool::new(&MempoolConfig::default()).unwrap();
    let (_port, mut queues) = open_soon(Path::new(&path), &pool);
    let mut next: u32 = std::env::var(FIRST).unwrap().parse().unwrap();
    let mut burst = Burst::new(64);
    loop {
        next = send(&mut queues, &pool, next);
        queues.rx.rx_burst(&mut burst);
        burst.iter().for_each(|packet| _ = number(&packet.to_vec()));
        burst.clear();
    }
}

#[test]
fn a_process_is_killed_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = pipe_hosts(folder.path(), &mut region(1, 128), 128);
    let pool = Mempool::new(&MempoolConfig::default()).unwrap();
    let (mut port, mut queues) = open(&hosts[0].path, &pool).unwrap();
    let (mut burst, mut sent, mut arrived) = (Burst::new(64), 0, 0);
    // Number of the next frame expected from the current process.
    let mut expected: Option<u32> = None;
    let mut move_frames = |queues: &mut QueuePair| {
        sent = send(queues, &pool, sent) % EACH;
        let received = queues.rx.rx_burst(&mut burst);
        for packet in burst.iter() {
            let number = number(&packet.to_vec());
            if let Some(expected) = expected.filter(|expected| expected / EACH == number / EACH) {
                assert_eq!(number, expected, "in order, once, without a gap");
            } else {
                assert_eq!(number % EACH, 0, "a process's first");
            }
            expected = Some(number + 1);
        }
        burst.clear();
        received
    };
    const KILLS: u32 = 40;
    for kill in 1..=KILLS {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::process_to_be_killed", "--nocapture"])
            .env(PORT, &hosts[1].path)
            .env(FIRST, (kill * EACH).to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Every second process is allowed to send first; some of the others are killed before they are ready.
        let (mut start, mut received) = (Instant::now(), 0);
        while kill % 2 == 0 && received == 0 {
            received += move_frames(&mut queues);
            assert!(start.elapsed() < LIMIT, "process {kill} sends nothing");
        }
        start = if received > 0 { Instant::now() } else { start };
        let life = Duration::from_micros(2500) * (kill * 7 % 32);
        while start.elapsed() < life {
            received += move_frames(&mut queues);
        }
        arrived += u32::from(received > 0);
        process.kill().unwrap();
        assert_eq!(process.wait().unwrap().signal(), Some(9), "it has found nothing wrong");
    }
    assert!(arrived >= KILLS / 2, "frames of {arrived} processes");
    assert!(matches!(port.state(), State::Running));
    // The next process finds the port in order: none of its frames is lost, and it receives what was sent to it.
    let (mut last, mut others) = open_soon(&hosts[1].path, &pool);
    let (mut next, first) = ((KILLS + 1) * EACH, (KILLS + 1) * EACH);
    let (start, mut received, mut got) = (Instant::now(), 0, 0);
    let mut burst = Burst::new(64);
    while received < 5000 || got < 5000 {
        next = send(&mut others, &pool, next);
        received += move_frames(&mut queues);
        got += others.rx.rx_burst(&mut burst);
        burst.iter().for_each(|packet| _ = number(&packet.to_vec()));
        burst.clear();
        assert!(start.elapsed() < LIMIT, "{received} received, {got} got, {} sent", next - first);
    }
    assert!(matches!((port.state(), last.state()), (State::Running, State::Running)));
    drop((port, queues, last, others));
    for host in hosts {
        let counts = host.counters.get();
        assert_eq!((counts.invalid_positions, counts.peer_faults), (0, 0));
        host.end();
    }
}
