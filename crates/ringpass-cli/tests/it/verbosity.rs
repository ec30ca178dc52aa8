//! Tests of all that a run prints besides its results: notes, notices, the log.

use std::time::Duration;

use crate::common::{Program, RINGPASS, ringpass, wait_until};
use ringpass_lab::Ended;

/// Longest line of notes, for ports with short names.
const WIDTH: usize = 100;

/// Frames would show up in the statistics; these ports have none.
const FWD: [&str; 5] = ["fwd", "model:null", "null", "--time", "0.1"];

#[test]
fn a_start_takes_few_short_lines() {
    let directory = tempfile::tempdir().expect("a folder");
    let socket = directory.path().join("s").display().to_string();
    let guest = format!("vhost:{socket},client");
    for ports in [["null", "null"], ["model:null", "null"], [&guest, "null"]] {
        let (status, out, errors) = ringpass(&["fwd", ports[0], ports[1], "--json", "--time", "0.1"]);
        assert_eq!(status, Some(0), "{errors}");
        let notes: Vec<&str> = errors.lines().filter(|line| !line.contains("huge pages")).collect();
        assert!((1..=4).contains(&notes.len()), "{errors}");
        assert!(errors.lines().all(|line| line.chars().count() <= WIDTH || line.contains(&socket)), "{errors}");
        assert!(errors.lines().filter(|line| line.contains("huge pages")).count() <= 1, "{errors}");
        assert_eq!(out.lines().count(), 1, "only the summary: {out}");
    }
}

#[test]
fn a_quiet_run_prints_its_summary_alone() {
    let quiet = [&FWD[..], &["-q", "--json"]].concat();
    let (status, out, errors) = ringpass(&quiet);
    assert_eq!((status, errors.as_str(), out.lines().count()), (Some(0), "", 1), "{out}");
    // Its statistics would come ten times a second.
    let (status, out, errors) = ringpass(&["--quiet", "fwd", "null", "null", "-t", "0.4", "--interval", "0.1"]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    assert!(out.starts_with("0.4 s in all"), "{out}");
    let (status, _, errors) = ringpass(&["fwd", "null", "null", "-q", "-v"]);
    assert!(status == Some(2) && errors.contains("cannot be used with"), "{errors}");
}

#[test]
fn a_verbose_run_prints_all_notes() {
    let directory = tempfile::tempdir().expect("a folder");
    let socket = directory.path().join("s");
    let address = |kind: &str| format!("{kind}:{}", socket.display());
    let back_end = Program::spawn(&[RINGPASS, "fwd", &address("vhost"), "null", "--json"]);
    wait_until("the back-end's socket", || socket.exists());
    let run = |more: &[&str]| {
        let (status, _, errors) = ringpass(&[&["echo", &address("virtio-user"), "-t", "0.1", "--json"], more].concat());
        assert_eq!(status, Some(0), "{errors}");
        errors
    };
    let [few, all] = [run(&[]), run(&["-v"])];
    assert!(all.contains("packed rings") && !few.contains("packed rings"), "{few}\n{all}");
    assert!(all.lines().count() > few.lines().count() + 2, "{few}\n{all}");
    back_end.signal("INT");
    let Ended { errors: log, .. } = back_end.wait(Duration::from_secs(60));
    let said = |what: &str| log.iter().filter(|line| line.contains(what)).count();
    assert_eq!((said("a front-end has connected"), said("the session has ended")), (2, 2), "{log:?}");
}

#[test]
fn statistics_come_at_the_interval() {
    let (status, out, errors) = ringpass(&["fwd", "null", "null", "--json", "-t", "1", "--interval", "0.2"]);
    let lines = out.lines().filter(|line| line.contains("\"stats\"")).count();
    assert!(status == Some(0) && (2..=5).contains(&lines), "{out}{errors}");
    let (status, _, errors) = ringpass(&["fwd", "null", "null", "--interval", "0"]);
    assert_eq!((status, errors.trim()), (Some(1), "ringpass: --interval: write a number of seconds above 0"));
}

/// If the run fails at its start, the error is all that is printed.
#[test]
fn notices_do_not_come_before_an_error() {
    let (status, out, errors) = ringpass(&["fwd", "null", "packet:nothing0"]);
    assert_eq!((status, out.as_str(), errors.lines().count()), (Some(1), "", 1), "{errors}");
}
