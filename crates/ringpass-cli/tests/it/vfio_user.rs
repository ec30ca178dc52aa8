//! Software cards in one process, their driver in another: the kernel's traffic through both, and the effect of
//! the end of either process.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_lab::Ended;
use ringpass_pci::registers::ixgbe::STATUS;
use ringpass_pci::{PciDevice, VfioUser};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);

/// Two namespaces with a TAP each, at the far ends of the wires of two served cards.
struct Cards {
    a: Namespace,
    b: Namespace,
    model: Program,
    middle: Namespace,
    sockets: [PathBuf; 2],
    taps: [String; 2],
    _folder: tempfile::TempDir,
}

impl Cards {
    fn new(options: &[&str]) -> Self {
        let (a, b, middle) = (Namespace::new(), Namespace::new(), Namespace::new());
        let folder = folder();
        let sockets = ["a", "b"].map(|name| folder.path().join(name));
        let taps = [unique("tva"), unique("tvb")];
        let wires = taps.each_ref().map(|tap| format!("tap:{tap}"));
        let mut command = vec![RINGPASS, "model", "82599", "--json"];
        for (socket, wire) in sockets.iter().zip(&wires) {
            command.extend(["--socket", text(socket), "--wire", wire]);
        }
        let model = middle.spawn(&[&command[..], options].concat());
        wait_until("the model's first line", || !model.line().is_empty());
        a.take(&middle, &taps[0], "198.18.0.1/24");
        b.take(&middle, &taps[1], "198.18.0.2/24");
        a.neighbour(&taps[0], "198.18.0.2", &b.mac(&taps[1]));
        b.neighbour(&taps[1], "198.18.0.1", &a.mac(&taps[0]));
        Self { a, b, model, middle, sockets, taps, _folder: folder }
    }

    /// Starts Ringpass's driver between the two cards.
    fn forward(&self) -> Program {
        let [a, b] = self.sockets.each_ref().map(|socket| format!("vfio-user:{}", socket.display()));
        // On huge pages, a second connection is made where another test takes them meanwhile.
        let forwarder = self.middle.spawn(&[RINGPASS, "fwd", &a, &b, "--json", "--hugepages", "off"]);
        // Frames that arrive before the cards receive are counted by the kernel only.
        wait_until("the forwarder's first line", || !forwarder.line().is_empty());
        wait_until("the first ping", || {
            let ping =
                Command::new("ip").args(["netns", "exec", &self.a.0, "ping", "-c1", "-W1", "198.18.0.2"]).output();
            ping.is_ok_and(|output| output.status.success())
        });
        forwarder
    }

    fn ping(&self, count: u32) {
        flood(&self.a, &self.taps[0], "198.18.0.2", count, &[]);
    }
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name}: {value}"))
}

#[test]
fn the_kernels_packets_pass_between_processes() {
    let cards = Cards::new(&[]);
    let forwarder = cards.forward();
    cards.ping(5000);
    let sent = [
        (cards.a.counter(&cards.taps[0], "tx_packets"), cards.a.counter(&cards.taps[0], "tx_bytes")),
        (cards.b.counter(&cards.taps[1], "tx_packets"), cards.b.counter(&cards.taps[1], "tx_bytes")),
    ];
    let forwarder = forwarder.summary();
    let model = cards.model.summary();
    for (i, (packets, bytes)) in sent.into_iter().enumerate() {
        let (port, card) = (&forwarder["ports"][i], &model["cards"][i]);
        assert!(packets > 5000);
        // Counters of the kernel, the card and the driver.
        for side in [port, card] {
            assert_eq!((count(side, "rx_packets"), count(side, "rx_bytes")), (packets, bytes), "{side}");
            assert_eq!((count(side, "tx_packets"), count(side, "tx_bytes")), (sent[1 - i].0, sent[1 - i].1), "{side}");
        }
        assert_eq!((count(port, "rx_drops"), count(card, "dma_faults"), count(card, "clients")), (0, 0, 1));
    }
}

#[test]
fn a_driver_that_is_killed_makes_room_for_the_next() {
    let cards = Cards::new(&[]);
    for _ in 0..3 {
        let forwarder = cards.forward();
        cards.ping(200);
        forwarder.signal("KILL");
        drop(forwarder);
    }
    cards.forward().summary();
    let model = cards.model.summary();
    assert_eq!((count(&model["cards"][0], "clients"), count(&model["cards"][1], "clients")), (4, 4));
}

/// Connects clients that send noise, incomplete messages and floods.
fn pester(socket: &Path, stop: &AtomicBool, clients: &AtomicU32) {
    let noise = noise(4096);
    let version = [0, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    // A posted write of four bytes to a register.
    let header = [0, 0, 10, 0, 36, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0];
    let posted = [&header[..], &[0, 0x50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, 2, 3, 4]].concat();
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut client) = UnixStream::connect(socket) else { continue };
        client.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let number = clients.fetch_add(1, Ordering::Relaxed) as usize;
        let begin = noise.len() / 7 * (number % 6);
        let what = match number % 4 {
            0 => noise[begin..].to_vec(),
            1 => version[..begin % 20].to_vec(),
            2 => [&version[..], &posted.repeat(1000)].concat(),
            _ => [&version[..], &noise[begin..]].concat(),
        };
        // Fails when the server has closed the connection.
        let _ = client.write_all(&what);
    }
}

#[test]
fn a_hostile_client_of_one_card_costs_the_others_no_frame() {
    let folder = folder();
    let third = folder.path().join("third");
    let cards = Cards::new(&["--socket", text(&third), "--wire", "null"]);
    let forwarder = cards.forward();
    let (stop, clients) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let stop_at_the_end = Stop(&stop);
        scope.spawn(|| pester(&third, &stop, &clients));
        cards.ping(2000);
        // Some of these sessions take a while to end.
        wait_until("ten hostile clients", || {
            cards.ping(100);
            clients.load(Ordering::Relaxed) > 10
        });
        drop(stop_at_the_end);
    });
    wait_until("the third card for a good client", || VfioUser::open(&third).is_ok());
    let drops = forwarder.summary()["ports"][0]["rx_drops"].as_u64();
    assert_eq!((drops, count(&cards.model.summary()["cards"][0], "clients")), (Some(0), 1));
}

/// A client that writes registers without pause gets its share of the server's thread, and no more.
#[test]
fn a_flood_of_one_card_does_not_starve_the_other() {
    let cards = Cards::new(&[]);
    let header = [0, 0, 10, 0, 36, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0];
    let posted = [&header[..], &[0, 0x50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, 2, 3, 4]].concat();
    let mut flooding = UnixStream::connect(&cards.sockets[0]).unwrap();
    flooding.set_write_timeout(Some(LIMIT)).unwrap();
    flooding.write_all(&[0, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]).unwrap();
    let card = VfioUser::open(&cards.sockets[1]).unwrap().window().unwrap();
    let (stop, writes) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                flooding.write_all(&posted.repeat(1000)).expect("the server takes them");
                writes.fetch_add(1000, Ordering::Relaxed);
            }
        });
        let stop_at_the_end = Stop(&stop);
        let written = || writes.load(Ordering::Relaxed);
        wait_until("the flood", || written() > 0);
        let (start, before, mut reads) = (Instant::now(), written(), 0);
        // Both go on: a flood that stands still shows nothing about the reads.
        while (reads < 50 || written() - before < 2000) && start.elapsed() < LIMIT {
            reads += u32::from(card.read(STATUS) != u32::MAX);
        }
        let (took, flooded) = (start.elapsed(), written() - before);
        drop(stop_at_the_end);
        assert!(took < Duration::from_secs(5), "{reads} reads and {flooded} writes in {took:?}");
    });
}

#[test]
fn a_model_that_is_killed_is_a_card_that_is_gone() {
    let cards = Cards::new(&[]);
    let forwarder = cards.forward();
    cards.model.signal("KILL");
    let Ended { status, errors, .. } = forwarder.wait(LIMIT);
    assert_eq!(status, Some(1));
    assert!(errors.iter().any(|line| line.contains("the card is gone")), "{errors:?}");
}

#[test]
fn a_model_ends_as_told_and_leaves_no_socket() {
    for signal in ["INT", "TERM"] {
        let folder = folder();
        let socket = folder.path().join("card");
        let model = Program::spawn(&[
            RINGPASS,
            "model",
            "82599",
            "--socket",
            text(&socket),
            "--wire",
            "null",
            "--json",
            "--no-sandbox",
        ]);
        wait_until("the model's first line", || !model.line().is_empty());
        // With a client connected that sends nothing.
        let client = UnixStream::connect(&socket).unwrap();
        model.signal(signal);
        let Ended { status, lines, errors } = model.wait(LIMIT);
        assert_eq!(status, Some(0), "{errors:?}");
        assert!(lines.last().unwrap().contains("\"event\":\"summary\""));
        assert!(!socket.exists(), "the socket is left");
        drop(client);
    }
}

#[test]
fn bad_input_gets_one_line() {
    let folder = folder();
    let refused = |arguments: &[&str], parts: &[&str]| {
        let (status, _, errors) = ringpass(arguments);
        let line = errors.lines().last().unwrap_or_default();
        assert!(status == Some(1) && line.starts_with("ringpass: "), "{arguments:?}: {errors}");
        parts.iter().for_each(|part| assert!(line.contains(part), "{arguments:?}: no '{part}' in: {line}"));
    };
    let path = folder.path().join("card");
    let card = text(&path);
    let model = ["model", "82599", "--socket", card];
    refused(&[&model[..], &["--wire", "null", "--wire", "null"]].concat(), &["1 sockets, 2 wires", "each card"]);
    refused(&[&model[..], &["--wire", "nothing"]].concat(), &["no kind of port", "packet:nothing"]);
    refused(&["fwd", &format!("vfio-user:{card}"), "null"], &[card, "is a server running there"]);
    refused(&["fwd", "vfio-user:", "null"], &["vfio-user:PATH"]);
    std::fs::write(&path, "precious").unwrap();
    refused(&[&model[..], &["--wire", "null"]].concat(), &[card, "not a socket"]);
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    refused(&[&model[..], &["--wire", "null"]].concat(), &[card, "served by another process"]);
    // A server that accepts and never replies.
    refused(&["fwd", &format!("vfio-user:{card}"), "null"], &["has not answered within 5 s"]);
    drop(listener);
}
