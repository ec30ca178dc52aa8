//! Signals: SIGUSR1 asks for statistics, SIGINT ends the run with its summary, and only a later one ends it at once.

use std::time::Duration;

use nix::sys::signal::Signal;
use ringpass_lab::Ended;
use serde_json::Value;

use crate::common::{Program, RINGPASS, folder, ringpass, text, wait_until};

/// Starts a subcommand and waits until it handles a signal.
fn start(arguments: &[&str], signal: Signal) -> Program {
    let program = Program::spawn(&[&[RINGPASS], arguments].concat());
    wait_until("the handler", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() >> (signal as i32 - 1) & 1 == 1
    });
    program
}

/// Returns the next line of a program as JSON.
fn event(program: &Program) -> Value {
    let line = program.line();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn every_subcommand_answers_sigusr1_with_statistics() {
    let folder = folder();
    let path = |name: &str| text(&folder.path().join(name)).to_owned();
    for (arguments, answer) in [
        (&["fwd", "null", "null"][..], "stats"),
        (&["switch", "model:null", "null"], "table"),
        (&["pktgen", "null", "--rate", "10"], "stats"),
        (&["dump", "null"], ""),
        (&["echo", "null"], "stats"),
        (&["ping", "null", "--time", "60"], ""),
        (&["model", "82599", "--socket", &path("card"), "--wire", "null"], ""),
        (&["netmapd", "--socket", &path("netmap")], "stats"),
    ] {
        let program = start(&[arguments, &["--json"]].concat(), Signal::SIGUSR1);
        program.signal("USR1");
        if !answer.is_empty() {
            wait_until("the answer", || event(&program)["event"] == answer);
        }
        program.signal("USR1");
        std::thread::sleep(Duration::from_millis(200));
        program.signal("TERM");
        let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
        let expected = i32::from(arguments[0] == "ping");
        assert_eq!(status, Some(expected), "{arguments:?}: {lines:?} {errors:?}");
    }
}

/// `timeout -s INT` signals the program, and then its process group.
#[test]
fn two_signals_at_once_count_as_one() {
    for _ in 0..10 {
        let program = Program::spawn(&[RINGPASS, "fwd", "model:null", "null"]);
        wait_until("its last note", || program.line().contains("system calls"));
        program.signal("INT");
        program.signal("INT");
        program.signal("TERM");
        let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
        assert_eq!(status, Some(0), "{errors:?}");
        assert!(lines.iter().any(|line| line.contains("in all")), "{lines:?}");
    }
}

/// Peers that do not come, or come and say nothing: a program waits for them for 5 s and longer.
#[test]
fn a_signal_ends_waits_at_the_start() {
    let folder = folder();
    let silent = folder.path().join("silent");
    let listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = format!("virtio-user:{},server", text(&folder.path().join("socket")));
    let [back_end, card] = ["virtio-user:", "vfio-user:"].map(|kind| format!("{kind}{}", text(&silent)));
    for arguments in [
        &["fwd", &server, "null"][..],
        &["fwd", &back_end, "null"],
        &["fwd", &card, "null"],
        &["bridge", "vale0:1", "vale0:2", "--socket", text(&silent)],
    ] {
        let program = Program::spawn(&[&[RINGPASS], arguments].concat());
        // It is in its wait: the socket is there, or somebody has connected to it.
        let mut peer = None;
        wait_until("its wait", || {
            peer = peer.take().or_else(|| listener.accept().ok());
            peer.is_some() || folder.path().join("socket").exists()
        });
        std::thread::sleep(Duration::from_millis(50));
        let start = std::time::Instant::now();
        program.signal("INT");
        let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
        let last = errors.last().map(String::as_str);
        assert_eq!((status, last), (Some(130), Some("ringpass: interrupted")), "{arguments:?}: {lines:?} {errors:?}");
        assert!(start.elapsed() < Duration::from_secs(3), "{arguments:?}: it has waited on");
    }
}

/// The summary of this run has nowhere to go, as nobody empties the pipe.
#[test]
fn a_later_signal_ends_the_program_at_once() {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while std::io::Write::write(&mut &writer, &[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let mut command = std::process::Command::new(RINGPASS);
    command.args(["fwd", "null", "null", "--time", "0.2", "--json"]).stdout(writer);
    let mut program = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    let process = nix::unistd::Pid::from_raw(program.id() as i32);
    wait_until("its handlers, its end, and then a signal", || {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        // Before SIGINT is caught it would end the program by itself.
        if status.contains("SigCgt:\t0000000000000000") || !status.contains("Seccomp:\t2") {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
        nix::sys::signal::kill(process, Signal::SIGINT).unwrap();
        program.try_wait().unwrap().is_some()
    });
    assert_eq!(program.wait().unwrap().code(), Some(130));
    drop(reader);
}

#[test]
fn a_server_prints_json_only() {
    let folder = folder();
    let socket = folder.path().join("netmap");
    let program = Program::spawn(&[RINGPASS, "netmapd", "--socket", text(&socket), "--json"]);
    assert_eq!(event(&program)["socket"], text(&socket));
    program.signal("USR1");
    assert_eq!(event(&program)["pipes"], Value::Array(Vec::new()));
    program.signal("INT");
    let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{errors:?}");
    assert!(lines.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines:?}");
}

/// Runs a subcommand to its end; returns its last event, the summary.
fn summary_of(arguments: &[&str]) -> Value {
    let (status, out, errors) = ringpass(&[arguments, &["--json"]].concat());
    assert_eq!(status, Some(0), "{errors}");
    serde_json::from_str(out.lines().last().expect("a summary")).expect("JSON")
}

#[test]
fn a_count_is_kept_exactly() {
    let folder = folder();
    let capture = folder.path().join("a.pcap");
    let (status, _, errors) = ringpass(&["pktgen", &format!("pcap:,out={}", text(&capture)), "--count", "1000"]);
    assert_eq!(status, Some(0), "{errors}");
    let input = format!("pcap:{},loop=0", text(&capture));
    for count in ["1", "3", "32", "100"] {
        let summary = summary_of(&["fwd", &input, &input, "--count", count]);
        let received = |port: usize| summary["ports"][port]["rx_packets"].as_u64().unwrap();
        assert_eq!((received(0) + received(1)).to_string(), count, "{summary}");
    }
    let summary = summary_of(&["echo", &input, "--count", "5"]);
    assert_eq!(summary["ports"][0]["rx_packets"], 5, "{summary}");
}

#[test]
fn a_rate_is_that_of_the_time_in_which_frames_were_sent() {
    let begin = std::time::Instant::now();
    let summary = summary_of(&["pktgen", "null", "--count", "1000", "--rate", "10k"]);
    let seconds = summary["seconds"].as_f64().unwrap();
    // The generator waits half a second for frames that may come back.
    assert!(seconds >= 0.09 && seconds + 0.4 < begin.elapsed().as_secs_f64(), "{summary}");
}

#[test]
fn a_rate_that_was_missed_is_said_with_its_reason() {
    let program = start(&["pktgen", "null", "--time", "3", "--rate", "10k", "--json"], Signal::SIGUSR1);
    let _first = program.line();
    program.signal("STOP");
    std::thread::sleep(Duration::from_secs(1));
    program.signal("CONT");
    let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{errors:?}");
    let summary: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
    // A tenth of a second is caught up with.
    assert!(summary["missed"].as_u64().is_some_and(|missed| (5_000..30_000).contains(&missed)), "{summary}");
    assert_eq!(summary["missed_because"], "this machine held the workers up");
}
