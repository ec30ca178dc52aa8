//! The examples of the library (crates/ringpass/examples), each at work with a peer: the kernel, this program, another example.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::netmap::Netmapd;
use crate::common::vhost::wrong_checksums;
use crate::common::{Namespace, Program, RINGPASS, built, folder, text, wait_until};
use ringpass_lab::Ended;

/// Whole network functions, which may be longer than the others.
const PROGRAMS: [&str; 4] = ["nat", "balancer", "vxlan_gateway", "firewall"];

/// Returns the path of a built example.
fn example(name: &str) -> PathBuf {
    built(&format!("examples/{name}"))
}

/// Runs an example to its end; returns its output.
fn run(name: &str, arguments: &[&str]) -> Vec<String> {
    let path = example(name);
    let Ended { status, lines, errors } =
        Program::spawn(&[&[text(&path)], arguments].concat()).wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{name}: {errors:?}");
    lines
}

/// Starts an example in a namespace.
fn spawn(namespace: &Namespace, name: &str, arguments: &[&str]) -> Program {
    namespace.spawn(&[&[text(&example(name))], arguments].concat())
}

/// Waits for an interface that an example creates.
fn interface(namespace: &Namespace, name: &str) {
    wait_until("the interface", || namespace.run(&["ip", "-o", "link"]).contains(&format!(" {name}:")));
}

#[test]
fn examples_are_short_and_each_has_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ringpass/examples");
    let tests = include_str!("examples.rs");
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the examples").map(|entry| entry.expect("an entry").path()) {
        let code = std::fs::read_to_string(&file).expect("a source file");
        let lines = code.lines().filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//")).count();
        let name = file.file_stem().and_then(|name| name.to_str()).expect("a name");
        let limit = if PROGRAMS.contains(&name) { 150 } else { 40 };
        assert!(lines <= limit, "{}: {lines} lines of code", file.display());
        assert!(tests.contains(&format!("\"{name}\"")), "{name} has no test");
        count += 1;
    }
    assert_eq!(count, 8 + PROGRAMS.len(), "examples");
}

#[test]
fn forward_joins_two_networks() {
    let [middle, a, b] = [(); 3].map(|()| Namespace::new());
    let _forward = spawn(&middle, "forward", &["model:tap:left", "model:tap:right"]);
    for (namespace, tap, address) in [(&a, "left", "198.18.0.1/24"), (&b, "right", "198.18.0.2/24")] {
        interface(&middle, tap);
        namespace.take(&middle, tap, address);
    }
    let pings = a.run(&["ping", "-c", "20", "-i", "0.02", "-W", "20", "198.18.0.2"]);
    assert!(pings.contains(" 0% packet loss"), "{pings}");
}

/// It is what people copy: it ends with its input, with Ctrl-C, and with an error of one line.
#[test]
fn forward_ends_as_it_should() {
    let folder = folder();
    let [from, to] = ["a.pcap", "b.pcap"].map(|name| folder.path().join(name));
    let (status, _, errors) = crate::common::ringpass(&["pktgen", &format!("pcap:,out={}", text(&from)), "-c", "1000"]);
    assert_eq!(status, Some(0), "{errors}");
    run("forward", &[&format!("pcap:{}", text(&from)), &format!("pcap:,out={}", text(&to))]);
    let (_, frames, _) = crate::common::ringpass(&["dump", &format!("pcap:{}", text(&to)), "--json"]);
    assert_eq!(frames.lines().filter(|line| line.contains("UDP") || line.contains("udp")).count(), 1000);

    let program = Program::spawn(&[text(&example("forward")), "model:null", "null"]);
    wait_until("its notes", || program.line().contains("model:null"));
    std::thread::sleep(Duration::from_millis(300));
    program.signal("INT");
    let Ended { status, errors, .. } = program.wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{errors:?}");

    let end = |arguments: &[&str]| {
        let program = Program::spawn(&[&[text(&example("forward"))], arguments].concat());
        let Ended { status, errors, .. } = program.wait(Duration::from_secs(60));
        assert_eq!(status, Some(1));
        errors.last().expect("an error").clone()
    };
    assert_eq!(end(&[]), "Error: no port to open; name at least one, such as tap:a or 0000:01:00.0");
    assert!(end(&["null", "eth0"]).starts_with("Error: address 'eth0': no kind of port"));

    let namespace = Namespace::new();
    let program = spawn(&namespace, "forward", &["tap:gone", "null"]);
    interface(&namespace, "gone");
    wait_until("its notes", || program.line().contains("tap:gone"));
    namespace.run(&["ip", "link", "delete", "gone"]);
    let Ended { status, errors, .. } = program.wait(Duration::from_secs(60));
    assert_eq!(status, Some(1), "{errors:?}");
    assert!(errors.last().is_some_and(|error| error.starts_with("Error: tap:gone: ")), "{errors:?}");
}

#[test]
fn echo_answers_probes_and_counts_them() {
    let namespace = Namespace::new();
    let echo = spawn(&namespace, "echo", &["model:tap:e"]);
    interface(&namespace, "e");
    namespace.run(&["ip", "link", "set", "e", "up"]);
    let out = namespace.run(&[RINGPASS, "ping", "packet:e", "-c", "5", "--json"]);
    let last: serde_json::Value = serde_json::from_str(out.lines().last().expect("a summary")).expect("JSON");
    assert_eq!((&last["probes"], &last["answers"]), (&5.into(), &5.into()), "{out}");
    wait_until("statistics", || echo.line().contains("rx_packets: 5"));
}

#[test]
fn generated_frames_are_one_flow() {
    let folder = folder();
    let capture = folder.path().join("frames.pcap");
    let out = run("generate", &[&format!("pcap:,out={}", text(&capture)), "1000"]);
    assert!(out[0].starts_with("1000 frames in "), "{out:?}");
    let flows = run("flows", &[&format!("pcap:{},speed=max", text(&capture))]);
    let flows: Vec<serde_json::Value> = flows.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let expected = serde_json::json!({"flow": "udp 198.18.0.1:9 198.18.0.2:9", "packets": 1000, "bytes": 60000});
    assert_eq!(flows, [expected]);
}

#[test]
fn the_host_answers_the_kernel() {
    let namespace = Namespace::new();
    let _host = spawn(&namespace, "host", &["model:tap:wire", "198.18.0.2"]);
    interface(&namespace, "wire");
    namespace.run(&["ip", "address", "add", "198.18.0.1/24", "dev", "wire"]);
    namespace.run(&["ip", "link", "set", "wire", "up"]);
    // Sizes with even and odd bytes; the kernel checks the answers' checksums.
    for size in ["0", "56", "57", "1400"] {
        let pings = namespace.run(&["ping", "-c", "5", "-i", "0.02", "-W", "20", "-s", size, "198.18.0.2"]);
        assert!(pings.contains(" 0% packet loss"), "{pings}");
    }
    assert!(
        namespace.run(&["ip", "neighbour"]).contains("198.18.0.2 dev wire lladdr 02:00:00:00:00:"),
        "ARP was answered"
    );
}

#[test]
fn a_port_of_ones_own_gets_back_what_it_sent() {
    assert_eq!(run("own_port", &[]), ["sent 1, received 1"]);
}

#[test]
fn a_model_does_nothing_between_steps() {
    let out = run("stepped_model", &[]).join("\n");
    let parts = ["takes 1 packet(s)", "has sent 0 so far", "moves 1 packet(s)", "has sent 1 now", "tx_packets: 1,"];
    assert!(parts.iter().all(|part| out.contains(part)), "{out}");
}

#[test]
fn frames_of_a_netmap_ring_arrive_in_order() {
    let netmapd = Netmapd::new(&[]);
    let capture = netmapd.folder.path().join("frames.pcap");
    let dump = netmapd.spawn(&["dump", "netmap:x}1", "-c", "1000", "-w", text(&capture)]);
    wait_until("the receiver", || netmapd.status()["pipes"][0]["registrations"][1] == 1);
    let socket = format!("RINGPASS_NETMAP_SOCKET={}", text(&netmapd.socket));
    let program = example("netmap_ring");
    let out = netmapd.namespace.run(&["env", &socket, text(&program), "netmap:x{1", "1000"]);
    assert_eq!(out.trim(), "1000 frames in netmap:x{1");
    let Ended { status, errors, .. } = dump.wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{errors:?}");
    let bytes = std::fs::read(&capture).expect("the capture");
    let frames: Vec<&[u8]> = bytes[24..].chunks(16 + 60).map(|record| &record[16..]).collect();
    assert_eq!(frames.len(), 1000);
    for (number, frame) in (0u32..).zip(frames) {
        assert_eq!(frame[56..], number.to_be_bytes());
    }
}

/// Starts an example between two networks, whose interfaces `left` and `right` get these addresses.
fn between(name: &str, arguments: &[&str], addresses: [&str; 2]) -> (Program, [Namespace; 3]) {
    let [middle, left, right] = [(); 3].map(|()| Namespace::new());
    let program = spawn(&middle, name, &[&["model:tap:left", "model:tap:right"], arguments].concat());
    for (namespace, tap, address) in [(&left, "left", addresses[0]), (&right, "right", addresses[1])] {
        interface(&middle, tap);
        namespace.take(&middle, tap, address);
    }
    (program, [middle, left, right])
}

/// Asserts that pings are answered, once the first one is: neighbours look for each other for a moment.
fn pings(from: &Namespace, to: &str, options: &[&str]) {
    wait_until("the first answer", || {
        from.spawn(&["ping", "-c", "1", "-W", "1", to]).wait(Duration::from_secs(60)).status == Some(0)
    });
    let pings = from.run(&[&["ping", "-c", "20", "-i", "0.02", "-W", "20", to], options].concat());
    assert!(pings.contains(" 0% packet loss"), "{pings}");
}

/// Sends TCP and UDP to a server in another namespace; returns what the server prints.
fn tcp_and_udp(from: &Namespace, to: &Namespace, address: &str) -> String {
    let mut printed = Vec::new();
    for options in [&["-n", "4M"][..], &["-u", "-n", "200K", "-b", "20M", "-l", "1000"]] {
        let server = to.spawn(&["iperf3", "-s", "-1", "--forceflush"]);
        wait_until("the iperf3 server", || server.line().contains("listening"));
        from.run(&[&["iperf3", "-c", address, "--connect-timeout", "20000"], options].concat());
        let Ended { lines, errors, .. } = server.wait(Duration::from_secs(60));
        printed.extend(lines.into_iter().chain(errors));
    }
    printed.join("\n")
}

/// Ends an example as Ctrl-C does; returns what it printed.
fn end(program: Program) -> Vec<String> {
    program.signal("INT");
    let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{errors:?}");
    lines
}

#[test]
fn the_nat_hides_a_network_behind_an_address() {
    let arguments = ["192.168.1.1", "203.0.113.2", "203.0.113.1"];
    let (nat, [_middle, inside, outside]) = between("nat", &arguments, ["192.168.1.2/24", "203.0.113.1/24"]);
    inside.run(&["ip", "route", "add", "default", "via", "192.168.1.1"]);
    pings(&inside, "203.0.113.1", &[]);
    let printed = tcp_and_udp(&inside, &outside, "203.0.113.1");
    assert!(printed.contains("Accepted connection from 203.0.113.2") && !printed.contains("192.168"), "{printed}");
    assert_eq!(wrong_checksums(&outside.run(&["cat", "/proc/net/snmp"])), 0);
    assert_eq!(wrong_checksums(&inside.run(&["cat", "/proc/net/snmp"])), 0);
    // Nobody gets in by himself.
    let uninvited = outside.spawn(&["ping", "-c", "2", "-i", "0.2", "-W", "0.5", "203.0.113.2"]);
    assert_eq!(uninvited.wait(Duration::from_secs(60)).status, Some(1));
    end(nat);
}

#[test]
fn the_balancer_spreads_connections_and_leaves_dead_servers_out() {
    let arguments = ["4", "198.18.0.100", "198.18.0.11", "198.18.0.12"];
    let (balancer, [_middle, clients, servers]) = between("balancer", &arguments, ["198.18.0.1/24", "198.18.0.11/24"]);
    servers.run(&["ip", "address", "add", "198.18.0.12/24", "dev", "right"]);
    let folder = folder();
    let _servers = ["198.18.0.11", "198.18.0.12"].map(|address| {
        let own = folder.path().join(address);
        std::fs::create_dir(&own).expect("a folder");
        std::fs::write(own.join("name"), address).expect("a file");
        let python = ["python3", "-u", "-m", "http.server", "80", "--bind", address, "--directory", text(&own)];
        let server = servers.spawn(&python);
        wait_until("the server", || server.line().contains("Serving"));
        server
    });
    let fetch = || {
        let curl = clients.spawn(&["curl", "-s", "--max-time", "5", "http://198.18.0.100/name"]);
        curl.wait(Duration::from_secs(60)).lines.pop()
    };
    wait_until("the service", || fetch().is_some());
    let names: Vec<String> = (0..40).map(|_| fetch().expect("an answer")).collect();
    assert!(["198.18.0.11", "198.18.0.12"].iter().all(|server| names.iter().any(|name| name == server)), "{names:?}");
    pings(&clients, "198.18.0.100", &[]);
    servers.run(&["ip", "address", "del", "198.18.0.12/24", "dev", "right"]);
    wait_until("twenty answers of the other server", || {
        (0..20).all(|_| fetch().is_some_and(|name| name == "198.18.0.11"))
    });
    let packets: Vec<u64> =
        end(balancer).iter().filter_map(|line| line.strip_suffix(" packets")?.parse().ok()).collect();
    assert!(packets.len() == 4 && packets.iter().filter(|&&packets| packets > 0).count() >= 2, "{packets:?}");
}

#[test]
fn the_gateway_carries_a_network_to_the_kernels_vxlan() {
    let arguments = ["198.18.0.1", "198.18.0.2", "42"];
    let (gateway, [_middle, inside, outside]) = between("vxlan_gateway", &arguments, ["10.1.0.1/24", "198.18.0.2/24"]);
    let tunnel = "ip link add vx type vxlan id 42 local 198.18.0.2 remote 198.18.0.1 dstport 4789 dev right";
    outside.run(&tunnel.split(' ').collect::<Vec<_>>());
    outside.run(&["ip", "address", "add", "10.1.0.2/24", "dev", "vx"]);
    outside.run(&["ip", "link", "set", "vx", "up"]);
    inside.run(&["ip", "link", "set", "left", "mtu", "1450"]);
    pings(&inside, "10.1.0.2", &[]);
    pings(&inside, "10.1.0.2", &["-s", "1422", "-M", "do"]);
    let printed = tcp_and_udp(&inside, &outside, "10.1.0.2");
    assert!(printed.contains("Accepted connection from 10.1.0.1"), "{printed}");
    end(gateway);
}

#[test]
fn the_firewall_keeps_to_its_rules() {
    let folder = folder();
    let file = folder.path().join("rules.txt");
    let rules = "# a comment\nallow icmp 198.18.0.0/24 any\nallow tcp 198.18.0.1 198.18.0.2/32 5201\n\
                 allow udp 198.18.0.1 any 5201 # iperf3\ndeny any any any\n";
    std::fs::write(&file, rules).expect("a file");
    let (firewall, [_middle, left, right]) = between("firewall", &[text(&file)], ["198.18.0.1/24", "198.18.0.2/24"]);
    pings(&left, "198.18.0.2", &[]);
    let printed = tcp_and_udp(&left, &right, "198.18.0.2");
    assert!(printed.contains("Accepted connection from 198.18.0.1"), "{printed}");
    // Another port, and the other direction: dropped without an answer.
    for (from, to) in [(&left, "198.18.0.2:80"), (&right, "198.18.0.1:5201")] {
        let curl = from.spawn(&["curl", "-s", "--max-time", "1", &format!("http://{to}")]);
        assert_eq!(curl.wait(Duration::from_secs(60)).status, Some(28), "{to}: a connection that times out");
    }
    let dropped = end(firewall).pop().expect("a summary");
    assert!(
        dropped.strip_suffix(" packets dropped").is_some_and(|count| count.parse::<u64>().unwrap() >= 2),
        "{dropped}"
    );

    std::fs::write(&file, "allow tcp any any\nallow tpc any any\n").expect("a file");
    let program = Program::spawn(&[text(&example("firewall")), "null", "null", text(&file)]);
    let Ended { status, errors, .. } = program.wait(Duration::from_secs(60));
    assert_eq!(status, Some(1));
    assert!(errors.len() == 1 && errors[0].contains("rules.txt:2: tpc: write tcp"), "{errors:?}");
}
