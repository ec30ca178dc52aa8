//! Tests of capture files as ports.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_host_ports::Pcap;
use ringpass_host_ports::capture_file::{Direction, Reader, Writer, now};
use ringpass_memory::{Burst, MAX_BATCH};
use ringpass_port::{PcapConfig, Port, PortConfig, ReplaySpeed, State};
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::tempdir().expect("a folder for a test")
}

/// Writes frames `gap` nanoseconds apart.
fn write(path: &Path, frames: &[Vec<u8>], gap: u64) {
    let mut writer = Writer::create(path).expect("a capture file is made");
    for (i, frame) in frames.iter().enumerate() {
        writer.write(1_000_000_000_000 + i as u64 * gap, Direction::Sent, frame).expect("a record is written");
    }
    writer.finish().expect("the file is finished");
}

fn read(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(path).expect("the file opens");
    let mut frames = Vec::new();
    while let Some(record) = reader.next().expect("a sound file") {
        frames.push(record.bytes.to_vec());
    }
    frames
}

fn open(config: PcapConfig) -> Pcap {
    Pcap::open(&config, &PortConfig::default(), &pool()).expect("the port opens")
}

fn input(path: &Path) -> PcapConfig {
    PcapConfig { input: Some(path.into()), repeat: 1, ..Default::default() }
}

/// Receives until the port has finished or is gone.
fn receive_all(port: &mut Pcap) -> Vec<Vec<u8>> {
    let mut queues = queues(port);
    let mut frames = Vec::new();
    poll_until("the end of the file", || {
        frames.extend(receive(&mut queues));
        !matches!(port.state(), State::Running)
    });
    assert_eq!(receive(&mut queues).len(), 0);
    frames
}

#[test]
fn from_one_file_to_another_byte_for_byte() {
    let directory = directory();
    let frames = frames(10_000);
    for (from, to) in [("in.pcap", "out.pcap"), ("in.pcapng.zst", "out.pcapng.gz")] {
        let (from, to) = (directory.path().join(from), directory.path().join(to));
        write(&from, &frames, 1);
        let begin = now();
        let mut port = open(PcapConfig { output: Some(to.clone()), ..input(&from) });
        let mut queues = queues(&mut port);
        let mut burst = Burst::new(32);
        poll_until("the end of the file", || {
            let received = queues.rx.rx_burst(&mut burst);
            assert_eq!(queues.tx.tx_burst(&mut burst), received);
            matches!(port.state(), State::Finished)
        });
        drop(queues);
        assert!(matches!(port.state(), State::Finished));
        let stats = port.stats();
        let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        assert_eq!((stats.rx_packets, stats.rx_bytes, stats.rx_drops), (10_000, bytes, 0));
        assert_eq!((stats.tx_packets, stats.tx_bytes, stats.tx_drops), (10_000, bytes, 0));
        assert!(read(&to) == frames);
        let mut reader = Reader::open(&to).expect("the file opens");
        let first = reader.next().expect("a sound file").expect("a record").nanos;
        assert!((begin..=now()).contains(&first));
    }
}

#[test]
fn input_is_repeated() {
    let directory = directory();
    for (name, count) in [("x.pcap", 3), ("x.pcapng.gz", 3), ("x.pcap.zst", 3000)] {
        let path = directory.path().join(name);
        write(&path, &frames(count), 1);
        let mut port = open(PcapConfig { repeat: 3, ..input(&path) });
        assert!(receive_all(&mut port) == [frames(count), frames(count), frames(count)].concat());
        assert!(matches!(port.state(), State::Finished));
        assert_eq!((port.stats().rx_packets, port.stats().rx_drops), (3 * count as u64, 0));

        let mut port = open(PcapConfig { repeat: 0, ..input(&path) });
        let mut queues = queues(&mut port);
        let mut received = 0;
        poll_until("ten thousand packets", || {
            received += receive(&mut queues).len();
            received > 10_000
        });
        assert!(matches!(port.state(), State::Running));
    }
}

#[test]
fn a_file_without_a_frame_to_deliver_ends_even_if_repeated_for_ever() {
    let directory = directory();
    let path = directory.path().join("x.pcap");
    for (frames, drops) in [(vec![], 0), (vec![vec![1; 13], frame(1, 1515)], 2)] {
        write(&path, &frames, 1);
        let mut port = open(PcapConfig { repeat: 0, ..input(&path) });
        assert_eq!(receive_all(&mut port).len(), 0);
        assert!(matches!(port.state(), State::Finished));
        assert_eq!((port.stats().rx_packets, port.stats().rx_drops), (0, drops));
    }
}

#[test]
fn recorded_gaps_are_kept_and_scaled() {
    const GAP: u64 = 20_000_000;
    let directory = directory();
    let path = directory.path().join("x.pcap");
    write(&path, &frames(6), GAP);
    for (factor, gap) in [(1.0, 20), (4.0, 5), (0.5, 40)] {
        let mut port = open(PcapConfig { speed: ReplaySpeed::Recorded(factor), repeat: 2, ..input(&path) });
        let start = Instant::now();
        let mut queues = queues(&mut port);
        let mut burst = Burst::new(MAX_BATCH);
        let mut times = Vec::new();
        while times.len() < 12 && start.elapsed() < Duration::from_secs(10) {
            let before = start.elapsed();
            for _ in 0..queues.rx.rx_burst(&mut burst) {
                times.push((before, start.elapsed()));
            }
            burst.clear();
        }
        // No packet comes before its time; each pass starts the clock again.
        let start_of = [times[0].0, times[6].0];
        for (i, &(_, time)) in times.iter().enumerate() {
            let (pass, position) = (i / 6, i as u32 % 6);
            let due = start_of[pass] + Duration::from_millis(gap) * position;
            assert!(time >= due, "packet {i} came at {time:?}, before {due:?}");
        }
    }
}

#[test]
fn a_truncated_file_delivers_what_it_has_and_is_gone() {
    let directory = directory();
    let path = directory.path().join("x.pcap");
    write(&path, &frames(10), 1);
    let whole = std::fs::read(&path).expect("the file was written");
    std::fs::write(&path, &whole[..whole.len() - 1]).expect("the file is cut");
    let mut port = open(input(&path));
    assert_eq!(receive_all(&mut port), frames(9));
    let State::Gone(why) = port.state() else { panic!("not gone") };
    assert!(why.contains("truncated at byte") && why.contains("after packet 9"), "{why}");
}

#[test]
fn a_full_disk_makes_the_port_gone_and_loses_no_buffer() {
    let pool = pool();
    let mut port = open(PcapConfig { output: Some("/dev/full".into()), ..Default::default() });
    let mut at_port = queues(&mut port);
    poll_until("the disk to be full", || {
        send(&mut at_port, &pool, &frames(100));
        matches!(port.state(), State::Gone(_))
    });
    send(&mut at_port, &pool, &frames(100));
    let State::Gone(why) = port.state() else { panic!("not gone") };
    assert!(why.contains("No space left"), "{why}");
    assert!(port.stats().tx_drops >= 100);
    drop(at_port);
    assert_eq!(pool.outstanding(1), 0);

    // The error may also occur when the file is finished.
    let mut port = open(PcapConfig { output: Some("/dev/full".into()), ..Default::default() });
    let mut at_port = queues(&mut port);
    send(&mut at_port, &pool, &frames(1));
    assert!(matches!(port.state(), State::Running));
    drop(at_port);
    assert!(matches!(port.state(), State::Gone(_)));
}

#[test]
fn frames_that_do_not_pass_and_wrong_configurations() {
    let directory = directory();
    let (path, out) = (directory.path().join("x.pcap"), directory.path().join("y.pcap"));
    write(&path, &[frame(1, 60), vec![1; 13], frame(2, 1515), frame(3, 1514)], 1);
    let mut port = open(PcapConfig { output: Some(out.clone()), ..input(&path) });
    let mut at_port = queues(&mut port);
    assert_eq!(receive_exactly(&mut at_port, 2), [frame(1, 60), frame(3, 1514)]);
    send(&mut at_port, &pool(), &[frame(1, 1515), frame(2, 60)]);
    drop(at_port);
    assert_eq!(read(&out), [frame(2, 60)]);
    assert_eq!((port.stats().rx_drops, port.stats().tx_drops), (2, 1));

    let error =
        |config: PcapConfig, port: PortConfig| Pcap::open(&config, &port, &pool()).map(drop).expect_err("").to_string();
    let one = PortConfig::default();
    let same = PcapConfig { output: Some(path.clone()), ..input(&path) };
    assert!(error(same, one).contains("the same file"));
    assert_eq!(read(&path).len(), 4, "the input is untouched");
    assert!(error(input(&path), PortConfig { queues: 2, ..one }).contains("--queues"));
    assert!(error(input(Path::new("/nowhere")), one).contains("/nowhere: there is no such file"));
    // Opening a FIFO that nobody writes to would wait for ever.
    let fifo = directory.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).expect("a FIFO");
    assert!(error(input(&fifo), one).contains("/fifo: no regular file"));
    assert!(error(input(directory.path()), one).contains("no regular file"));
}
