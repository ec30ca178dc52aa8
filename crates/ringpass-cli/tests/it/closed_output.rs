//! Standard output and standard error without a reader: the program never panics, whatever it prints.

use std::io::{BufRead, BufReader, Read, pipe};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{RINGPASS, folder, text};
use ringpass_host_ports::capture_file::{Direction, Reader, Writer};

/// Returns the write end of a pipe whose read end is closed.
fn closed() -> Stdio {
    pipe().expect("a pipe").1.into()
}

/// Runs a command to its end, which must come within a time limit.
fn run(arguments: &[&str], out: Stdio, errors: Stdio) -> Output {
    let mut command = Command::new(RINGPASS);
    let mut child =
        command.args(arguments).env("RUST_LOG", "trace").stdout(out).stderr(errors).spawn().expect("it starts");
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("{arguments:?} goes on without a reader");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("it has ended")
}

/// Creates a capture file of `frames` frames, one second apart, starting 1 s after the epoch.
fn capture(path: &std::path::Path, frames: u64) {
    let mut writer = Writer::create(path).unwrap();
    for number in 0..frames {
        let nanos = (1 + number) * 1_000_000_000;
        writer.write(nanos, Direction::Received, &[7; 60]).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn nobody_reads_standard_error() {
    let folder = folder();
    let [file, lost] = ["a.pcap", "lost.pcap"].map(|name| folder.path().join(name));
    capture(&file, 100);
    std::os::unix::fs::symlink("/dev/full", &lost).unwrap();
    let dump = format!("pcap:{}", text(&file));
    let lost = format!("capture,file={}:null", text(&lost));
    for (arguments, status) in [
        (&["dump", &dump][..], 0),
        (&["fwd", &dump, "null", "--json"], 0),
        (&["fwd", &dump, "null", "--hugepages", "off"], 0),
        // Errors of three origins: Ringpass's own, clap's, and one that another thread logs.
        (&["fwd", "nothing", "null"], 1),
        (&["fwd", "null"], 2),
        (&["fwd", &dump, &lost], 1),
        (&["--help"], 0),
        (&["list"], 0),
    ] {
        let output = run(arguments, Stdio::piped(), closed());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {:?}", output.status);
    }
}

#[test]
fn nobody_reads_standard_output() {
    let folder = folder();
    let file = folder.path().join("a.pcap");
    capture(&file, 10_000);
    let dump = format!("pcap:{}", text(&file));
    // Ends silently with 128 + 13, like a program that SIGPIPE has ended.
    for arguments in [&["dump", &dump][..], &["dump", &dump, "--json"], &["dump", &dump, "-w", "-"], &["doctor"]] {
        for errors in [Stdio::piped(), closed()] {
            let output = run(arguments, closed(), errors);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(141), "{arguments:?}: {errors}");
            assert!(!errors.contains("panicked") && !errors.contains("ringpass: "), "{arguments:?}: {errors}");
        }
    }
    // If standard output is not a pipe, an error in one line instead.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = run(&["dump", &dump], full.into(), Stdio::piped());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.lines().last().is_some_and(|line| line.contains("No space left")), "{errors}");
}

/// `dump … 2>&1 | head -1`.
#[test]
fn a_reader_that_has_seen_enough_ends_the_run() {
    let folder = folder();
    let file = folder.path().join("a.pcap");
    capture(&file, 10);
    let (reader, writer) = pipe().unwrap();
    let address = format!("pcap:{},loop=0,speed=10", text(&file));
    let mut child = Command::new(RINGPASS)
        .args(["dump", &address])
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(reader.take(1 << 16)).read_line(&mut line).unwrap();
    assert!(!line.is_empty());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("it goes on without a reader");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(141), "{status:?}");
}

/// The time that is printed and written for a recorded frame is the time of its recording.
#[test]
fn a_dump_of_a_capture_has_its_times() {
    let folder = folder();
    let [file, copy] = ["a.pcapng", "b.pcapng"].map(|name| folder.path().join(name));
    capture(&file, 5);
    for address in [format!("pcap:{}", text(&file)), format!("capture,file=/dev/null:pcap:{}", text(&file))] {
        let output = run(&["dump", &address], Stdio::piped(), Stdio::null());
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let seconds: Vec<f64> = lines.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        assert_eq!(seconds, [0.0, 1.0, 2.0, 3.0, 4.0], "{lines}");
        let output = run(&["dump", &address, "--json"], Stdio::piped(), Stdio::null());
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let events = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let nanos: Vec<u64> = events.filter_map(|event| event["nanos"].as_u64()).collect();
        assert_eq!(nanos, [1, 2, 3, 4, 5].map(|second| second * 1_000_000_000), "{lines}");
        let status = run(&["dump", &address, "-w", text(&copy)], Stdio::null(), Stdio::null()).status;
        assert!(status.success());
        let (mut reader, mut times) = (Reader::open(&copy).unwrap(), Vec::new());
        while let Some(record) = reader.next().unwrap() {
            times.push(record.nanos);
        }
        assert_eq!(times, nanos);
    }
}
