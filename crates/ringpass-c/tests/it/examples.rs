//! The examples as C programs that are linked to the library, on models and files, and under valgrind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ringpass_lab::{Ended, Program, run, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A folder with the library under the names that it is installed by, the examples, and a capture file.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        let library = ringpass_lab::built("libringpass_c.so");
        for name in ["libringpass.so", "libringpass.so.0"] {
            symlink(&library, folder.0.path().join(name)).expect("a link");
        }
        for example in ["forward", "count"] {
            let (output, here) = (folder.path(example), folder.path(""));
            let source = format!("{HERE}/examples/{example}.c");
            let include = format!("-I{HERE}/include");
            let warnings = ["-Wall", "-Wextra", "-Werror", "-g"];
            let link = [&format!("-L{here}"), "-lringpass", &format!("-Wl,-rpath,{here}")];
            run(&[&["cc"][..], &warnings, &[&include, "-o", &output, &source], &link].concat());
        }
        fs::write(folder.0.path().join("in.pcap"), capture(&frames())).expect("a capture file");
        folder
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("text").to_owned()
    }

    fn start(&self, example: &str, ports: &[&str]) -> Program {
        Program::spawn(&[&[self.path(example).as_str()][..], ports].concat())
    }

    /// Starts an example under valgrind, whose findings become exit code 9.
    fn check(&self, example: &str, ports: &[&str]) -> Program {
        let valgrind = ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=all"];
        let kinds = "--errors-for-leak-kinds=definite,indirect,possible";
        Program::spawn(&[&valgrind[..], &[kinds, "--num-callers=40", &self.path(example)], ports].concat())
    }
}

/// Frames of two EtherTypes and several lengths.
fn frames() -> Vec<Vec<u8>> {
    let frame = |index: usize| {
        let ether_type = if index.is_multiple_of(3) { [0x08, 0x06] } else { [0x88, 0xb5] };
        [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &ether_type, &vec![index as u8; 46 + index]].concat()
    };
    (0..300).map(frame).collect()
}

/// The `count` example's output for these frames.
fn expected() -> Value {
    let of = |ether_type: [u8; 2]| {
        let frames: Vec<_> = frames().into_iter().filter(|frame| frame[12..14] == ether_type).collect();
        json!({"packets": frames.len(), "bytes": frames.iter().map(Vec::len).sum::<usize>()})
    };
    json!({"0x0806": of([0x08, 0x06]), "0x88b5": of([0x88, 0xb5])})
}

fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let word = |value: usize| (value as u32).to_le_bytes();
    let header = [0xa1b2_c3d4_usize, 0x0004_0002, 0, 0, 65535, 1].map(word).concat();
    let record = |frame: &Vec<u8>| [[1, 0, frame.len(), frame.len()].map(word).concat(), frame.clone()].concat();
    [header, frames.iter().flat_map(record).collect()].concat()
}

/// Returns what `tcpdump` reads from a capture file: a line for each frame, without the time.
fn read(file: &str) -> Vec<String> {
    run(&["tcpdump", "-r", file, "-t", "-xx", "-nn"]).lines().map(str::to_owned).collect()
}

fn ends_well(program: Program) -> Vec<String> {
    let Ended { status, lines, errors } = program.wait(LIMIT);
    assert_eq!(status, Some(0), "{errors:#?}");
    lines
}

fn parse(lines: &[String]) -> Value {
    serde_json::from_str(lines.last().expect("a line")).expect("JSON")
}

#[test]
fn frames_of_a_file_are_counted_by_ether_type() {
    let folder = Folder::new();
    let address = format!("pcap:{}", folder.path("in.pcap"));
    assert_eq!(parse(&ends_well(folder.start("count", &[&address]))), expected());
    assert_eq!(parse(&ends_well(folder.check("count", &[&address]))), expected());
}

#[test]
fn frames_are_forwarded_from_file_to_file() {
    let folder = Folder::new();
    for (run, name) in [(Folder::start as fn(&_, &_, &[&str]) -> _, "a.pcap"), (Folder::check, "b.pcap")] {
        let (from, to) = (format!("pcap:{}", folder.path("in.pcap")), format!("pcap:,out={}", folder.path(name)));
        let lines = ends_well(run(&folder, "forward", &[&from, &to]));
        assert_eq!(
            lines,
            [format!("{from}: received 300, sent 0"), format!("pcap:{}: received 0, sent 300", folder.path(name))]
        );
        assert_eq!(read(&folder.path(name)), read(&folder.path("in.pcap")));
    }
}

#[test]
fn idle_models_end_on_a_signal() {
    let folder = Folder::new();
    for run in [Folder::start as fn(&_, &_, &[&str]) -> _, Folder::check] {
        let program = run(&folder, "forward", &["model:null", "model,device=1041:null"]);
        program.wait_for_stderr("forward: model");
        program.signal("INT");
        assert_eq!(ends_well(program), ["model:null: received 0, sent 0"; 2]);
    }
}

/// Whether a process handles SIGINT.
fn handles_interrupts(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(caught.trim(), 16).is_ok_and(|caught| caught & 2 != 0)
}

/// One program's model sends into a vhost-user socket, at whose other end a virtio driver of the other program receives.
#[test]
fn frames_pass_from_a_model_to_another_program() {
    let folder = Folder::new();
    let (file, socket) = (folder.path("in.pcap"), folder.path("socket"));
    let sender = folder.start("forward", &[&format!("pcap:{file},loop=0"), &format!("model:vhost:{socket}")]);
    wait_until("the socket", || Path::new(&socket).exists());
    let receiver = folder.start("count", &[&format!("virtio-user:{socket}")]);
    wait_until("the receiver's handler", || handles_interrupts(receiver.id()));
    std::thread::sleep(Duration::from_secs(1));
    receiver.signal("INT");
    let counts = parse(&ends_well(receiver));
    sender.signal("INT");
    ends_well(sender);
    for ether_type in ["0x0806", "0x88b5"] {
        assert!(counts[ether_type]["packets"].as_u64().is_some_and(|packets| packets > 0), "{counts}");
    }
    assert_eq!(counts.as_object().map(|counts| counts.len()), Some(2), "{counts}");
}

#[test]
fn errors_are_one_line() {
    let folder = Folder::new();
    for (port, text) in [("tapp:x", "no such kind of port"), ("pcap:/nothing/here", "/nothing/here")] {
        let output = Command::new(folder.path("count")).arg(port).output().expect("the example");
        let text_of = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text_of.lines().count() == 1 && text_of.contains(text), "{text_of}");
    }
}
