//! A full disk, simulated by a small file system: frames that are counted as sent are in the file, and a
//! program that lost frames reports it by its exit status.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Namespace, RINGPASS, folder, ringpass, text};
use ringpass_host_ports::capture_file::Reader;
use ringpass_lab::Ended;
use serde_json::Value;

/// Runs ringpass with a file system of 1 MiB at a folder, in a mount namespace that ends with it, and copies
/// the files out of it afterwards. Returns the exit status, the summary and the errors.
fn run_on_a_small_disk(arguments: &str) -> (Option<i32>, Value, Vec<String>, tempfile::TempDir) {
    let folder = folder();
    let (disk, kept) = (folder.path().join("disk"), folder.path().join("kept"));
    [&disk, &kept].into_iter().for_each(|path| std::fs::create_dir(path).expect("a folder"));
    let script = format!(
        "mount -t tmpfs -o size=1m none {disk} && cd {disk} && {RINGPASS} {arguments} --json; status=$?; cp {disk}/* {kept}; \
         exit $status",
        disk = text(&disk),
        kept = text(&kept)
    );
    let namespace = Namespace::new();
    let program = namespace.spawn(&["unshare", "--mount", "--propagation", "private", "sh", "-c", &script]);
    let Ended { status, lines, errors } = program.wait(Duration::from_secs(120));
    let objects = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut summaries = objects.filter(|object| object["event"] == "summary");
    (status, summaries.next_back().unwrap_or_else(|| panic!("{lines:?} {errors:?}")), errors, folder)
}

/// Returns the number of frames in a file, which must be intact.
fn frames(path: PathBuf) -> u64 {
    let mut reader = Reader::open(&path).expect("a capture file");
    let mut frames = 0;
    while reader.next().unwrap_or_else(|error| panic!("{}: {error}", path.display())).is_some() {
        frames += 1;
    }
    frames
}

/// Creates a capture file of frames that do not compress.
fn noise(count: usize) -> (tempfile::TempDir, String) {
    use ringpass_host_ports::capture_file::{Direction, Writer};
    let folder = folder();
    let path = folder.path().join("noise.pcap");
    let mut writer = Writer::create(&path).unwrap();
    for (number, frame) in crate::common::noise(count * 1000).chunks(1000).enumerate() {
        writer.write(number as u64, Direction::Received, frame).unwrap();
    }
    writer.finish().unwrap();
    let path = text(&path).to_owned();
    (folder, path)
}

const ENDINGS: [&str; 4] = ["pcap", "pcapng", "pcap.gz", "pcapng.zst"];

#[test]
fn what_is_counted_as_sent_is_in_the_file() {
    let (_folder, noise) = noise(5000);
    for ending in ENDINGS {
        let (status, summary, errors, folder) =
            run_on_a_small_disk(&format!("fwd pcap:{noise},loop=4 pcap:,out=a.{ending}"));
        let count = |what: &str| summary["ports"][1][what].as_u64().unwrap();
        let there = frames(folder.path().join(format!("kept/a.{ending}")));
        assert!(there > 0, "{ending}: nothing is in the file");
        assert_eq!(count("tx_packets"), there, "{ending}: {summary}");
        assert_eq!(count("tx_bytes"), 1000 * there, "{ending}: {summary}");
        assert!(count("tx_drops") > 0, "{ending}: {summary}");
        assert_eq!(status, Some(1), "{ending}: {errors:?}");
        assert!(errors.last().is_some_and(|line| line.contains("No space left")), "{ending}: {errors:?}");
    }
}

#[test]
fn a_capture_that_lost_frames_ends_with_an_error() {
    let (_folder, noise) = noise(5000);
    for ending in ENDINGS {
        let (status, summary, errors, folder) =
            run_on_a_small_disk(&format!("fwd pcap:{noise},loop=4 capture,file=a.{ending}:null"));
        let there = frames(folder.path().join(format!("kept/a.{ending}")));
        // Traffic is not affected, but the file does not hold all that passed.
        let passed = summary["ports"][1]["tx_packets"].as_u64().unwrap();
        assert_eq!((passed, status), (20_000, Some(1)), "{ending}: {errors:?}");
        assert!(there > 0 && there < passed, "{ending}: {there}");
        let said = format!("{} packets are not in a.{ending}", passed - there);
        assert!(errors.last().is_some_and(|line| line.contains(&said)), "{ending}: {said}: {errors:?}");
    }
    // Not more frames than can be queued for the file, which may be slower than the traffic.
    let (_few, noise) = self::noise(2000);
    let folder = folder();
    let file = folder.path().join("b.pcap");
    let (status, _, errors) =
        ringpass(&["fwd", &format!("pcap:{noise}"), &format!("capture,file={}:null", text(&file))]);
    assert_eq!((status, frames(file)), (Some(0), 2000), "with room nothing is lost: {errors}");
}
