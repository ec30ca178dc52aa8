//! netmap ports in guests: `ringpass netmapd` serves them, `ringpass passthrough` passes them to our driver in
//! the guest, with the guest's own kernel behind it. The ports are on a VALE switch together with the host's
//! kernel, or at the ends of a pipe.

use crate::common::guest::{Guest, Job, answered, tcp_to};
use crate::common::netmap::{Netmapd, frame, receive, send};
use crate::common::passed::{Driver, MEMORY, PORT, Passed, pings, tcp};
use crate::common::vhost::{file_to, serve, with_servers};
use crate::common::{Namespace, unique, wait_until};
use ringpass_lab::Builder;
use ringpass_memory::Memory;
use ringpass_pci::open_pci;
use serde_json::Value;

/// Two guests, the first with Ringpass's driver over sysfs, the second over VFIO. Their addresses are
/// 198.18.0.2 and 198.18.0.3.
struct Pair {
    passed: [Passed; 2],
    guests: [Guest; 2],
    drivers: [Job; 2],
}

const DRIVERS: [Driver; 2] = [Driver::Sysfs, Driver::Vfio];

/// Addresses of the guests.
const GUESTS: [&str; 2] = ["198.18.0.2", "198.18.0.3"];

impl Pair {
    /// Boots both guests with the ports of these names.
    fn boot(netmapd: &Netmapd, ports: [&str; 2], options: &[&str]) -> Self {
        let passed = ports.map(|port| netmapd.pass(port, options));
        let builder = |number: usize| {
            let guest = with_servers(passed[number].guest(DRIVERS[number].iommu()));
            if number == 0 { guest.program(&std::env::current_exe().expect("this program's file")) } else { guest }
        };
        let guests = Builder::boot_all([builder(0), builder(1)]);
        guests.iter().for_each(serve);
        let drivers = [0, 1].map(|number| DRIVERS[number].start(&guests[number], GUESTS[number], ""));
        Self { passed, guests, drivers }
    }

    /// Sends pings and TCP between the guests.
    fn traffic(&self) {
        pings(&self.guests[0], GUESTS[1]);
        pings(&self.guests[1], GUESTS[0]);
        eprintln!("guest to guest, and back: {:.0?} Mbit/s", tcp(&self.guests[0], GUESTS[1]));
    }

    /// Ends the drivers and returns the counters of their ports.
    fn end_drivers(&self) -> [Value; 2] {
        // From here on the kernels send no ARP requests.
        self.guests.iter().for_each(|guest| _ = guest.run("ip link set g arp off"));
        [0, 1].map(|number| DRIVERS[number].end(&self.guests[number], &self.drivers[number])["ports"][0].take())
    }
}

fn count(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or_else(|| panic!("no {name}: {counters}"))
}

#[test]
fn untrusted_guests_and_the_hosts_kernel_on_a_switch() {
    let tap = unique("nm");
    let netmapd = Netmapd::new(&["--attach", &format!("vale0:tap:{tap}")]);
    let host = Namespace::new();
    host.take(&netmapd.namespace, &tap, "198.18.0.1/24");
    let pair = Pair::boot(&netmapd, ["vale0:vm1", "vale0:vm2"], &[]);
    pair.traffic();
    for (guest, address) in pair.guests.iter().zip(GUESTS) {
        pings(guest, "198.18.0.1");
        let ping = host.run(&["ping", "-A", "-n", "-c", "100", "-w", "60", address]);
        assert!(answered(&ping, 100), "{ping}");
        let rates = [&[][..], &["-R"]].map(|options| tcp_to(&host, address, options));
        eprintln!("host to guest, and back: {rates:.0?} Mbit/s");
        file_to(&host, address);
        // All processes sleep between these pings, so the guest has to wake the process that passes its port.
        guest.run("ping -c 10 -i 0.3 -w 60 198.18.0.1");
    }
    mark(&netmapd, &host);

    // All counters along the path of a frame agree.
    host.run(&["ip", "link", "set", &tap, "arp", "off"]);
    let drivers = pair.end_drivers();
    isolation(&pair.guests[0]);
    let status = netmapd.status();
    for (name, driver) in ["vale0:vm1", "vale0:vm2"].iter().zip(&drivers) {
        let switch = netmapd.counters(name);
        let [sent, received] = [count(driver, "tx_packets"), count(driver, "rx_packets")];
        assert_eq!([count(&switch, "rx_packets"), count(&switch, "tx_packets")], [sent, received], "{switch} {driver}");
        assert_eq!([&switch["resets"], &switch["bad_slots"]], [0, 0], "{switch}");
    }
    let attached = &status["switches"][0]["attached"][0]["stats"];
    for (ours, kernels) in [("rx_packets", "tx_packets"), ("tx_packets", "rx_packets")] {
        assert_eq!(count(attached, ours), host.counter(&tap, kernels), "{attached}");
    }
    let faults = pair.guests[1].run("dmesg | grep -i 'DMAR.*fault addr' || true");
    assert_eq!(faults, "");
    drop(pair.guests);
    let mut kicks = 0;
    for (passed, driver) in pair.passed.into_iter().zip(DRIVERS) {
        let total = passed.end(1);
        kicks += count(&total, "kicks");
        assert_eq!(count(&total, "interrupts") > 0, driver == Driver::Vfio, "{total}");
    }
    // On a loaded machine, one of the processes may never have been asleep when its guest sent something.
    assert!(kicks > 0);
    netmapd.end();
}

/// Payloads of frames: between two programs, to the second guest, and to the first guest.
const MARKERS: [&str; 3] = ["of two programs!", "of another guest", "of the one guest"];

/// Sends frames with markers over the switch.
fn mark(netmapd: &Netmapd, host: &Namespace) {
    // Between two programs whose addresses the switch has learned.
    let [one, other] = ["vale0:one", "vale0:other"].map(|name| netmapd.open(name));
    for (from, to, number) in [(&one, 2, 1), (&other, 1, 2)] {
        send(from, &frame(to, number, 0));
        from.tx()[0].sync().unwrap();
    }
    wait_until("the programs' addresses", || {
        let status = netmapd.status();
        let stations = status["switches"][0]["stations"].as_array().cloned().unwrap_or_default();
        ["one", "other"].iter().all(|name| stations.iter().any(|station| station["port"] == *name))
    });
    let mut came = 0;
    for number in 0..100 {
        let mut bytes = frame(2, 1, number);
        bytes.extend(MARKERS[0].repeat(50).bytes());
        send(&one, &bytes);
        one.tx()[0].sync().unwrap();
    }
    wait_until("the programs' frames", || {
        came += receive(&other, std::time::Duration::from_secs(1))
            .iter()
            .filter(|frame| frame.ends_with(MARKERS[0].as_bytes()))
            .count();
        came == 100
    });
    for (marker, address) in [(MARKERS[1], GUESTS[1]), (MARKERS[2], GUESTS[0])] {
        let pattern: String = marker.bytes().map(|byte| format!("{byte:02x}")).collect();
        let ping = ["ping", "-A", "-n", "-c", "50", "-s", "1000", "-p", &pattern, "-w", "60", address];
        assert!(answered(&host.run(&ping), 50));
    }
}

/// The memory of the first guest's port contains that guest's frames and no frames for others.
fn isolation(guest: &Guest) {
    let program = std::env::current_exe().expect("this program's file");
    let name = program.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
    let found = guest.run(&format!("{name} --ignored --exact guest_netmap::guest_looks_for_markers --nocapture"));
    let count = |marker: &str| -> u64 {
        let line = found.lines().find_map(|line| line.strip_prefix(marker)).expect("a line for each marker");
        line.trim_start_matches(": ").parse().expect("a count")
    };
    let [programs, other, own] = MARKERS.map(count);
    assert!(own >= 50 && [programs, other] == [0, 0], "{found}");
}

/// Runs in the guest: searches all memory of its port.
#[test]
#[ignore = "runs in a guest"]
fn guest_looks_for_markers() {
    use ringpass_pci::registers::ptnet::memdev::{MEMORY_BAR, SIZE};
    let device = open_pci(MEMORY).expect("the memory's device");
    let registers = device.region(0).expect("its registers");
    let len = registers.read32(SIZE[0] as usize) as usize;
    let memory = Memory::from(device.memory(MEMORY_BAR as usize, len).expect("the memory"));
    let mut bytes = vec![0; len];
    assert!(memory.read(0, &mut bytes));
    for marker in MARKERS {
        // ping starts its pattern after a time stamp; each frame contains the whole pattern at least twice in a
        // row.
        let twice = marker.repeat(2);
        let found = bytes.windows(twice.len()).filter(|window| *window == twice.as_bytes()).count();
        println!("\n{marker}: {found}");
    }
}

#[test]
fn trusted_guests_at_the_ends_of_a_pipe_and_a_program_of_the_host() {
    let netmapd = Netmapd::new(&[]);
    let pair = Pair::boot(&netmapd, ["netmap:x{1", "netmap:x}1"], &["--trusted"]);
    pair.traffic();
    let drivers = pair.end_drivers();
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(count(&drivers[from], "tx_packets"), count(&drivers[to], "rx_packets"), "{drivers:?}");
    }

    // The second guest is removed, and the host's kernel takes over its end.
    let Pair { passed: [first, second], guests: [guest, gone], .. } = pair;
    drop(gone);
    second.end(1);
    let (host, tap) = (Namespace::new(), unique("nm"));
    let program = netmapd.spawn(&["fwd", "netmap:x}1", &format!("tap:{tap}"), "--json", "--hugepages", "off"]);
    wait_until("the forwarder's first line", || program.line().contains("stats"));
    host.take(&netmapd.namespace, &tap, "198.18.0.1/24");
    guest.run("ip link set g arp on");
    let job = DRIVERS[0].start(&guest, GUESTS[0], "");
    pings(&guest, "198.18.0.1");
    eprintln!(
        "host to guest by a pipe, and back: {:.0?} Mbit/s",
        [&[][..], &["-R"]].map(|way| tcp_to(&host, GUESTS[0], way))
    );
    file_to(&host, GUESTS[0]);
    host.run(&["ip", "link", "set", &tap, "arp", "off"]);
    guest.run("ip link set g arp off");
    let driver = DRIVERS[0].end(&guest, &job)["ports"][0].take();
    let far = program.summary()["ports"][0].take();
    for (ours, theirs) in [("rx_packets", "tx_packets"), ("tx_packets", "rx_packets")] {
        assert_eq!(count(&driver, ours), count(&far, theirs), "{driver} {far}");
    }
    drop(guest);
    first.end(2);
    netmapd.end();
}

/// One worker for each pair of rings. The switch sends a flow to one ring; the flows of one host are spread
/// over both rings.
#[test]
fn a_port_of_several_rings_has_as_many_queues() {
    let tap = unique("nm");
    let netmapd = Netmapd::new(&["--attach", &format!("vale0:tap:{tap}")]);
    let host = Namespace::new();
    host.take(&netmapd.namespace, &tap, "198.18.0.1/24");
    let passed = netmapd.pass("vale0:vm", &["--rings", "2", "--slots", "256"]);
    let guest = with_servers(passed.guest(Driver::Vfio.iommu())).cpus(2).boot();
    serve(&guest);
    let job = Driver::Vfio.start(&guest, GUESTS[0], "--queues 2");
    assert!(guest.printed(&job).contains("2 rings of 256 slots to send, 2 of 256 to receive"));
    pings(&guest, "198.18.0.1");
    let rates = [&["-P", "8"][..], &["-P", "8", "-R"]].map(|options| tcp_to(&host, GUESTS[0], options));
    eprintln!("host to guest in 8 flows, and back: {rates:.0?} Mbit/s");
    file_to(&host, GUESTS[0]);
    // Interrupts of rings that send are numbered first.
    let interrupts = guest.run(&format!("grep vfio-msix.*{PORT} /proc/interrupts"));
    for ring in [2, 3] {
        let line = interrupts.lines().find(|line| line.contains(&format!("[{ring}]"))).expect("a line for each ring");
        let woken: u64 = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).sum();
        assert!(woken > 10, "{interrupts}");
    }
    Driver::Vfio.end(&guest, &job);
    drop(guest);
    passed.end(1);
    netmapd.end();
}
