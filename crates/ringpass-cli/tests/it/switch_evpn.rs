//! EVPN with FRR of Debian's package, on three hosts (namespaces): the switch carries the frames of two, the kernel's vxlan device those
//! of the third.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::fabric::{HOSTS, Kernel, Ours, Underlay, pings, reaches};
use crate::common::{Ended, Namespace, Program, RINGPASS, folder, text, unique, wait_until};

#[test]
fn three_hosts_of_which_two_are_ours() {
    let (underlay, folder) = (Underlay::new(), folder());
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("our folder");
    let capture = folder.path().join("underlay.pcap");
    let mut recorder = underlay.0.spawn(&["tcpdump", "-U", "-i", "outer", "-w", text(&capture), "-c", "20000"]);
    recorder.wait_for_stderr("listening on");
    let [mut one, mut two] = [1, 2].map(|number| Ours::new(&underlay, number));
    let mut third = Kernel::start(&underlay, folder.path(), &[100]);
    for ours in [&mut one, &mut two] {
        ours.start_frr();
        ours.start_switch();
    }
    let kernels_station = third.stations.remove(0);
    let stations = [&one.station, &two.station, &kernels_station];
    for (number, from) in stations.iter().enumerate() {
        for to in HOSTS.iter().filter(|&&to| usize::from(to) != number + 1) {
            reaches(from, &format!("198.18.0.{to}"));
        }
    }
    let kernels_mac = kernels_station.mac("st");
    assert_eq!(one.remote_of(&kernels_mac).as_deref(), Some("10.9.0.3"));
    assert_eq!(two.remote_of(&one.station.mac(&one.interface)).as_deref(), Some("10.9.0.1"));

    // FRR has told the addresses of stations that have asked for others. Questions for them are answered on the host of who asks.
    for (from, to) in [(&one, "198.18.0.2"), (&two, "198.18.0.1")] {
        let before = from.count("vxlan_answered");
        wait_until("an answer in the place of a station elsewhere", || {
            from.station.run(&["ip", "neigh", "flush", "dev", &from.interface]);
            pings(&from.station, to) && from.count("vxlan_answered") > before
        });
        let checks = from.host.run(&[RINGPASS, "doctor", "--json"]);
        let good = |name: &str, found: &str| {
            checks.lines().any(|line| {
                let check: Value = serde_json::from_str(line).expect("JSON");
                check["for"] == "EVPN" && check["name"] == name && check["ok"] == true && check["found"] == found
            })
        };
        assert!(good("network 100", "a switch has them open") && good("FRR", "zebra and bgpd run"), "{to}: {checks}");
    }

    let told = |command: &[&str]| {
        let control = one.folder.path().join("control");
        crate::common::run(&[&[RINGPASS, "ctl", "--socket", text(&control)], command].concat())
    };
    let end = "end 10.9.0.3          1 stations, copies for all of 1 networks";
    assert!(told(&["show", "fabric"]).lines().any(|line| line == end), "{}", told(&["show", "fabric"]));
    assert!(told(&["stations"]).contains("fabric, at 10.9.0.3"), "{}", told(&["stations"]));

    // Packets that do not fit between the hosts with the tunnel's headers are not lost without a word.
    for ours in [&one, &two] {
        let enable = format!("net.ipv6.conf.{}.disable_ipv6=0", ours.interface);
        ours.station.run(&["sysctl", "-q", "-w", &enable]);
        ours.station.ip(&["address", "add", &format!("fd00::{}/64", ours.number), "dev", &ours.interface, "nodad"]);
    }
    for (to, size, told) in [("198.18.0.2", "1472", "mtu = 1450"), ("fd00::2", "1452", "mtu = 1450")] {
        let ping = ["ping", "-n", "-c", "3", "-i", "0.2", "-W", "2", "-M", "do", "-s", size, to];
        let Ended { lines, errors, .. } = one.station.spawn(&ping).wait(Duration::from_secs(60));
        let said = [lines, errors].concat().join("\n").replace("mtu=", "mtu = ");
        assert!(said.contains(told), "{said}");
    }
    assert!(one.count("vxlan_too_long") >= 2);

    // Only the interface that has an address answers for it.
    stations.iter().for_each(|there| _ = there.run(&["sysctl", "-q", "-w", "net.ipv4.conf.all.arp_ignore=1"]));
    // A station moves between all hosts, and says so by its first frame. All others reach it soon.
    let mac = "02:00:00:00:00:77";
    let mut worst = Duration::ZERO;
    let places = [(&one.station, &one.interface[..]), (&two.station, &two.interface[..]), (&kernels_station, "st")];
    for round in 0..6 {
        let (there, interface) = places[round % 3];
        there
            .run(&["ip", "link", "add", "mv", "link", interface, "address", mac, "type", "macvlan", "mode", "private"]);
        there.run(&["ip", "address", "add", "198.18.0.9/32", "dev", "mv"]);
        there.run(&["ip", "link", "set", "mv", "up"]);
        // Its first frame asks for somebody who is not there.
        there.run(&["ip", "route", "add", "198.18.0.200/32", "dev", "mv", "src", "198.18.0.9"]);
        let mut asks = there.spawn(&["ping", "-c", "1", "-W", "1", "198.18.0.200"]);
        let moved = Instant::now();
        for (number, from) in stations.iter().enumerate().filter(|(number, _)| *number != round % 3) {
            wait_until("the station that has moved", || {
                let ping = ["ping", "-c", "1", "-W", "0.05", "198.18.0.9"];
                from.spawn(&ping).wait(Duration::from_secs(60)).status == Some(0)
            });
            worst = worst.max(moved.elapsed());
            println!("round {round}: from host {} after {:?}", number + 1, moved.elapsed());
        }
        asks.kill();
        there.run(&["ip", "link", "delete", "mv"]);
    }
    println!("a station that has moved was reached by all after {worst:?} at most");

    // The third host's BGP dies: its station and its copies are withdrawn.
    third.kill_bgp();
    wait_until("the withdrawal", || one.remote_of(&kernels_mac).is_none() && two.remote_of(&kernels_mac).is_none());
    reaches(&one.station, "198.18.0.2");
    assert!(!pings(&one.station, "198.18.0.3"));
    // It flaps, and stays in the end.
    for _ in 0..4 {
        third.start_frr();
        third.kill_bgp();
    }
    third.start_frr();
    reaches(&one.station, "198.18.0.3");

    // Our host's FRR restarts, while its switch goes on; then its switch, while FRR goes on.
    one.frr.as_mut().expect("it runs").bgpd.kill();
    wait_until("nothing from FRR", || one.stations().iter().all(|station| station["remote"].is_null()));
    one.frr = None;
    one.start_frr();
    for to in ["198.18.0.2", "198.18.0.3"] {
        reaches(&one.station, to);
    }
    let ended = one.stop_switch();
    assert_eq!(ended.status, Some(0), "{:?}", ended.errors);
    let own_mac = two.remote_of(&kernels_mac);
    assert_eq!(own_mac.as_deref(), Some("10.9.0.3"));
    one.interface = unique("ti");
    let file = std::fs::read_to_string(one.file()).expect("our file");
    let (before, _) = file.rsplit_once("address = \"tap:").expect("the TAP is the last port");
    let file = format!("{before}address = \"tap:{}\"\nvlan = 7\n", one.interface);
    std::fs::write(one.file(), file).expect("our file");
    one.start_switch();
    for to in ["198.18.0.2", "198.18.0.3"] {
        reaches(&one.station, to);
    }

    // Nothing goes around in circles, and nothing is refused.
    for ours in [&one, &two] {
        assert_eq!(ours.count("evpn_refused"), 0);
        assert!(ours.count("evpn_added") > 0 && ours.count("evpn_announced") > 0);
    }
    recorder.signal("INT");
    recorder.ended();
    wait_until("the capture", || recorder.ended().is_some());
    what_was_said(&capture);
    drop(third);
    for ours in [one, two] {
        ours.host.run(&["ip", "link", "set", "rp-ta100", "down"]);
        assert!(ours.host.run(&[RINGPASS, "doctor"]).contains("rp-ta100 is down"));
        ours.host.run(&[RINGPASS, "evpn", "remove", text(&ours.file())]);
        assert!(!ours.host.ip(&["link"]).contains("rp-"));
    }
}

/// tshark finds in the capture what RFC 7348 and 8365 want.
fn what_was_said(capture: &Path) {
    let read = |filter: &str, fields: &[&str]| -> Vec<String> {
        let mut command = vec!["tshark", "-r", text(capture), "-Y", filter, "-T", "fields"];
        fields.iter().for_each(|field| command.extend(["-e", field]));
        crate::common::run(&command).lines().map(str::to_owned).collect()
    };
    // Frames of the tunnel: the registered port, the flags of a VNI and nothing else, the VNI; no tag inside (RFC 7348, 5 and 6.1).
    let frames = read("vxlan", &["udp.dstport", "vxlan.flags", "vxlan.vni"]);
    // What goes around in circles would fill the capture.
    assert!((1000..15_000).contains(&frames.len()), "{} frames", frames.len());
    assert!(
        frames.iter().all(|frame| frame == "4789\t0x0800\t100"),
        "{:?}",
        frames.iter().find(|f| !f.ends_with("100"))
    );
    assert!(read("vxlan && vlan", &["frame.number"]).is_empty());
    // Entropy for paths of equal cost, from the range of RFC 7348, 5.
    let ports = read("vxlan", &["udp.srcport"]);
    assert!(ports.iter().all(|port| port.parse::<u16>().is_ok_and(|port| port >= 32768)), "source ports");
    // Stations' IP addresses go with their routes (RFC 7432, 10).
    for host in [1, 2] {
        let filter = format!("bgp.evpn.nlri.ip.addr == 198.18.0.{host} && ip.src == 10.9.0.{host}");
        assert!(!read(&filter, &["frame.number"]).is_empty(), "the address of the station of host {host}");
    }
    // Routes of all three hosts: MAC addresses (type 2), inclusive multicast by ingress replication (type 3, tunnel type 6).
    for (kind, host) in [2, 3].into_iter().flat_map(|kind| HOSTS.map(|host| (kind, host))) {
        let routes = read(&format!("bgp.evpn.nlri.rt == {kind} && ip.src == 10.9.0.{host}"), &["frame.number"]);
        assert!(!routes.is_empty(), "type {kind} of host {host}");
    }
    assert!(
        !read("bgp.update.path_attribute.pmsi.tunnel.type == 6", &["frame.number"]).is_empty(),
        "ingress replication"
    );
}

/// Time without a change in the kernel's table after which FRR is taken to be done.
const SETTLED: Duration = Duration::from_secs(2);

/// Returns the memory of a process, in KiB.
fn resident(program: &Program) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("KiB")
}

/// Returns the CPU time of a process, or of its threads of this name, in milliseconds.
fn cpu_ms(program: &Program, thread: Option<&str>) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", program.id())).expect("it runs");
    let stats = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let of = |stat: String| {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        // Ticks of 10 ms (proc(5)): fields 14 and 15, of which two come before the name's end.
        let ticks: u64 = rest.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        thread.is_none_or(|thread| thread == name).then_some(10 * ticks)
    };
    stats.filter_map(of).sum()
}

/// Returns how many bytes a host has received over BGP.
fn bgp_bytes(host: &Namespace) -> u64 {
    let shown = host.run(&["ss", "-tinH", "dport = 179 or sport = 179"]);
    let counts = shown.split_whitespace().filter_map(|word| word.strip_prefix("bytes_received:"));
    counts.map(|count| count.parse::<u64>().expect("a number")).sum()
}

/// A host with many stations comes to the others, while frames pass, and dies. `RINGPASS_ROUTES` says how many, if not a hundred thousand.
#[test]
fn a_hundred_thousand_routes_of_frr() {
    let most: usize = std::env::var("RINGPASS_ROUTES").map_or(100_000, |most| most.parse().expect("a number"));
    let wait = |one: &Ours, what: &str, so: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !so() {
            let is_late = start.elapsed() > Duration::from_millis(most as u64);
            assert!(!is_late, "gave up waiting for {what}: {:?}", one.tunnel());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let (underlay, folder) = (Underlay::new(), folder());
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("our folder");
    let mut one = Ours::new(&underlay, 1);
    let file = std::fs::read_to_string(one.file()).expect("our file");
    let file = file.replacen("name = \"lan\"\n", &format!("name = \"lan\"\ntable = {}\n", most * 3 / 2), 1);
    std::fs::write(
        one.file(),
        file.replacen("[switch.port.vxlan]\n", &format!("[switch.port.vxlan]\ntable = {most}\n"), 1),
    )
    .expect("our file");
    let mut third = Kernel::start(&underlay, folder.path(), &[100]);
    one.start_frr();
    one.start_switch();
    reaches(&one.station, "198.18.0.3");
    let batch = folder.path().join("batch");
    let entry = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        format!("fdb add 02:01:00:{a:02x}:{b:02x}:{c:02x} dev inner100 master dynamic\n")
    };
    std::fs::write(&batch, (0..most as u32).map(entry).collect::<String>()).expect("our file");
    let pings = one.station.spawn(&["ping", "-n", "-q", "-i", "0.01", "-w", "300", "198.18.0.3"]);
    let memory = |one: &Ours| {
        let frr = one.frr.as_ref().expect("it runs");
        [one.switch.as_ref().expect("it runs"), &frr.zebra, &frr.bgpd].map(resident)
    };
    let cpu = |one: &Ours| {
        let frr = one.frr.as_ref().expect("it runs");
        let switch = cpu_ms(one.switch.as_ref().expect("it runs"), Some("evpn"));
        [switch, cpu_ms(&frr.zebra, None), cpu_ms(&frr.bgpd, None)]
    };
    let memory_before = memory(&one);
    let (cpu_before, bytes_before) = (cpu(&one), bgp_bytes(&one.host));
    let start = Instant::now();
    third.host.run(&["bridge", "-batch", text(&batch)]);
    let given = start.elapsed();
    // The switch has those that the kernel has. FRR 8.4 does not always bring it all, nor take all away, if the machine is busy or there are 200,000.
    let kernel = || {
        let shown = one.host.run(&["bridge", "fdb", "show", "dev", "rp-vx100"]);
        shown.lines().filter(|line| line.contains(" dst 10.9.0.3 ") && !line.starts_with("00:00:00:00:00:00 ")).count()
    };
    let has_settled = || {
        let before = kernel();
        std::thread::sleep(SETTLED);
        kernel() == before && one.stations_at("10.9.0.3") == before
    };
    let patience = Duration::from_micros(400 * most as u64);
    wait(&one, "all routes", &|| one.stations_at("10.9.0.3") > most || start.elapsed() > patience && has_settled());
    let came = one.stations_at("10.9.0.3");
    let followed = start.elapsed();
    let memory =
        memory(&one).into_iter().zip(memory_before).map(|(after, before)| 1024 * (after - before) / most as u64);
    let memory: Vec<_> = ["switch", "zebra", "bgpd"].into_iter().zip(memory).collect();
    let micros = |(after, before): (u64, u64)| 1000 * (after - before) / most as u64;
    let cpu: Vec<_> = cpu(&one).into_iter().zip(cpu_before).map(micros).collect();
    let wire = (bgp_bytes(&one.host) - bytes_before) / most as u64;
    assert_eq!(one.count("evpn_refused"), 0);
    pings.signal("INT");
    let pinged = pings.wait(Duration::from_secs(60)).lines.join("\n");
    // On a very busy machine BGP misses its own deadline of three seconds, and withdraws all for a moment.
    assert!(pinged.contains(" 0% packet loss") || one.count("evpn_removed") > 0, "{pinged}");
    let killed = Instant::now();
    third.kill_bgp();
    wait(&one, "the withdrawal", &|| kernel() < most && has_settled());
    let withdrawn = killed.elapsed().saturating_sub(SETTLED);
    let left = kernel();
    assert_eq!(one.stations().iter().filter(|station| !station["remote"].is_null()).count(), left);
    println!(
        "{came} of {most} stations: added to the other host's bridge within {given:?}, followed {followed:?} after the first; \
         all but {left} withdrawn {withdrawn:?} after its BGP died, {} resyncs; bytes for each {memory:?}, {wire} over BGP; \
         microseconds of CPU time for each, in the same order {cpu:?}",
        one.count("evpn_resyncs")
    );
}
