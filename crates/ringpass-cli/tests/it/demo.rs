//! The summary that `ringpass demo` prints at its end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::RINGPASS;
use rustix::process::{Pid, Signal, kill_process};

/// A child process that is killed when dropped, if the test has not ended it.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the number before a unit of packets per second, in packets.
fn rate(line: &str) -> f64 {
    let words: Vec<&str> = line.split([' ', ';']).collect();
    let unit = words.iter().position(|word| word.ends_with("pps")).unwrap_or_else(|| panic!("no rate: {line}"));
    let scale = match words[unit] {
        "pps" => 1.0,
        "kpps" => 1e3,
        "Mpps" => 1e6,
        other => panic!("{other}"),
    };
    words[unit - 1].replace(',', "").parse::<f64>().expect("a number") * scale
}

/// A demo that Ctrl-C ends long before its time computes its rates from the time that has passed.
#[test]
fn an_interrupted_demo_says_the_rate_of_the_time_that_has_passed() {
    // Kills the demo even if an assertion fails.
    let mut demo = Command::new(RINGPASS);
    demo.args(["demo", "--hugepages", "off", "-t", "120"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut demo = Ended(demo.spawn().expect("the demo starts"));
    let mut lines = BufReader::new(demo.0.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let find = |mut lines: &mut dyn Iterator<Item = String>, what: &str| {
        (&mut lines).find(|line| line.contains(what)).unwrap_or_else(|| panic!("no '{what}'"))
    };
    find(&mut lines, "cycles per packet");
    kill_process(Pid::from_child(&demo.0), Signal::INT).expect("it runs");
    let summary = find(&mut lines, "s in all");
    let seconds: f64 = summary.split_whitespace().next().and_then(|word| word.parse().ok()).expect("seconds");
    assert!(seconds < 100.0, "{summary}");
    // The packets sent by both cards are those that were forwarded, except some that were in flight.
    let sent: f64 = (0..2).map(|_| rate(&find(&mut lines, " tx "))).sum();
    let forwarded = rate(&find(&mut lines, "Forwarded"));
    assert!((forwarded / sent - 1.0).abs() < 0.1, "forwarded {forwarded} a second, sent {sent}, in {seconds} s");
}
