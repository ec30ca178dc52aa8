//! Guests that migrate between two back-ends, while frames flow.

use std::path::Path;
use std::time::Duration;

use ringpass_lab::{Builder, Guest, Migrated, VhostUser, wait_until};

use crate::common::vhost::{file_to, serve, up, with_servers};
use crate::common::{Ended, Namespace, Program, RINGPASS, folder, text, unique};

/// Two switches of ours, with a guest's socket each, on a bridge of the kernel that has an address.
struct Place {
    host: Namespace,
    folder: tempfile::TempDir,
    switches: Vec<Program>,
}

impl Place {
    /// Starts them, with these ports beside the TAP and, given the socket, the port of the guest.
    fn new(port: impl Fn(&Path) -> Vec<String>) -> Self {
        let (host, folder) = (Namespace::new(), folder());
        for command in ["ip link add lan type bridge", "ip address add 198.18.0.1/24 dev lan", "ip link set lan up"] {
            host.run(&command.split(' ').collect::<Vec<_>>());
        }
        let mut place = Self { host, folder, switches: Vec::new() };
        for number in 0..2 {
            let tap = unique("tm");
            let mut command = vec![RINGPASS.to_owned(), "switch".into(), format!("tap:{tap}")];
            command.extend(port(&place.socket(number)));
            command.extend(["--json", "--hugepages", "off"].map(String::from));
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let switch = place.host.spawn(&command);
            wait_until("the switch", || place.socket(number).exists());
            place.host.run(&["ip", "link", "set", &tap, "master", "lan", "up"]);
            place.switches.push(switch);
        }
        place
    }

    fn socket(&self, number: usize) -> std::path::PathBuf {
        self.folder.path().join(["one", "other"][number])
    }

    /// Ends the switches in order.
    fn end(self) {
        for switch in self.switches {
            switch.signal("INT");
            let Ended { status, errors, .. } = switch.wait(Duration::from_secs(60));
            assert_eq!(status, Some(0), "{errors:?}");
        }
    }
}

/// Returns a guest at a socket.
fn guest(device: &str, socket: &Path) -> Builder {
    with_servers(Guest::new()).vhost_user_nic(device, &VhostUser::at(socket))
}

/// A guest goes there and back, with pings and TCP under way. Returns how many pings were lost.
fn goes_there_and_back(device: &str, times: usize) {
    let place = Place::new(|socket| vec![format!("vhost:{}", text(socket))]);
    let mut here = guest(device, &place.socket(0)).boot();
    serve(&here);
    up(&here, 0, 0);
    here.run("ip address flush dev v0; ip address add 198.18.0.2/24 dev v0");
    place.host.run(&["ping", "-c", "1", "-w", "60", "198.18.0.2"]);
    // A program that writes to all of its memory and looks whether that is as it was.
    let patterns = here.spawn("while :; do head -c 20000000 /dev/zero | tr '\\0' 'x' >/run/a; cmp /run/a /run/b 2>/run/wrong || [ ! -s /run/b ] || exit 1; cp /run/a /run/b; done");
    let pings = place.host.spawn(&["ping", "-n", "-i", "0.01", "-p", "5a", "-s", "1000", "198.18.0.2"]);
    let load = place.host.spawn(&["iperf3", "-c", "198.18.0.2", "-t", "1000", "--bitrate", "20M", "--bidir"]);
    let mut downs = Vec::new();
    for number in 1..=times {
        let Migrated { guest: there, down, total } = here.migrate(guest(device, &place.socket(number % 2)));
        here = there;
        assert!(here.running(&patterns), "{number}: {}", here.printed(&patterns));
        println!("{device}: {number}: down for {down:?} of {total:?}");
        downs.push(down);
        file_to(&place.host, "198.18.0.2");
    }
    pings.signal("INT");
    let said = pings.wait(Duration::from_secs(60)).lines.join("\n");
    assert!(!said.contains("wrong data"), "{said}");
    let line = said.lines().find(|line| line.contains("packet loss")).expect("statistics");
    println!("{device}: {line}");
    let count = |word: &str| -> u64 {
        let before = line.split(word).next().expect("statistics").trim_end();
        before.rsplit([' ', ',']).next().expect("a number").parse().expect("a number")
    };
    let lost = count(" packets transmitted") - count(" received");
    assert!(lost <= 40 * times as u64, "{line}");
    // The TCP connections are those of the start.
    let mut load = load;
    assert!(load.ended().is_none(), "iperf3 goes on");
    load.signal("INT");
    let Ended { lines, errors, .. } = load.wait(Duration::from_secs(60));
    assert!(lines.iter().any(|line| line.contains("receiver")), "{lines:?} {errors:?}");
    drop(here);
    place.end();
}

#[test]
fn a_guest_with_split_rings() {
    goes_there_and_back("virtio-net-pci", 4);
}

#[test]
fn a_guest_with_packed_rings() {
    goes_there_and_back("virtio-net-pci,packed=on", 4);
}
