//! Guests that migrate between two back-ends, while frames flow.

use std::path::Path;
use std::time::Duration;

use ringpass_lab::{Builder, Guest, Migrated, VhostUser, nic_mac, wait_until};

use crate::common::vhost::{file_to, serve, up, with_servers};
use crate::common::{Ended, Namespace, Program, RINGPASS, folder, text, unique};

/// Two switches of ours, with a guest's socket each, on a bridge of the kernel that has an address.
struct Place {
    host: Namespace,
    folder: tempfile::TempDir,
    switches: Vec<Program>,
}

impl Place {
    /// Starts them. With `mapped`, cards receive into the guest's buffers.
    fn new(mapped: bool) -> Self {
        let (host, folder) = (Namespace::new(), folder());
        for command in ["ip link add lan type bridge", "ip address add 198.18.0.1/24 dev lan", "ip link set lan up"] {
            host.run(&command.split(' ').collect::<Vec<_>>());
        }
        let mut place = Self { host, folder, switches: Vec::new() };
        for number in 0..2 {
            let (tap, socket) = (unique("tm"), place.socket(number));
            let guest = format!("vhost:{}", text(&socket));
            let card = if mapped { format!("model:tap:{tap}") } else { format!("tap:{tap}") };
            let map = format!("{card}={guest}@{}", nic_mac(0));
            let mut command = vec![RINGPASS, "switch", &card, &guest, "--json", "--hugepages", "off"];
            if mapped {
                command.extend(["--map", &map]);
            }
            let switch = place.host.spawn(&command);
            wait_until("the switch", || socket.exists());
            place.host.run(&["ip", "link", "set", &tap, "master", "lan", "up"]);
            place.switches.push(switch);
        }
        place
    }

    fn socket(&self, number: usize) -> std::path::PathBuf {
        self.folder.path().join(["one", "other"][number])
    }

    /// Gives a guest its servers and its address, and waits until it answers.
    fn settle(&self, guest: &Guest) {
        serve(guest);
        up(guest, 0, 0);
        guest.run("ip address flush dev v0; ip address add 198.18.0.2/24 dev v0");
        self.host.run(&["ping", "-c", "1", "-w", "60", "198.18.0.2"]);
    }

    /// Ends the switches. Returns how many frames of each went into the guest's buffers by themselves.
    fn end(self) -> Vec<u64> {
        let mapped = |switch: Program| {
            let summary = switch.summary();
            summary["ports"][1]["extended"]["mapped_packets"].as_u64().unwrap_or_else(|| panic!("{summary}"))
        };
        self.switches.into_iter().map(mapped).collect()
    }
}

/// Returns a guest at a socket.
fn guest(device: &str, socket: &Path) -> Builder {
    with_servers(Guest::new()).vhost_user_nic(device, &VhostUser::at(socket))
}

/// Returns how many pings were sent, and how many of them answered.
fn counts(said: &str) -> (u64, u64) {
    let line = said.lines().find(|line| line.contains("packet loss")).expect("statistics");
    let count = |word: &str| -> u64 {
        let before = line.split(word).next().expect("statistics").trim_end();
        before.rsplit([' ', ',']).next().expect("a number").parse().expect("a number")
    };
    (count(" packets transmitted"), count(" received"))
}

/// A guest goes there and back, with pings and TCP under way.
fn goes_there_and_back(device: &str, mapped: bool, times: usize) {
    let place = Place::new(mapped);
    let mut here = guest(device, &place.socket(0)).boot();
    place.settle(&here);
    // A program that writes to all of its memory and looks whether that is as it was.
    let patterns = here.spawn(
        "fill() { head -c 20000000 /dev/zero | tr '\\0' x; }
         fill >/run/b
         while fill >/run/a; do
             cmp /run/a /run/b 2>&1 || { ls -l /run/a /run/b; cmp -l /run/a /run/b | head -20; exit 1; }
             cp /run/a /run/b || exit 2
         done; echo it failed",
    );
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
    let (sent, received) = counts(&said);
    println!("{device}: {} of {sent} pings lost", sent - received);
    // On a busy machine the guest stands still for longer than it takes to migrate.
    assert!(received > sent / 2, "{sent} {received}");
    // The TCP connections are those of the start.
    let mut load = load;
    assert!(load.ended().is_none(), "iperf3 goes on");
    load.signal("INT");
    let Ended { lines, errors, .. } = load.wait(Duration::from_secs(60));
    assert!(lines.iter().any(|line| line.contains("receiver")), "{lines:?} {errors:?}");
    drop(here);
    let into_buffers = place.end();
    assert!(into_buffers.iter().all(|&count| (count > 0) == mapped), "{into_buffers:?}");
}

#[test]
fn a_guest_with_split_rings() {
    goes_there_and_back("virtio-net-pci", false, 6);
}

#[test]
fn a_guest_with_packed_rings() {
    goes_there_and_back("virtio-net-pci,packed=on", false, 6);
}

/// Its buffers are lent to cards before and after each migration.
#[test]
fn a_mapped_guest() {
    goes_there_and_back("virtio-net-pci", true, 4);
    goes_there_and_back("virtio-net-pci,packed=on", true, 4);
}

/// A migration that fails, and one in whose middle the guest is killed: it goes on where it is, and the next one is served.
#[test]
fn migrations_that_come_to_nothing() {
    come_to_nothing(false);
    come_to_nothing(true);
}

fn come_to_nothing(mapped: bool) {
    let place = Place::new(mapped);
    let first = guest("virtio-net-pci", &place.socket(0)).boot();
    place.settle(&first);
    for _ in 0..3 {
        first.migrate_in_vain();
        let (sent, received) =
            counts(&place.host.run(&["ping", "-n", "-q", "-c", "100", "-i", "0.01", "-w", "60", "198.18.0.2"]));
        // Frames that are in lent buffers when lending begins or ends may be lost, and some on a busy machine.
        assert!(sent - received <= 10, "{sent} {received}");
        file_to(&place.host, "198.18.0.2");
    }
    first.begin_migration("sleep 100");
    file_to(&place.host, "198.18.0.2");
    drop(first);
    let second = guest("virtio-net-pci,packed=on", &place.socket(0)).boot();
    place.settle(&second);
    file_to(&place.host, "198.18.0.2");
    // From there it goes to the other.
    let Migrated { guest: second, .. } = second.migrate(guest("virtio-net-pci,packed=on", &place.socket(1)));
    file_to(&place.host, "198.18.0.2");
    drop(second);
    place.end();
}
