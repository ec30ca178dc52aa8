//! Two guests, a process in its own namespaces as containers have them, and a card on one `ringpass switch`:
//! with copies, and with the card receiving into the buffers of each.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::common::guest::{answered, tcp_by};
use crate::common::vhost::{serve, socket, up, vhost, with_servers};
use crate::common::{Namespace, Program, RINGPASS, folder, run, text, unique, wait_until};
use ringpass_lab::{Builder, Guest, VhostUser};
use serde_json::Value;

/// Stations: the namespace at the card's wire, the guests, the container.
const WIRE: usize = 0;
const GUESTS: [usize; 2] = [1, 2];
const CONTAINER: usize = 3;
const STATIONS: [usize; 4] = [WIRE, GUESTS[0], GUESTS[1], CONTAINER];

fn address(station: usize) -> String {
    format!("198.18.0.{}", 1 + station)
}

fn mac(station: usize) -> String {
    format!("02:00:00:00:04:0{station}")
}

struct Rig {
    switch: Program,
    wire: Namespace,
    guests: [Guest; 2],
    container: Program,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(mapped: bool) -> Self {
        let folder = folder();
        let sockets = [1, 2, 3].map(|station| socket(&folder, station));
        let (wire, tap) = (Namespace::new(), unique("ts"));
        let ports = sockets.each_ref().map(|socket| vhost(socket));
        let card = format!("model:tap:{tap}");
        let maps: Vec<_> =
            ports.iter().zip(1..).map(|(port, station)| format!("{card}={port}@{}", mac(station))).collect();
        let mut switch = vec![RINGPASS, "switch", &card, "--json", "--hugepages", "off"];
        switch.extend(ports.iter().map(String::as_str));
        if mapped {
            switch.extend(maps.iter().flat_map(|map| ["--map", map]));
        }
        let switch = wire.spawn(&switch);
        wait_until("the switch's first line", || switch.line().contains("stats"));
        wire.run(&["ip", "address", "add", "198.18.0.1/24", "dev", &tap]);
        let container = container(&sockets[2]);
        let mut sockets = sockets.iter();
        let builders = ["virtio-net-pci", "virtio-net-pci,packed=on"].map(|device| {
            with_servers(Guest::new()).vhost_user_nic(device, &VhostUser::at(sockets.next().expect("one for each")))
        });
        let rig = Self { switch, wire, guests: Builder::boot_all(builders), container, _folder: folder };
        for (guest, station) in rig.guests.iter().zip(GUESTS) {
            serve(guest);
            up(guest, 0, 0);
            rig.settle(station, "v0");
        }
        rig.settle(CONTAINER, "c0");
        rig
    }

    fn settle(&self, station: usize, interface: &str) {
        let (mac, address) = (mac(station), address(station));
        self.run(station, &format!("ip link set {interface} address {mac} up; ip address flush dev {interface}"));
        self.run(station, &format!("ip address add {address}/24 dev {interface}"));
    }

    /// Runs a shell script at a station.
    fn run(&self, station: usize, script: &str) -> String {
        let container = self.container.id().to_string();
        let enter =
            ["nsenter", "--target", &container, "--user", "--net", "--mount", "--preserve-credentials", "sh", "-c"];
        match station {
            WIRE => self.wire.run(&["sh", "-c", script]),
            CONTAINER => run(&[&enter[..], &[script]].concat()),
            guest => self.guests[guest - GUESTS[0]].run(script),
        }
    }

    /// Sends pings between all stations, of which none may be lost.
    fn all_reach_all(&self) {
        for (from, to) in STATIONS.iter().flat_map(|&from| STATIONS.map(|to| (from, to))).filter(|(a, b)| a != b) {
            let to = address(to);
            self.run(from, &format!("ping -c 1 -w 60 {to}"));
            let text = self.run(from, &format!("ping -c 50 -i 0.01 -s 1000 -w 60 {to} || true"));
            assert!(answered(&text, 50), "from {from} to {to}: {text}");
        }
    }

    /// Sends TCP from all other stations to the first guest.
    fn tcp(&self) {
        for from in [WIRE, GUESTS[1], CONTAINER] {
            let rate = tcp_by(|| self.run(from, &format!("iperf3 -c {} -t 1 -J", address(GUESTS[0]))));
            eprintln!("from {from}: {rate:.0} Mbit/s");
        }
    }

    /// Ends the switch and returns the summary of each port.
    fn end(self) -> Vec<Value> {
        let mut summary = self.switch.summary();
        let ports: Vec<Value> = serde_json::from_value(summary["ports"].take()).expect("ports");
        for port in &ports {
            assert!(port["rx_packets"].as_u64() > Some(150) && port["tx_packets"].as_u64() > Some(150), "{port}");
            assert_eq!(port["extended"]["guest_faults"].as_u64().unwrap_or(0), 0, "{port}");
        }
        ports
    }
}

/// Starts a process in its own user, mount and network namespaces, with a TAP whose packets go to the switch.
fn container(socket: &std::path::Path) -> Program {
    let unshare = ["unshare", "--user", "--map-root-user", "--mount", "--net"];
    let port = format!("virtio-user:{}", text(socket));
    let forward = [RINGPASS, "fwd", &port, "tap:c0", "--json", "--hugepages", "off", "--no-sandbox"];
    let container = Program::spawn(&[&unshare[..], &forward].concat());
    wait_until("the container's first line", || container.line().contains("stats"));
    container
}

#[test]
fn guests_a_container_and_a_card_on_one_switch() {
    let rig = Rig::new(false);
    rig.all_reach_all();
    rig.tcp();
    rig.end();
}

/// Random bytes that do not occur by chance.
type Mark = [u8; 16];

fn mark() -> Mark {
    let mut mark = [0; 16];
    File::open("/dev/urandom").and_then(|file| file.read_exact_at(&mut mark, 0)).expect("random bytes");
    mark
}

/// Reads all of a guest's memory.
fn memory_of_guest(guest: &Guest) -> Vec<u8> {
    let files = fs::read_dir(format!("/proc/{}/fd", guest.id())).expect("a running QEMU");
    let mut paths = files.map(|file| file.expect("a descriptor").path());
    let memory = paths.find(|path| {
        fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("memfd:memory-backend-memfd"))
    });
    fs::read(memory.expect("the guest's memory")).expect("its bytes")
}

/// Reads all memory that a process may write to.
fn memory_of_process(id: u32) -> Vec<u8> {
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).expect("a running process");
    let file = File::open(format!("/proc/{id}/mem")).expect("its memory");
    let mut memory = Vec::new();
    for line in maps.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|way| way.starts_with("rw"))) {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-')).expect("a range");
        let [start, end] = [range.0, range.1].map(|text| u64::from_str_radix(text, 16).expect("an address"));
        let mut bytes = vec![0; (end - start) as usize];
        // Mappings that belong to the kernel cannot be read.
        if file.read_exact_at(&mut bytes, start).is_ok() {
            memory.append(&mut bytes);
        }
    }
    memory
}

/// Returns how often each mark occurs.
fn count(memory: &[u8], marks: &[Mark]) -> Vec<usize> {
    let starts: Vec<_> = marks.iter().map(|mark| u32::from_ne_bytes([mark[0], mark[1], mark[2], mark[3]])).collect();
    let mut counts = vec![0; marks.len()];
    for window in memory.windows(16) {
        let start = u32::from_ne_bytes([window[0], window[1], window[2], window[3]]);
        if let Some(which) = starts.iter().position(|&other| other == start)
            && marks[which] == window
        {
            counts[which] += 1;
        }
    }
    counts
}

/// The memory of each mapped guest contains the frames from the wire for that guest or for all stations, and no
/// others.
#[test]
fn a_mapped_guests_memory_holds_no_frame_for_somebody_else() {
    let rig = Rig::new(true);
    // After this the switch knows all stations; before, it floods.
    rig.all_reach_all();
    rig.tcp();

    const PINGS: usize = 200;
    let marks: [Mark; 4] = std::array::from_fn(|_| mark());
    let pattern = |mark: &Mark| mark.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (to_all, to_each) = marks.split_first().expect("four");
    for (station, mark) in (1..).zip(to_each) {
        let ping = format!("ping -c {PINGS} -i 0.01 -s 1000 -p {} -w 60 {}", pattern(mark), address(station));
        let text = rig.run(WIRE, &ping);
        assert!(answered(&text, PINGS), "{text}");
    }
    // Broadcast pings get no answer.
    rig.run(WIRE, &format!("ping -b -c 5 -i 0.2 -W 1 -s 1000 -p {} 198.18.0.255 || true", pattern(to_all)));

    let [a, b] = &rig.guests;
    let memories = [memory_of_guest(a), memory_of_guest(b), memory_of_process(rig.container.id())];
    for (station, memory) in (1..).zip(memories) {
        let found = count(&memory, &marks);
        eprintln!("station {station}, {} MiB: marks to all and to each: {found:?}", memory.len() >> 20);
        for (other, &times) in found.iter().enumerate() {
            assert_eq!(times > 0, other == 0 || other == station, "station {station} and marks of {other}: {found:?}");
        }
    }
    for port in &rig.end()[1..] {
        assert!(port["extended"]["mapped_packets"].as_u64() > Some(PINGS as u64), "{port}");
        eprintln!("{port}");
    }
}
