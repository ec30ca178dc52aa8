//! Whoever of guest and vhost-user back-end is killed, starts anew or changes: the other one goes on, and so does traffic.

mod common;

use std::time::Duration;

use common::folder;
use common::vhost::{Backend, carrier, serve, socket, up, vhost, with_servers};
use ringpass_lab::{Guest, Program, VhostUser, alone, nic_address};
use serde_json::Value;

/// The kinds of cards: how the device and its back-end are started.
const KINDS: [(&str, &str); 3] = [
    ("virtio-net-pci", "--offloads all"),
    ("virtio-net-pci,packed=on", "--offloads all"),
    ("virtio-net-pci,mrg_rxbuf=off,event_idx=off", ""),
];

/// TCP to or from the guest for some seconds, and pings.
struct Load {
    tcp: Program,
    pings: Program,
}

impl Load {
    fn start(backend: &Backend, direction: &str) -> Self {
        let guest = backend.guest();
        let tcp = backend.host.spawn(&["iperf3", "-c", &guest, "-t", "8", "-i", "1", "-J", direction]);
        let pings = backend.host.spawn(&["ping", "-i", "0.05", "-w", "8", &guest]);
        // It is under way.
        for _ in 0..10 {
            pings.line();
        }
        Self { tcp, pings }
    }

    /// Both have gone on to their end; returns how many pings were lost.
    fn end(self) -> u64 {
        let (_, lines, errors) = self.tcp.wait(Duration::from_secs(30));
        let text = lines.join("\n");
        let result: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {errors:?}"));
        let seconds = result["intervals"].as_array().expect("intervals");
        let last = seconds.last().and_then(|second| second["sum"]["bits_per_second"].as_f64());
        assert!(last > Some(1e5), "no TCP at the end: {text}");
        let (_, lines, _) = self.pings.wait(Duration::from_secs(20));
        let of = |what: &str| -> u64 {
            let line = lines.iter().find(|line| line.contains("packets transmitted")).expect("a summary");
            let field = line.split(", ").find(|field| field.contains(what)).expect(what);
            field.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
        };
        of("transmitted") - of("received")
    }
}

fn boot(backends: &[(Backend, std::path::PathBuf)]) -> Guest {
    let guest = with_servers(Guest::new().memory(512).cpus(2));
    let nics = KINDS.iter().zip(backends);
    let guest =
        nics.fold(guest, |guest, ((device, _), (_, socket))| guest.vhost_user_nic(device, &VhostUser::at(socket)));
    let guest = guest.boot();
    serve(&guest);
    guest
}

/// Everything passes.
fn works(guest: &Guest, backends: &[(Backend, std::path::PathBuf)]) {
    for (number, (backend, _)) in backends.iter().enumerate() {
        up(guest, number, number as u8);
        backend.works();
    }
}

/// Packets of all sizes pass.
fn passes(guest: &Guest, backends: &[(Backend, std::path::PathBuf)]) {
    for (number, (backend, _)) in backends.iter().enumerate() {
        up(guest, number, number as u8);
        backend.passes();
    }
}

#[test]
fn back_ends_and_guests_that_are_killed_and_start_anew() {
    let _alone = alone();
    let folder = folder();
    let mut backends: Vec<_> = (0..)
        .zip(KINDS)
        .map(|(number, (_, options))| {
            let socket = socket(&folder, number);
            (Backend::new(number, &vhost(&socket), options), socket)
        })
        .collect();
    let guest = boot(&backends);
    works(&guest, &backends);

    // The back-end is killed under traffic, and a new one comes: the guest has nothing to do.
    for (number, direction) in [(0, "-R"), (2, "--forceflush")] {
        let backend = &mut backends[number].0;
        let load = Load::start(backend, direction);
        backend.kill();
        guest.run(&carrier(number as u8, 0));
        backend.start();
        let lost = load.end();
        eprintln!("{}: back-end killed under TCP ({direction}), {lost} pings lost", KINDS[number].0);
        backend.pings(100, 1000);
    }
    // QEMU does not know where the back-end was in a packed ring: the driver has to begin anew.
    backends[1].0.kill();
    guest.run(&carrier(1, 0));
    backends[1].0.start();
    guest.run(&carrier(1, 1));

    // The driver goes and comes, under traffic.
    for (number, (backend, _)) in backends.iter().enumerate() {
        let card = nic_address(number);
        let _pings = backend.flood();
        guest.run(&format!("cd /sys/bus/pci/drivers/virtio-pci; echo {card} >unbind; echo {card} >bind"));
        up(&guest, number, number as u8);
        backend.first_ping();
        backend.pings(100, 1000);
    }

    // The wire is pulled, and plugged in again.
    let backend = &backends[0].0;
    guest.monitor("set_link nic0 off");
    guest.run(&carrier(0, 0));
    let silent = backend.host.spawn(&["ping", "-c", "2", "-i", "0.2", "-W", "0.5", &backend.guest()]);
    assert_eq!(silent.wait(Duration::from_secs(10)).0, Some(1), "no answers without a link");
    guest.monitor("set_link nic0 on");
    guest.run(&carrier(0, 1));
    backend.first_ping();

    eprintln!("the guest boots anew, and then one is killed; back-ends stay, and packets come all the time");
    let pings: Vec<_> = backends.iter().map(|(backend, _)| backend.flood()).collect();
    guest.reboot();
    serve(&guest);
    passes(&guest, &backends);
    drop(guest);
    let guest = boot(&backends);
    passes(&guest, &backends);
    drop(pings);
    drop(guest);
    for (backend, _) in backends {
        let (summary, log) = backend.end();
        eprintln!("{log}\n{}", summary["ports"][1]);
    }
}
