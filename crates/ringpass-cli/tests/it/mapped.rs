//! Rx queue mapping between processes: the kernel's packets arrive at a software card, which writes them into
//! the buffers of another process, whose port is virtio-user. Either process may be killed.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::*;
use serde_json::Value;

/// `a` has a TAP on a card's wire, `b` has one behind the process that the card receives for.
struct Mapped {
    a: Namespace,
    b: Namespace,
    middle: Namespace,
    taps: [String; 2],
    socket: PathBuf,
    /// The process of the software card and its socket, if a separate process serves it.
    model: Option<(Program, PathBuf)>,
    back_end: Option<Program>,
    front_end: Option<Program>,
    _folder: tempfile::TempDir,
}

/// Process in which the card's model runs: in the back-end or in a separate process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Played {
    Inside,
    Outside,
}

impl Mapped {
    fn new(played: Played) -> Self {
        let (a, b, middle, folder) = (Namespace::new(), Namespace::new(), Namespace::new(), folder());
        let (taps, socket) = ([unique("tma"), unique("tmb")], folder.path().join("guest"));
        let model = (played == Played::Outside).then(|| {
            let card = folder.path().join("card");
            let wire = format!("tap:{}", taps[0]);
            let model = middle.spawn(&[RINGPASS, "model", "82599", "--json", "--socket", text(&card), "--wire", &wire]);
            wait_until("the model's first line", || !model.line().is_empty());
            (model, card)
        });
        let (back_end, front_end) = (None, None);
        let mut mapped = Self { a, b, middle, taps, socket, model, back_end, front_end, _folder: folder };
        mapped.start_back_end();
        mapped.start_front_end();
        mapped.address();
        mapped
    }

    fn start_back_end(&mut self) {
        let card = match &self.model {
            None => format!("model:tap:{}", self.taps[0]),
            Some((_, socket)) => format!("vfio-user:{}", socket.display()),
        };
        let guest = format!("vhost:{}", self.socket.display());
        let program = self.middle.spawn(&[RINGPASS, "fwd", "--map", &card, &guest, "--json"]);
        wait_until("the back-end's first line", || !program.line().is_empty());
        self.back_end = Some(program);
    }

    fn start_front_end(&mut self) {
        let (guest, tap) = (format!("virtio-user:{}", self.socket.display()), format!("tap:{}", self.taps[1]));
        let program = self.middle.spawn(&[RINGPASS, "fwd", &guest, &tap, "--json"]);
        wait_until("the front-end's first line", || !program.line().is_empty());
        self.front_end = Some(program);
    }

    /// Moves the TAPs to their namespaces, if they are not there yet.
    fn address(&self) {
        let [left, right] = &self.taps;
        for (namespace, tap, address) in [(&self.a, left, "198.18.0.1/24"), (&self.b, right, "198.18.0.2/24")] {
            if !succeeds(namespace, &["ip", "link", "show", tap]) {
                namespace.take(&self.middle, tap, address);
            }
        }
        self.a.neighbour(left, "198.18.0.2", &self.b.mac(right));
        self.b.neighbour(right, "198.18.0.1", &self.a.mac(left));
    }

    /// Sends pings. Only the first ones may be lost, while sessions begin.
    fn ping(&self) {
        wait_until("the first ping", || succeeds(&self.a, &["ping", "-c1", "-W1", "198.18.0.2"]));
        flood(&self.a, &self.taps[0], "198.18.0.2", 2000, &["-s", "900"]);
    }

    /// Ends the back-end and returns the counters of the guest's port.
    fn end(mut self) -> Value {
        let mut summary = self.back_end.take().expect("it runs").summary();
        summary["ports"][1].take()
    }
}

fn count(port: &Value, name: &str) -> u64 {
    let found = port.get(name).unwrap_or(&port["extended"][name]);
    found.as_u64().unwrap_or_else(|| panic!("no {name}: {port}"))
}

/// Returns whether a command in a namespace succeeds.
fn succeeds(namespace: &Namespace, command: &[&str]) -> bool {
    let output = Command::new("ip").args(["netns", "exec", &namespace.0]).args(command).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn frames_lie_in_the_other_processs_buffers() {
    for played in [Played::Inside, Played::Outside] {
        let mapped = Mapped::new(played);
        mapped.ping();
        let port = mapped.end();
        let (sent, uncopied) = (count(&port, "tx_packets"), count(&port, "mapped_packets"));
        assert!(sent > 2000 && uncopied > sent * 9 / 10, "{port}");
    }
}

#[test]
fn either_process_may_be_killed_and_comes_back() {
    let mut mapped = Mapped::new(Played::Inside);
    mapped.ping();
    for _ in 0..3 {
        drop(mapped.front_end.take());
        std::thread::sleep(Duration::from_millis(50));
        mapped.start_front_end();
        mapped.address();
        mapped.ping();
    }
    let port = mapped.end();
    assert_eq!(count(&port, "sessions"), 4, "{port}");
    assert!(count(&port, "mapped_packets") > 4 * 1900, "{port}");
}
