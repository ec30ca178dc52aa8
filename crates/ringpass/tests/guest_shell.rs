//! `make lab-shell`, driven as somebody at the terminal would: ixy's applications between two virtio cards.

mod common;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use common::RINGPASS;
use common::guest::alone;
use serde_json::Value;

/// A program on pipes, in place of a terminal.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Receiver<Vec<u8>>,
    /// All that has come.
    text: String,
    /// How much of it was looked at.
    seen: usize,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("lab-shell to start");
        let (keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = out.read(&mut bytes) {
                let _ = sender.send(bytes[..len].to_vec());
            }
        });
        Self { child, keys, screen, text: String::new(), seen: 0 }
    }

    fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("somebody who reads the keys");
    }

    /// Waits until `what` appears behind what was seen before; returns the text up to it.
    fn expect(&mut self, what: &str) -> String {
        let end = Instant::now() + Duration::from_secs(180);
        loop {
            if let Some(at) = self.text[self.seen..].find(what) {
                let from = self.seen;
                self.seen += at + what.len();
                return self.text[from..self.seen].to_owned();
            }
            match self.screen.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.text += &String::from_utf8_lossy(&bytes).replace('\r', ""),
                Err(RecvTimeoutError::Timeout) => panic!("no {what:?} within three minutes:\n{}", self.text),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended without {what:?}:\n{}", self.text),
            }
        }
    }

    /// Runs a command to its end; what it printed.
    fn run(&mut self, command: &str) -> String {
        // Not as in the command, which the terminal shows as well.
        self.keys(&format!("{command}; echo the end: $?\n"));
        let text = self.expect("the end: 0\n");
        // What is typed before the shell asks for it would be shown twice.
        self.expect("guest# ");
        text.split_once("$?\n").expect("the command's echo").1.to_owned()
    }

    /// Ends the guest by its shell's end.
    fn end(mut self) {
        self.keys("exit\n");
        self.expect("The guest ends.");
        let end = Instant::now() + Duration::from_secs(60);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "lab-shell goes on:\n{}", self.text);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(self.child.wait().unwrap().success(), "{}", self.text);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where cargo has put what it built.
fn built() -> &'static Path {
    Path::new(RINGPASS).parent().unwrap()
}

/// A run's summary, which was all that it printed.
fn summary(text: &str) -> Value {
    serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_newcomer_tries_what_the_greeting_says() {
    let _alone = alone();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/lab-shell");
    let mut terminal = Terminal::start(Command::new(script).arg(built()));
    terminal.expect("Try:");
    terminal.expect("guest# ");

    let list = terminal.run("ringpass list");
    assert_eq!(list.matches("yes, as virtio network card").count(), 2, "{list}");
    // Runs end by packets, not by time: how many come in a few seconds is up to the load of the machine. What arrives at a card that
    // nobody forwards: somebody asks who has an address.
    let dump = terminal.run("ringpass dump 0000:00:02.0 -c 1 -t 150 2>/dev/null");
    assert!(dump.contains("ARP") && dump.contains("198.18.0.2"), "{dump}");
    // Forwarded, the pings are answered: half of what passes, but for some questions before the first answer.
    let fwd = "ringpass fwd capture,file=a.pcap:0000:00:02.0 0000:00:03.0 -c 40 -t 150 --json 2>/dev/null | tail -n 1";
    let passed = summary(&terminal.run(fwd));
    assert!([0, 1].iter().all(|&port| passed["ports"][port]["rx_packets"].as_u64() > Some(5)), "{passed}");
    let dump = terminal.run("ringpass dump pcap:a.pcap 2>/dev/null");
    assert!(dump.contains("198.18.0.1") && dump.contains("198.18.0.2") && dump.contains("ICMP"), "{dump}");
    let sent = summary(&terminal.run("ringpass pktgen 0000:00:02.0 -c 5000 --json 2>/dev/null | tail -n 1"));
    assert!(sent["ports"][0]["tx_packets"].as_u64() >= Some(5000), "{sent}");
    // Ctrl-C ends what runs, and not the guest.
    terminal.keys("ringpass fwd 0000:00:02.0 0000:00:03.0\n");
    terminal.expect("drops");
    terminal.keys("\x03");
    terminal.expect("s in all");
    terminal.end();
}

#[test]
fn without_namespaces_the_cards_are_in_qemus_user_networks() {
    let _alone = alone();
    let launcher = built().join("examples/shell");
    assert!(launcher.exists(), "{} is missing; cargo build -p ringpass-lab --example shell", launcher.display());
    let mut terminal = Terminal::start(Command::new(launcher).args([RINGPASS, "user-networks"]));
    terminal.expect("Try:");
    terminal.expect("guest# ");
    terminal.run("ringpass fwd 0000:00:02.0 tap:t0 --json >log 2>&1 &\ntrue");
    terminal.run("until ip link set t0 up 2>/dev/null; do sleep 0.1; done; ip address add 10.0.2.15/24 dev t0");
    let pings = terminal.run("ping -c 5 -w 60 10.0.2.2");
    assert!(pings.contains(" 0% packet loss"), "{pings}");
    terminal.run("kill %1; wait; tail -n 1 log | grep -q summary");
    terminal.end();
}
