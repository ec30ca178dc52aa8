//! Guest or vhost-user back-end are killed, restarted or changed: the other side continues, and so does
//! traffic.

use std::time::{Duration, Instant};

use crate::common::vhost::{Backend, carrier, serve, socket, up, vhost, with_servers};
use crate::common::{folder, wait_until};
use ringpass_lab::{Ended, Guest, Program, VhostUser, nic_address};

/// The kinds of cards: options of the device and of its back-end.
const KINDS: [(&str, &str); 3] = [
    ("virtio-net-pci", "--offloads all"),
    ("virtio-net-pci,packed=on", "--offloads all"),
    ("virtio-net-pci,mrg_rxbuf=off,event_idx=off", ""),
];

/// A text that iperf3 prints once for each connection.
const CONNECTED: &str = " connected to ";

/// TCP to or from the guest, and pings, until they are ended.
struct Load {
    tcp: Program,
    connected: Instant,
    pings: Program,
}

impl Load {
    fn start(backend: &Backend, direction: &str) -> Self {
        let guest = backend.guest();
        let client = ["iperf3", "-c", &guest, "-t", "600", "-i", "1", "-f", "k", "--forceflush", direction];
        let mut tcp = backend.host.spawn(&client);
        // The server refuses clients for a moment after the previous one.
        wait_until("the iperf3 server", || {
            while let Some(line) = tcp.line_or_eof() {
                if line.contains(CONNECTED) {
                    return true;
                }
            }
            tcp = backend.host.spawn(&client);
            false
        });
        let connected = Instant::now();
        let pings = backend.host.spawn(&["ping", "-i", "0.05", &guest]);
        // Waits until the pings run.
        for _ in 0..10 {
            pings.line();
        }
        Self { tcp, connected, pings }
    }

    /// Waits until TCP continues on the same connection, and ends both; returns how many pings were lost.
    fn end(self) -> u64 {
        let now = self.connected.elapsed().as_secs_f64();
        wait_until("a second from now on with some TCP", || {
            // For example "[  5]   3.00-4.00   sec  18.4 MBytes  154138 Kbits/sec"; the first line holds the
            // column names.
            let line = self.tcp.line();
            let second = line.split_once(']').and_then(|(_, second)| Some((second.split_once('-')?.0, second)));
            let number = |word: &str| word.trim().parse::<f64>().ok();
            let begin = second.and_then(|(begin, _)| number(begin));
            let rate = second.and_then(|(_, rest)| number(rest.split_once(" Kbits/sec")?.0.split_whitespace().last()?));
            begin > Some(now) && rate > Some(100.0)
        });
        self.tcp.signal("INT");
        self.tcp.wait(Duration::from_secs(60));
        self.pings.signal("INT");
        let Ended { lines, .. } = self.pings.wait(Duration::from_secs(60));
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

/// Asserts that all kinds of traffic pass.
fn works(guest: &Guest, backends: &[(Backend, std::path::PathBuf)]) {
    for (number, (backend, _)) in backends.iter().enumerate() {
        up(guest, number, number as u8);
        backend.works();
    }
}

/// Asserts that packets of all sizes pass.
fn passes(guest: &Guest, backends: &[(Backend, std::path::PathBuf)]) {
    for (number, (backend, _)) in backends.iter().enumerate() {
        up(guest, number, number as u8);
        backend.passes();
    }
}

#[test]
fn back_ends_and_guests_that_are_killed_and_start_anew() {
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

    // The back-end is killed under traffic and a new one starts: nothing has to be done in the guest.
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
    // QEMU does not know the back-end's position in a packed ring, so the driver has to be reloaded.
    backends[1].0.kill();
    guest.run(&carrier(1, 0));
    backends[1].0.start();
    guest.run(&carrier(1, 1));

    // The driver is unbound and bound, under traffic.
    for (number, (backend, _)) in backends.iter().enumerate() {
        let card = nic_address(number);
        let _pings = backend.flood();
        guest.run(&format!("cd /sys/bus/pci/drivers/virtio-pci; echo {card} >unbind; echo {card} >bind"));
        up(&guest, number, number as u8);
        backend.first_ping();
        backend.pings(100, 1000);
    }

    // The cable is unplugged and plugged in again.
    let backend = &backends[0].0;
    guest.monitor("set_link nic0 off");
    guest.run(&carrier(0, 0));
    let silent = backend.host.spawn(&["ping", "-c", "2", "-i", "0.2", "-W", "0.5", &backend.guest()]);
    assert_eq!(silent.wait(Duration::from_secs(60)).status, Some(1), "no answers without a link");
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
