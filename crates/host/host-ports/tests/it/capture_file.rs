//! Tests of capture files: written and read back, read by tcpdump, damaged in every way.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::*;
use proptest::prelude::*;
use ringpass_host_ports::capture_file::{Direction, Reader, Writer};
use tempfile::TempDir;

const ENDINGS: [&str; 6] = ["pcap", "pcapng", "pcap.gz", "pcapng.gz", "pcap.zst", "pcapng.zst"];

/// Timestamp and content of a record.
type Packet = (u64, Vec<u8>);

/// Returns all records of a file, and the error that ended reading, if any.
fn read(path: &Path) -> (Vec<Packet>, Option<String>) {
    let mut packets = Vec::new();
    let error = Reader::open(path).and_then(|mut reader| {
        while let Some(record) = reader.next()? {
            packets.push((record.nanos, record.bytes.to_vec()));
        }
        Ok(())
    });
    (packets, error.err().map(|error| error.to_string()))
}

fn write(path: &Path, packets: &[Packet]) {
    let mut writer = Writer::create(path).expect("a capture file is made");
    for (i, (nanos, bytes)) in packets.iter().enumerate() {
        let direction = if i % 2 == 0 { Direction::Received } else { Direction::Sent };
        writer.write(*nanos, direction, bytes).expect("a record is written");
    }
    writer.finish().expect("the file is finished");
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a folder for a test")
}

/// Returns records with timestamps that use every digit.
fn packets(count: usize) -> Vec<Packet> {
    let time = |i: usize| 1_790_000_000_123_456_789 + i as u64 * 1_000_000_007;
    frames(count).into_iter().enumerate().map(|(i, frame)| (time(i), frame)).collect()
}

#[test]
fn every_format_comes_back_byte_for_byte_and_again_after_rewinding() {
    let directory = directory();
    for ending in ENDINGS {
        // A few packets fit into the reader's buffer, many do not.
        for packets in [packets(0), packets(1), packets(100), packets(5000)] {
            let path = directory.path().join(format!("x.{ending}"));
            write(&path, &packets);
            assert!(read(&path) == (packets.clone(), None), "{ending}");
            let mut reader = Reader::open(&path).expect("the file opens");
            for pass in 0..3 {
                for (nanos, bytes) in &packets {
                    let record = reader.next().expect("a sound file").expect("as many records as were written");
                    assert!((record.nanos, record.bytes, record.original_len) == (*nanos, bytes, bytes.len()));
                }
                assert_eq!(reader.next().expect("a sound file"), None, "{ending}, pass {pass}");
                assert_eq!(reader.next().expect("a sound file"), None);
                reader.rewind().expect("a file can be read again");
            }
        }
    }
}

/// Runs a program on a file and stores its output in another.
fn filter(command: &[&str], from: &Path, to: &Path) {
    let out = fs::File::create(to).expect("a file for the output");
    let status = Command::new(command[0]).args(&command[1..]).arg(from).stdout(out).stderr(Stdio::null()).status();
    let status = status.unwrap_or_else(|error| panic!("this test needs the program {}: {error}", command[0]));
    assert!(status.success(), "{command:?}");
}

#[test]
fn tcpdump_reads_what_is_written_and_its_files_are_read() {
    let directory = directory();
    let packets = packets(1000);
    for (ending, unpack) in [
        ("pcap", None),
        ("pcapng", None),
        ("pcap.gz", Some(["gzip", "-dc"])),
        ("pcapng.gz", Some(["gzip", "-dc"])),
        ("pcap.zst", Some(["zstd", "-dcq"])),
        ("pcapng.zst", Some(["zstd", "-dcq"])),
    ] {
        let mut path = directory.path().join(format!("x.{ending}"));
        write(&path, &packets);
        if let Some(command) = unpack {
            let plain = directory.path().join("plain");
            filter(&command, &path, &plain);
            path = plain;
        }
        let (nanos, micros) = (directory.path().join("nanos.pcap"), directory.path().join("micros.pcap"));
        filter(&["tcpdump", "--time-stamp-precision=nano", "-w", "-", "-r"], &path, &nanos);
        filter(&["tcpdump", "-w", "-", "-r"], &path, &micros);
        assert!(read(&nanos) == (packets.clone(), None), "{ending}");
        let rounded = packets.iter().map(|(nanos, bytes)| (nanos / 1000 * 1000, bytes.clone())).collect();
        assert!(read(&micros) == (rounded, None), "{ending}");
    }
}

#[test]
fn files_packed_by_gzip_and_zstd_are_read() {
    let directory = directory();
    let (plain, packed) = (directory.path().join("x.pcap"), directory.path().join("packed"));
    write(&plain, &packets(500));
    for command in [["gzip", "-c"], ["zstd", "-cq"]] {
        filter(&command, &plain, &packed);
        assert!(read(&packed) == (packets(500), None), "{command:?}");
    }
}

#[test]
fn directions_are_written_to_pcapng() {
    let directory = directory();
    let path = directory.path().join("x.pcapng");
    write(&path, &packets(2));
    let bytes = fs::read(&path).expect("the file was written");
    // After a section header of 28 bytes and an interface description of 32.
    let first = &bytes[60..];
    let length = u32::from_le_bytes(first[4..8].try_into().expect("four bytes")) as usize;
    let flags = |block: &[u8]| block[block.len() - 16..block.len() - 8].to_vec();
    assert_eq!(flags(&first[..length]), [2, 0, 4, 0, 1, 0, 0, 0]);
    assert_eq!(flags(first), [2, 0, 4, 0, 2, 0, 0, 0]);
}

/// Returns numbers as a machine of the other byte order writes them.
fn big_endian(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn file(directory: &TempDir, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join("x");
    // Truncating a file makes some file systems wait for the disk.
    let _ = fs::remove_file(&path);
    fs::write(&path, bytes).expect("a file is written");
    path
}

#[test]
fn the_other_byte_order_is_read() {
    let directory = directory();
    let mut pcap = big_endian(&[0xa1b2_c3d4, 2 << 16 | 4, 0, 0, 65535, 1, 7, 5, 4, 9]);
    pcap.extend([1, 2, 3, 4]);
    assert_eq!(read(&file(&directory, &pcap)), (vec![(7_000_005_000, vec![1, 2, 3, 4])], None));

    // A section, an unknown block, an interface (microseconds), an obsolete, a simple and an enhanced packet
    // block.
    let mut pcapng = big_endian(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1 << 16, u32::MAX, u32::MAX, 28]);
    pcapng.extend(big_endian(&[99, 16, 0, 16, 1, 20, 1 << 16, 3, 20]));
    pcapng.extend(big_endian(&[2, 36, 0, 0, 5, 2, 60, 0x0102_0000, 36]));
    pcapng.extend(big_endian(&[3, 20, 60, 0x0304_0500, 20]));
    pcapng.extend(big_endian(&[6, 36, 0, 1, 0, 4, 4, 0x0607_0809, 36]));
    let expected = vec![(5000, vec![1, 2]), (0, vec![3, 4, 5]), ((1 << 32) * 1000, vec![6, 7, 8, 9])];
    assert_eq!(read(&file(&directory, &pcapng)), (expected, None));
    // A second section, in this machine's byte order.
    let more = directory.path().join("more.pcapng");
    write(&more, &packets(1));
    pcapng.extend(fs::read(&more).expect("the file was written"));
    assert_eq!(read(&file(&directory, &pcapng)).0[3..], packets(1));
}

#[test]
fn a_truncated_file_gives_its_packets_and_then_says_where_it_ends() {
    let directory = directory();
    let packets = packets(6);
    for ending in ["pcap", "pcapng"] {
        let path = directory.path().join(format!("x.{ending}"));
        write(&path, &packets);
        let whole = fs::read(&path).expect("the file was written");
        let mut most = 0;
        for len in 0..whole.len() {
            let (read, error) = read(&file(&directory, &whole[..len]));
            assert!(packets.starts_with(&read) && (most..=most + 1).contains(&read.len()));
            most = read.len();
            if let Some(error) = error {
                let expected = if len == 0 { "empty".into() } else { format!("after packet {}", read.len()) };
                assert!(error.contains(&expected) && !error.contains('\n'), "{len} bytes: {error}");
            }
        }
        assert!(read(&file(&directory, &whole[..whole.len() - 1])).1.is_some_and(|error| error.contains("truncated")));
    }
    for ending in ["pcap.gz", "pcap.zst"] {
        let path = directory.path().join(format!("x.{ending}"));
        write(&path, &packets);
        let whole = fs::read(&path).expect("the file was written");
        for len in 4..whole.len() {
            let (read, error) = read(&file(&directory, &whole[..len]));
            assert!(packets.starts_with(&read));
            assert!(error.is_some_and(|error| error.contains("truncated")), "{ending}, {len} of {} bytes", whole.len());
        }
    }
}

#[test]
fn what_is_no_ethernet_capture_is_refused_in_one_line() {
    let directory = directory();
    let pcap = |version: u32, link: u32| big_endian(&[0xa1b2_c3d4, version << 16 | 4, 0, 0, 65535, link]);
    let mut raw_ip = big_endian(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1 << 16, u32::MAX, u32::MAX, 28]);
    raw_ip.extend(big_endian(&[1, 20, 101 << 16, 0, 20]));
    for (bytes, hint) in [
        (b"".to_vec(), "is empty"),
        (b"#!/bin/sh\nexit".to_vec(), "pcap or pcapng is needed"),
        (pcap(2, 101), "link type 101; Ethernet (1) is needed"),
        (pcap(3, 1), "version 3"),
        (raw_ip, "link type 101; Ethernet (1) is needed"),
    ] {
        let path = file(&directory, &bytes);
        let error = Reader::open(&path).map(drop).expect_err(hint).to_string();
        assert!(error.contains(hint) && error.contains("/x: ") && !error.contains('\n'), "{error}");
    }
    let missing = Reader::open(Path::new("/nowhere/x.pcap")).map(drop).expect_err("no such file").to_string();
    assert!(missing.contains("/nowhere/x.pcap: there is no such file"), "{missing}");
    let missing = Writer::create(Path::new("/nowhere/x.pcap")).map(drop).expect_err("no such folder").to_string();
    assert!(missing.contains("/nowhere/x.pcap: there is no such file"), "{missing}");
}

#[test]
fn a_full_disk_is_an_error() {
    let directory = directory();
    for ending in ENDINGS {
        let path = directory.path().join(format!("full.{ending}"));
        std::os::unix::fs::symlink("/dev/full", &path).expect("a link");
        let mut writer = Writer::create(&path).expect("the file opens");
        let mut noise = 1u64;
        let failed = (0..2000).find_map(|_| {
            let frame: Vec<u8> = (0..1000)
                .map(|_| {
                    noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (noise >> 56) as u8
                })
                .collect();
            writer.write(0, Direction::Sent, &frame).err()
        });
        let error = failed.expect("writing fails").to_string();
        assert!(error.contains("No space left"), "{error}");
        let mut writer = Writer::create(&path).expect("the file opens");
        writer.write(0, Direction::Sent, &[0; 60]).expect("it is buffered");
        assert!(writer.finish().expect_err("finishing fails").to_string().contains("No space left"));
    }
}

/// Reads any bytes: no panic, no hang, and no more data than the file can hold.
fn survives(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a file for a test");
    file.write_all(bytes).expect("a file is written");
    let (packets, error) = read(file.path());
    assert!(packets.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() <= bytes.len());
    assert!(error.is_none_or(|error| !error.contains('\n')));
}

fn sound(ending: &str) -> Vec<u8> {
    let directory = directory();
    let path = directory.path().join(format!("x.{ending}"));
    write(&path, &packets(12));
    fs::read(path).expect("the file was written")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_bytes_behind_a_header_are_survived(
        start in prop::sample::select(vec![
            vec![],
            sound("pcap")[..24].to_vec(),
            sound("pcapng")[..28].to_vec(),
            sound("pcapng")[..60].to_vec(),
            big_endian(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1 << 16, u32::MAX, u32::MAX, 28]),
        ]),
        words in prop::collection::vec(
            prop_oneof![0..8u32, (0..20u32).prop_map(|n| n * 4), any::<u32>(), Just(0x0a0d_0d0a), Just(0x1a2b_3c4d)],
            0..200,
        ),
        rest in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        survives(&start.into_iter().chain(words).chain(rest).collect::<Vec<u8>>());
    }

    #[test]
    fn sound_files_with_some_wrong_bytes_are_survived(
        file in prop::sample::select(vec![sound("pcap"), sound("pcapng")]),
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut file = file;
        wrong.iter().for_each(|(at, byte)| {
            let at = at.index(file.len());
            file[at] = *byte;
        });
        file.truncate(cut.index(file.len()) + 1);
        survives(&file);
    }

    #[test]
    fn damaged_compression_is_survived(
        file in prop::sample::select(vec![sound("pcap.gz"), sound("pcap.zst")]),
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut file = file;
        let at = 4 + at.index(file.len() - 4);
        file[at] = byte;
        let mut damaged = tempfile::NamedTempFile::new().expect("a file for a test");
        damaged.write_all(&file).expect("a file is written");
        let (_, error) = read(damaged.path());
        prop_assert!(error.is_none_or(|error| !error.contains('\n')));
    }

    #[test]
    fn any_packets_come_back(
        packets in prop::collection::vec(
            (0..4_000_000_000_000_000_000u64, prop::collection::vec(any::<u8>(), 0..200)), 0..20,
        ),
        ending in prop::sample::select(ENDINGS.to_vec()),
    ) {
        let directory = directory();
        let path = directory.path().join(format!("x.{ending}"));
        write(&path, &packets);
        prop_assert_eq!(read(&path), (packets, None));
    }
}
