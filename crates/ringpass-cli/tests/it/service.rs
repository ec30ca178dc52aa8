//! The service: `ringpass run`, and `ringpass check`.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringpass::control::{Client, Request};
use ringpass_lab::{Ended, Namespace, Program, wait_until};
use serde_json::Value;

use crate::common::{RINGPASS, for_everybody, text};

/// A file of a service, in a folder of its own.
struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn file(content: &str) -> File {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("service.toml");
    std::fs::write(&path, content).expect("a file");
    File { _folder: folder, path }
}

fn run(namespace: &Namespace, file: &File) -> Program {
    let service = namespace.spawn(&[RINGPASS, "run", text(&file.path), "--json"]);
    // All ports are open: an interface that is moved before is not found.
    service.wait_for_stderr("sandbox: ");
    service
}

fn ended(program: Program) -> Ended {
    program.wait(Duration::from_secs(20))
}

/// Ends a service by SIGTERM, in good order; returns what it has printed.
fn terminate(service: Program) -> Vec<String> {
    service.signal("TERM");
    let Ended { status, lines, errors } = ended(service);
    assert_eq!(status, Some(0), "{errors:?}");
    lines
}

/// Runs a command to its end; returns what it has printed, or its errors if it has failed.
fn done(host: &Namespace, command: &[&str]) -> Result<Vec<String>, String> {
    let Ended { status, lines, errors } = ended(host.spawn(command));
    if status == Some(0) { Ok(lines) } else { Err(errors.concat()) }
}

fn run_lines(command: &[&str]) -> Vec<String> {
    ringpass_lab::run(command).lines().map(str::to_owned).collect()
}

/// Runs `ringpass ctl` on a service.
fn ctl(host: &Namespace, control: &Path, arguments: &[&str]) -> Result<Vec<String>, String> {
    done(host, &[&[RINGPASS, "ctl", "--socket", text(control)], arguments].concat())
}

/// Returns a namespace with an interface of another one, which has an address.
fn with_interface(from: &Namespace, interface: &str, address: &str) -> Namespace {
    // A veth is shown as `NAME@OTHER`.
    let is_there = |links: &str| [':', '@'].iter().any(|end| links.contains(&format!(" {interface}{end}")));
    wait_until("the interface", || is_there(&from.ip(&["link"])));
    let namespace = Namespace::new();
    namespace.take(from, interface, address);
    namespace
}

fn ping(from: &Namespace, address: &str) {
    let said = from.run(&["ping", "-q", "-i", "0.01", "-c", "100", "-w", "30", address]);
    assert!(said.contains("100 received, 0% packet loss"), "{said}");
}

#[test]
fn two_switches_and_a_pair_in_one_process() {
    let file = file(
        r#"
        [options]
        hugepages = "off"
        [[switch]]
        name = "one"
        [[switch.port]]
        address = "tap:ta"
        [[switch.port]]
        address = "tap:tb"
        [[switch]]
        name = "two"
        [[switch.port]]
        address = "tap:tc"
        vlan = 7
        [[switch.port]]
        address = "tap:td"
        vlan = 7
        [[fwd]]
        name = "pair"
        a = "tap:te"
        b = "tap:tf"
        "#,
    );
    let host = Namespace::new();
    let service = run(&host, &file);
    for [here, there] in [["ta", "tb"], ["tc", "td"], ["te", "tf"]] {
        let one = with_interface(&host, here, "198.18.0.1/24");
        let _other = with_interface(&host, there, "198.18.0.2/24");
        ping(&one, "198.18.0.2");
    }
    service.signal("USR1");
    wait_until("the stations of two switches", || service.line().contains("\"table\""));
    let lines = terminate(service);
    let summary: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
    assert_eq!(summary["event"], "summary");
    let ports = summary["ports"].as_array().expect("ports");
    assert_eq!(ports.len(), 6);
    for port in ports {
        assert!(port["rx_packets"].as_u64() >= Some(100) && port["tx_packets"].as_u64() >= Some(100), "{port}");
    }
}

#[test]
fn a_switch_that_has_lost_its_ports_ends_and_the_others_go_on() {
    let file = file(
        r#"
        [options]
        hugepages = "off"
        [[switch]]
        name = "lost"
        [[switch.port]]
        address = "xdp:va"
        [[switch.port]]
        address = "xdp:vb"
        [[switch]]
        name = "other"
        [[switch.port]]
        address = "tap:ta"
        [[switch.port]]
        address = "tap:tb"
        "#,
    );
    let host = Namespace::new();
    host.ip(&["link", "add", "name", "va", "type", "veth", "peer", "name", "vb"]);
    for name in ["va", "vb"] {
        host.ip(&["link", "set", name, "up"]);
    }
    let service = run(&host, &file);
    let one = with_interface(&host, "ta", "198.18.0.1/24");
    let _other = with_interface(&host, "tb", "198.18.0.2/24");
    host.ip(&["link", "delete", "va"]);
    service.wait_for_stderr("switch 'lost': fewer than two ports are left");
    ping(&one, "198.18.0.2");
    service.signal("INT");
    let Ended { status, errors, .. } = ended(service);
    assert_eq!(status, Some(0), "{errors:?}");
}

#[test]
fn files_that_are_wrong_open_nothing() {
    let host = Namespace::new();
    let tap = "[[switch]]\nname = \"s\"\n[[switch.port]]\naddress = \"tap:a\"\n[[switch.port]]\n";
    let cases = [
        ("[[switch]]\nnmae = \"a\"\n".to_owned(), vec![":2: 'nmae", "did you mean 'name'?"]),
        ("[option]\nbatch = 3\n".to_owned(), vec!["option"]),
        ("[options]\nbatch = 0\n".to_owned(), vec![":2: ", "1 to 256"]),
        ("[options]\nrxd = 100\n".to_owned(), vec![":2: ", "power of two"]),
        ("[options]\npoll = true\n".to_owned(), vec!["nothing to run"]),
        ("[[model]]\ncard = \"82598\"\nsocket = \"/a\"\nwire = \"null\"".to_owned(), vec!["[[model]]: ", "82598"]),
        ("[[netmap]]\nmemory = \"much\"".to_owned(), vec!["[[netmap]]: ", "much"]),
        (format!("{tap}address = \"tap:a\"\n"), vec!["two ports are called 'tap:a'"]),
        (format!("{tap}address = \"tpa:b\"\n"), vec!["port 'tpa:b'"]),
        (format!("{tap}address = \"null\"\n[[switch]]\n"), vec!["needs a 'name'"]),
        (format!("{tap}address = \"null\"\n[[fwd]]\nname = \"s\"\na = \"null\"\nb = \"tap:b\""), vec!["two switches"]),
        ("[[fwd]]\na = \"tap:a\"\nb = \"tap:a\"".to_owned(), vec!["'tap:a' cannot be both ports"]),
        ("[[port]]\naddress = \"tap:a\"".to_owned(), vec!["switch 'switch': a switch has 2 to 64 ports"]),
    ];
    for (content, parts) in &cases {
        let file = file(content);
        for subcommand in ["check", "run"] {
            let Ended { status, lines, errors } = ended(host.spawn(&[RINGPASS, subcommand, text(&file.path)]));
            assert!(status == Some(1) && lines.is_empty() && errors.len() == 1, "{content}: {lines:?} {errors:?}");
            assert!(parts.iter().all(|part| errors[0].contains(part)), "{content}: {errors:?}");
        }
    }
    // A file that is right, whose second port cannot be opened.
    let file = file(&format!("{tap}address = \"packet:nothere\"\n"));
    let checked = host.run(&[RINGPASS, "check", text(&file.path)]);
    assert_eq!(checked.trim(), "s: tap:a, packet:nothere");
    let Ended { status, errors, .. } = ended(host.spawn(&[RINGPASS, "run", text(&file.path), "--json"]));
    assert!(status == Some(1) && errors.concat().contains("nothere"), "{errors:?}");
    assert!(!host.ip(&["link"]).contains(" a:"), "the TAP is gone");
    let service = self::file("[[fwd]]\na = \"null\"\nb = \"tap:b\"");
    let Ended { status, errors, .. } = ended(host.spawn(&[RINGPASS, "switch", "--config", text(&service.path)]));
    assert!(status == Some(1) && errors.concat().contains("run it: ringpass run"), "{errors:?}");
}

#[test]
fn ports_are_removed_while_others_pass_frames() {
    let (folder, _) = for_everybody();
    let [control, read_only] = ["control", "read-only"].map(|name| folder.path().join(name));
    let file = file(&format!(
        r#"
        [options]
        hugepages = "off"
        [control]
        socket = "{}"
        read-only = "{}"
        [[switch]]
        name = "lan"
        [[switch.port]]
        address = "tap:ta"
        name = "a"
        [[switch.port]]
        address = "tap:tb"
        name = "b"
        [[switch.port]]
        address = "tap:tc"
        name = "c"
        [[switch.pass]]
        from = "c"
        to = "b"
        "#,
        text(&control),
        text(&read_only)
    ));
    let host = Namespace::new();
    let service = run(&host, &file);
    let one = with_interface(&host, "ta", "198.18.0.1/24");
    let _other = with_interface(&host, "tb", "198.18.0.2/24");
    let connect = |path| Client::connect(path).expect("it serves");
    let (mut client, mut events) = (connect(&control), connect(&read_only));
    events.request(&Request::Events).expect("an answer");
    let remove = |port: &str| Request::Remove { port: port.into() };
    let refused = |client: &mut Client, port: &str| {
        client.request(&remove(port)).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(refused(&mut events, "c").contains("for looking only"));
    assert!(refused(&mut client, "d").contains("there is no port 'd'"));
    assert!(refused(&mut client, "b").contains("remove 'c' first"));
    // A thousand pings, none of which is lost.
    let pings = one.spawn(&["ping", "-q", "-i", "0.002", "-c", "1000", "-w", "60", "198.18.0.2"]);
    client.request(&remove("c")).expect("it is removed");
    wait_until("the TAP to be gone", || !host.ip(&["link"]).contains(" tc:"));
    let said = pings.wait(Duration::from_secs(60)).lines.concat();
    assert!(said.contains("1000 received, 0% packet loss"), "{said}");
    let mut seen = Vec::new();
    wait_until("the event", || {
        seen.extend(events.event(Duration::from_millis(100)).expect("it lives"));
        seen.iter().any(|event| event["event"] == "removed" && event["port"] == "c")
    });
    assert!(refused(&mut client, "c").contains("there is no port 'c'"));
    let names = |client: &mut Client| {
        let status = client.status().expect("a status");
        assert_eq!(status.switches[0].ports, status.ports.iter().map(|port| &port.name[..]).collect::<Vec<_>>());
        status.switches[0].ports.clone()
    };
    assert_eq!(names(&mut client), ["a", "b"]);
    // The switch waits for ports that may be added.
    client.request(&remove("a")).expect("it is removed");
    client.request(&remove("b")).expect("it is removed");
    std::thread::sleep(Duration::from_millis(300));
    assert!(names(&mut client).is_empty());
    terminate(service);
}

/// Returns the number of descriptors and threads of a process.
fn resources(id: u32) -> (usize, usize) {
    let count = |folder: &str| std::fs::read_dir(format!("/proc/{id}/{folder}")).expect("it runs").count();
    (count("fd"), count("task"))
}

/// Returns them once clients have gone and what was dropped elsewhere is dropped.
fn resources_at_rest(id: u32) -> (usize, usize) {
    let mut before = resources(id);
    wait_until("rest", || {
        std::thread::sleep(Duration::from_millis(500));
        resources(id) == std::mem::replace(&mut before, resources(id))
    });
    before
}

#[test]
fn ports_are_added_in_the_sandbox_while_others_pass_frames() {
    let (folder, _) = for_everybody();
    let control = folder.path().join("control");
    let file = file(&format!(
        r#"
        [options]
        hugepages = "off"
        [control]
        socket = "{}"
        room = 2
        [[switch]]
        name = "lan"
        [[switch.port]]
        address = "tap:ta"
        vlan = 10
        [[switch.port]]
        address = "tap:tb"
        vlan = 10
        [[switch]]
        name = "other"
        [[switch.port]]
        address = "null"
        [[switch.port]]
        address = "tap:td"
        "#,
        text(&control),
    ));
    let host = Namespace::new();
    let service = run(&host, &file);
    let one = with_interface(&host, "ta", "198.18.0.1/24");
    let _two = with_interface(&host, "tb", "198.18.0.2/24");
    let ctl = |arguments: &[&str]| ctl(&host, &control, arguments);
    let pings = one.spawn(&["ping", "-q", "-i", "0.002", "-c", "1000", "-w", "60", "198.18.0.2"]);
    ctl(&["add", "lan", "tap:tc", "--name", "c", "--vlan", "10"]).expect("it is added");
    let three = with_interface(&host, "tc", "198.18.0.3/24");
    ping(&three, "198.18.0.1");
    let said = pings.wait(Duration::from_secs(60)).lines.concat();
    assert!(said.contains("1000 received, 0% packet loss"), "{said}");
    // What is wrong changes nothing.
    for (arguments, why) in [
        (&["add", "lan", "null", "--name", "c"][..], "there is a port 'c' already"),
        (&["add", "lna", "tap:te"], "there is no switch 'lna', but lan, other"),
        (&["add", "lan", "tap:te", "--vlan", "4095"], "1 to 4094"),
        (&["add", "lan", "tap:te", "--set", "colour=1"], "unknown field `colour`"),
        (&["add", "lan", "xdp:tc"], "opened at the start only"),
        (&["add", "lan", "tap:te", "--set", "stations=[\"ff:ff:ff:ff:ff:ff\"]"], "no station has a group address"),
    ] {
        let error = ctl(arguments).expect_err(why);
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
    assert!(!host.ip(&["link"]).contains(" te:"), "the TAP is gone with what was refused");
    ctl(&["add", "other", "null", "--name", "last"]).expect("there is room for one more");
    let full = ctl(&["add", "other", "null", "--name", "more"]).expect_err("no room");
    assert!(full.contains("there is no room"), "{full}");
    ctl(&["remove", "last"]).expect("it is removed");
    // Again and again, which leaves nothing behind.
    let before = resources_at_rest(service.id());
    for _ in 0..30 {
        ctl(&["add", "other", "tap:te", "--name", "again", "--set", "isolation=1"]).expect("it is added");
        ctl(&["remove", "again"]).expect("it is removed");
    }
    wait_until("what it had before", || resources(service.id()) == before);
    ping(&three, "198.18.0.2");
    ctl(&["remove", "c"]).expect("it is removed");
    wait_until("the TAP to be gone", || !three.ip(&["link"]).contains(" tc:"));
    terminate(service);
}

#[test]
fn rules_of_a_port_change_while_frames_pass() {
    let (folder, _) = for_everybody();
    let control = folder.path().join("control");
    let port = |address: &str, vlan| format!("[[switch.port]]\naddress = \"{address}\"\nvlan = {vlan}\n");
    let ports = [port("tap:ta", 10), port("tap:tb", 10), port("tap:tc", 20)].concat();
    let pair = "[[fwd]]\nname = \"pair\"\na = \"null\"\nb = \"tap:tp\"\n";
    let file = file(&format!(
        "[options]\nhugepages = \"off\"\n[control]\nsocket = \"{}\"\n[[switch]]\nname = \"lan\"\n{ports}{pair}",
        text(&control)
    ));
    let host = Namespace::new();
    let service = run(&host, &file);
    let one = with_interface(&host, "ta", "198.18.0.1/24");
    let two = with_interface(&host, "tb", "198.18.0.2/24");
    let three = with_interface(&host, "tc", "198.18.0.3/24");
    let ctl = |arguments: &[&str]| ctl(&host, &control, arguments);
    let reaches = |from: &Namespace| {
        let ping = ["ping", "-q", "-c", "1", "-W", "1", "198.18.0.2"];
        from.spawn(&ping).wait(Duration::from_secs(20)).status == Some(0)
    };
    assert!(!reaches(&three), "it is in another VLAN");
    let pings = one.spawn(&["ping", "-q", "-i", "0.002", "-c", "1000", "-w", "60", "198.18.0.2"]);
    ctl(&["set", "tap:tc", "vlan=10"]).expect("another VLAN");
    wait_until("the other VLAN", || reaches(&three));
    ping(&three, "198.18.0.1");
    // The same VLAN in another way, for a port that frames pass.
    ctl(&["set", "tap:tb", "trunk=\"10,20\"", "native=10", "--unset", "vlan"]).expect("a trunk");
    ctl(&["set", "tap:ta", "flood=50"]).expect("a limit");
    let said = pings.wait(Duration::from_secs(60)).lines.concat();
    assert!(said.contains("1000 received, 0% packet loss"), "{said}");
    // Nobody else may send from there, and a station stays.
    let station = three.mac("tc");
    ctl(&["set", "tap:tc", &format!("sources=[\"{station}\"]"), &format!("stations=[\"{station}\"]")]).expect("rules");
    assert!(reaches(&three));
    let mut client = Client::connect(&control).expect("it listens");
    let stations = client.request(&Request::Stations { switch: None }).expect("stations");
    let fixed = |one: &Value| one["mac"] == station && one["port"] == "tap:tc" && one["seconds"].is_null();
    assert!(stations.as_array().is_some_and(|all| all.iter().any(fixed)), "{stations}");
    three.ip(&["link", "set", "tc", "address", "02:00:00:00:00:77"]);
    assert!(!reaches(&three), "another address may not send");
    ctl(&["set", "tap:tc", "--unset", "sources", "--unset", "stations"]).expect("no rules");
    wait_until("frames of another address", || reaches(&three));
    for (arguments, why) in [
        (&["set", "tap:tc", "vlan=4095"][..], "1 to 4094"),
        (&["set", "tap:tc", "native=10"], "'vlan' goes with neither"),
        (&["set", "tap:tc", "stations=[\"ff:ff:ff:ff:ff:ff\"]"], "no station has a group address"),
        (&["set", "tap:tc", "name=\"other\""], "only vlan, trunk, native"),
        (&["set", "tap:tx", "vlan=1"], "there is no port 'tap:tx'"),
        (&["set", "pair.b", "vlan=1"], "there is no port 'pair.b' with rules"),
    ] {
        let error = ctl(arguments).expect_err(why);
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
    assert!(reaches(&three) && reaches(&one), "nothing has changed");
    drop(two);
    terminate(service);
}

#[test]
fn a_guest_comes_to_a_running_service() {
    let (folder, _) = for_everybody();
    let [control, guest] = ["control", "guest"].map(|name| folder.path().join(name));
    let file = file(&format!(
        r#"
        [options]
        hugepages = "off"
        queues = 2
        [control]
        socket = "{}"
        room = 1
        [[switch]]
        name = "lan"
        [[switch.port]]
        address = "tap:ta"
        [[switch.port]]
        address = "null"
        "#,
        text(&control),
    ));
    let host = Namespace::new();
    let service = run(&host, &file);
    let one = with_interface(&host, "ta", "198.18.0.1/24");
    let ctl = |arguments: &[&str]| ctl(&host, &control, arguments);
    let address = format!("vhost:{}", text(&guest));
    let few = ctl(&["add", "lan", &format!("{address},queues=1")]).expect_err("there are two workers");
    assert!(few.contains("has 1 queue(s), not 2"), "{few}");
    let before = resources_at_rest(service.id());
    for round in 0..2 {
        ctl(&["add", "lan", &address, "--name", "guest"]).expect("it is added");
        let program = host.spawn(&[
            RINGPASS,
            "fwd",
            &format!("virtio-user:{}", text(&guest)),
            "tap:tg",
            "--queues",
            "2",
            "--hugepages",
            "off",
        ]);
        let two = with_interface(&host, "tg", "198.18.0.2/24");
        // Another interface has another MAC address.
        one.ip(&["neigh", "flush", "all"]);
        one.run(&["timeout", "20", "sh", "-c", "until ping -q -c 1 -W 1 198.18.0.2; do :; done"]);
        ping(&two, "198.18.0.1");
        if round == 0 {
            program.signal("TERM");
            assert_eq!(ended(program).status, Some(0));
            ctl(&["remove", "guest"]).expect("it is removed");
        } else {
            // Its port goes first.
            ctl(&["remove", "guest"]).expect("it is removed");
            program.signal("TERM");
            ended(program);
        }
        wait_until("what it had before", || resources(service.id()) == before);
    }
    terminate(service);
}

#[test]
fn software_cards_and_netmap_ports_are_parts_of_a_service() {
    let (folder, _) = for_everybody();
    let [card, netmap] = ["card", "netmap"].map(|name| folder.path().join(name));
    let content = |wire: &str| {
        format!(
            r#"
            [options]
            hugepages = "off"
            [[model]]
            card = "82599"
            socket = "{0}"
            wire = "{wire}"
            [[netmap]]
            socket = "{1}"
            attach = ["vale0:tap:tn"]
            [[switch]]
            name = "lan"
            [[switch.port]]
            address = "vfio-user:{0}"
            [[switch.port]]
            address = "vale0:service"
            [[switch.port]]
            address = "tap:ta"
            "#,
            text(&card),
            text(&netmap),
        )
    };
    let right = file(&content("tap:tm"));
    let host = Namespace::new();
    let variable = format!("RINGPASS_NETMAP_SOCKET={}", text(&netmap));
    let start = |file: &File| host.spawn(&["env", &variable, RINGPASS, "run", text(&file.path), "--json"]);
    let service = start(&right);
    service.wait_for_stderr("sandbox: ");
    let one = with_interface(&host, "tm", "198.18.0.1/24");
    let two = with_interface(&host, "tn", "198.18.0.2/24");
    let three = with_interface(&host, "ta", "198.18.0.3/24");
    ping(&one, "198.18.0.2");
    ping(&three, "198.18.0.1");
    // One that ends takes its port out, and the others go on.
    let parts = || {
        let all = std::process::Command::new("pgrep").args(["-f", text(&card)]).output().expect("pgrep starts");
        let ids = String::from_utf8(all.stdout).expect("numbers");
        let ids = ids.lines().map(|id| id.parse::<u32>().expect("a number"));
        let command = |id: &u32| std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        ids.filter(|id| command(id).contains("\0model\0")).collect::<Vec<_>>()
    };
    let model = parts();
    std::process::Command::new("kill").args(model.iter().map(u32::to_string)).status().expect("kill starts");
    service.wait_for_stderr("model 82599");
    ping(&three, "198.18.0.2");
    let lines = terminate(service);
    assert!(lines.iter().filter(|line| line.contains("\"summary\"")).count() >= 1, "{lines:?}");
    wait_until("the end of its parts", || ringpass::netmap::client::Client::connect(&netmap).is_err());
    drop((one, two));
    // One that cannot start starts nothing.
    let wrong = file(&content("packet:nowhere"));
    let Ended { status, errors, .. } = ended(start(&wrong));
    assert!(status == Some(1) && errors.concat().contains("packet:nowhere"), "{errors:?}");
    assert!(errors.last().is_some_and(|last| last.contains("has not started")), "{errors:?}");
    assert!(!host.ip(&["link"]).contains(" tn:"));
}

/// Ports whose other side is a process at a socket: the one who asks connects, and passes the connection on.
#[test]
fn ports_of_other_processes_come_to_a_running_service() {
    let (folder, _) = for_everybody();
    let path = |name: &str| folder.path().join(name);
    let [control, card, netmap, attached] = ["control", "card", "netmap", "attached"].map(path);
    let file = file(&format!(
        r#"
        [options]
        hugepages = "off"
        [control]
        socket = "{}"
        room = 1
        [[switch]]
        name = "lan"
        [[switch.port]]
        address = "tap:ta"
        [[switch.port]]
        address = "null"
        "#,
        text(&control),
    ));
    let host = Namespace::new();
    host.ip(&["link", "add", "name", "vx", "type", "veth", "peer", "name", "vy"]);
    host.ip(&["link", "set", "vx", "up"]);
    let service = run(&host, &file);
    let one = with_interface(&host, "ta", "198.18.0.1/24");
    let ctl = |arguments: &[&str]| {
        let netmap = format!("RINGPASS_NETMAP_SOCKET={}", text(&netmap));
        done(&host, &[&["env", &netmap, RINGPASS, "ctl", "--socket", text(&control)], arguments].concat())
    };
    let card_address = format!("vfio-user:{}", text(&card));
    let absent = ctl(&["add", "lan", &card_address]).expect_err("nobody serves it");
    assert!(absent.contains("is a server running there?"), "{absent}");
    let mut before = resources_at_rest(service.id());
    let attached_address = format!("xdp:vx,socket={}", text(&attached));
    for (server, socket, address, far) in [
        (&["model", "82599", "--socket", text(&card), "--wire", "tap:tm"][..], &card, &card_address[..], "tm"),
        (&["netmapd", "--socket", text(&netmap), "--attach", "vale0:tap:tn"], &netmap, "vale0:service", "tn"),
        (&["xdp", "attach", "vx", "--socket", text(&attached)], &attached, &attached_address, "vy"),
    ] {
        let server = host.spawn(&[&[RINGPASS], server].concat());
        wait_until("the server", || socket.exists());
        ctl(&["add", "lan", address, "--name", "new"]).unwrap_or_else(|why| panic!("{address}: {why}"));
        let two = with_interface(&host, far, "198.18.0.2/24");
        // Another interface has another MAC address.
        one.ip(&["neigh", "flush", "all"]);
        one.run(&["timeout", "20", "sh", "-c", "until ping -q -c 1 -W 1 198.18.0.2; do :; done"]);
        ping(&two, "198.18.0.1");
        let full = ctl(&["add", "lan", "null", "--name", "more"]).expect_err("there is room for one");
        assert!(full.contains("there is no room"), "{full}");
        ctl(&["remove", "new"]).expect("it is removed");
        wait_until("what it had before", || resources(service.id()) == before);
        // Its server is free for the next one; one that has ended takes its port out, and no other.
        ctl(&["add", "lan", address, "--name", "new"]).unwrap_or_else(|why| panic!("{address}: {why}"));
        server.signal("TERM");
        ended(server);
        service.wait_for_stderr("new (");
        ctl(&["remove", "new"]).expect("it is removed");
        // The driver gives the memory of rings back to nobody if the card has not said that it has stopped.
        let kept = usize::from(far == "tm");
        wait_until("what it had before", || resources(service.id()) == (before.0 + kept, before.1));
        before.0 += kept;
    }
    terminate(service);
}

#[test]
fn a_changed_file_is_applied_where_it_differs() {
    let (folder, _) = for_everybody();
    let control = folder.path().join("control");
    let content = |ports: &str| {
        format!(
            "[options]\nhugepages = \"off\"\n[control]\nsocket = \"{}\"\n[[switch]]\nname = \"lan\"\n{ports}",
            text(&control)
        )
    };
    let port = |address: &str, more: &str| format!("[[switch.port]]\naddress = \"{address}\"\n{more}\n");
    let (ta, tb, tc) = (port("tap:ta", ""), port("tap:tb", ""), port("tap:tc", "vlan = 7"));
    let first = file(&content(&[&ta[..], &tb, &tc].concat()));
    let host = Namespace::new();
    let service = run(&host, &first);
    let one = with_interface(&host, "ta", "198.18.0.1/24");
    let _two = with_interface(&host, "tb", "198.18.0.2/24");
    let apply = |file: &File, more: &[&str]| {
        done(&host, &[&[RINGPASS, "apply", text(&file.path), "--socket", text(&control)], more].concat())
    };
    assert_eq!(apply(&first, &[]), Ok(vec![]), "nothing differs");
    // One port is another one now, one is new, two stay.
    let (changed, new) = (port("tap:tc", "vlan = 8"), port("tap:td", "name = \"d\""));
    let second = file(&content(&[&ta[..], &tb, &changed, &new].concat()));
    let steps = ["~ tap:tc", "+ d (lan)"].map(str::to_owned).to_vec();
    assert_eq!(apply(&second, &["--dry-run"]), Ok(steps.clone()));
    assert!(!host.ip(&["link"]).contains(" td:"), "nothing was changed");
    let pings = one.spawn(&["ping", "-q", "-i", "0.002", "-c", "1000", "-w", "60", "198.18.0.2"]);
    assert_eq!(apply(&second, &[]), Ok(steps));
    let said = pings.wait(Duration::from_secs(60)).lines.concat();
    assert!(said.contains("1000 received, 0% packet loss"), "{said}");
    assert_eq!(apply(&second, &[]), Ok(vec![]), "it is as the file says");
    let four = with_interface(&host, "td", "198.18.0.4/24");
    ping(&four, "198.18.0.1");
    // What cannot be changed is refused as a whole.
    let lost = port("tap:te", "");
    for (content, why) in [
        (content(&[&ta[..], &tb, &lost, &port("xdp:tc", "")].concat()), "opened at the start only"),
        (content(&[&ta[..], &tb].concat()).replace("\"off\"", "\"on\""), "[options] cannot be changed"),
        (content(&[&ta[..], &tb].concat()).replace("lan", "wan"), "the list of switches"),
        (
            content(&[&ta[..], &tb].concat()).replace("name = \"lan\"", "name = \"lan\"\nageing = 5"),
            "apart from its ports",
        ),
        (content(&ta), "a switch has 2 to 64 ports"),
    ] {
        let error = apply(&file(&content), &[]).expect_err(why);
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(apply(&second, &[]), Ok(vec![]), "nothing has changed");
    assert!(!host.ip(&["link"]).contains(" te:"));
    // One step fails half way: those before are taken back.
    let half = [port("tap:te", ""), port("vfio-user:/nobody", "")].concat();
    let error = apply(&file(&content(&[&ta[..], &tb, &changed, &half].concat())), &[]).expect_err("nobody serves it");
    assert!(error.contains("is a server running there?") && error.contains("nothing was changed"), "{error}");
    assert_eq!(apply(&second, &[]), Ok(vec![]), "it is as before");
    wait_until("the TAPs", || {
        let links = host.ip(&["link"]);
        links.contains(" td:") && !links.contains(" te:")
    });
    // At SIGHUP, the service's own file counts.
    std::fs::write(&first.path, content(&[&ta[..], &tb, &lost].concat())).expect("a file");
    service.signal("HUP");
    service.wait_for_stderr("+ tap:te (lan)");
    assert_eq!(apply(&first, &[]), Ok(vec![]));
    service.signal("HUP");
    service.wait_for_stderr("nothing differs");
    std::fs::write(&first.path, "colour = 1").expect("a file");
    service.signal("HUP");
    service.wait_for_stderr("colour");
    terminate(service);
}

/// A service with two TAPs in namespaces of their own, and a control socket.
struct TwoTaps {
    file: File,
    host: Namespace,
    service: Program,
    one: Namespace,
    _two: Namespace,
}

impl TwoTaps {
    fn start() -> Self {
        let file = file(
            r#"
            [options]
            hugepages = "off"
            [control]
            socket = "SOCKET"
            [[switch]]
            name = "lan"
            [[switch.port]]
            address = "tap:ta"
            [[switch.port]]
            address = "tap:tb"
            "#,
        );
        let content = std::fs::read_to_string(&file.path).expect("the file");
        let control = file.path.with_file_name("control");
        std::fs::write(&file.path, content.replace("SOCKET", text(&control))).expect("a file");
        let host = Namespace::new();
        let service = run(&host, &file);
        let one = with_interface(&host, "ta", "198.18.0.1/24");
        let two = with_interface(&host, "tb", "198.18.0.2/24");
        ping(&one, "198.18.0.2");
        Self { file, host, service, one, _two: two }
    }

    fn control(&self) -> PathBuf {
        self.file.path.with_file_name("control")
    }
}

#[test]
fn a_capture_begins_and_ends_while_frames_pass() {
    let there = TwoTaps::start();
    let (control, host) = (there.control(), &there.host);
    let capture = there.file.path.with_file_name("a.pcapng");
    let pings = there.one.spawn(&["ping", "-q", "-i", "0.005", "-c", "1500", "-w", "60", "198.18.0.2"]);
    let said = ctl(host, &control, &["capture", "tap:ta", "-w", text(&capture), "--count", "200"]).expect("a capture");
    assert!(said.is_empty(), "{said:?}");
    // tcpdump reads both directions, numbered without a gap.
    let lines = run_lines(&["tcpdump", "-nr", text(&capture)]);
    assert_eq!(lines.len(), 200, "{lines:?}");
    let numbers = |kind: &str| -> Vec<u64> {
        let of_kind = lines.iter().filter(|line| line.contains(kind));
        of_kind
            .map(|line| {
                line.split("seq ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok()).expect("a number")
            })
            .collect()
    };
    for kind in ["echo request", "echo reply"] {
        let numbers = numbers(kind);
        assert!(numbers.len() >= 99 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    }
    let bytes = std::fs::read(&capture).expect("the capture");
    assert!(bytes.windows(6).any(|part| part == b"tap:ta"), "the interface has the port's name");
    let ipv4 = [
        "capture",
        "tap:tb",
        "-w",
        text(&capture),
        "--count",
        "10",
        "--filter",
        "vlan:7",
        "--filter",
        "ethertype:0x0800",
    ];
    ctl(host, &control, &ipv4).expect("a capture");
    assert_eq!(run_lines(&["tcpdump", "-nr", text(&capture), "icmp"]).len(), 10);
    // Frames of a kind that there is none of.
    let arp = ["capture", "tap:tb", "-w", text(&capture), "--time", "0.5", "--filter", "ethertype:0x88b5", "--json"];
    let said = ctl(host, &control, &arp).expect("a capture");
    assert_eq!(said, [r#"{"event":"captured","port":"tap:tb","frames":0,"lost":0}"#]);
    // Every capture again and again, and no ping is lost.
    for _ in 0..10 {
        ctl(host, &control, &["capture", "tap:tb", "-w", text(&capture), "--count", "5"]).expect("a capture");
    }
    let ended = pings.wait(Duration::from_secs(60));
    assert!(ended.lines.iter().any(|line| line.contains("1500 received")), "{:?}", ended.lines);
    terminate(there.service);
}

#[test]
fn captures_that_go_wrong_leave_the_service_alone() {
    let there = TwoTaps::start();
    let (control, host) = (there.control(), &there.host);
    let capture = text(&there.file.path.with_file_name("a.pcapng")).to_owned();
    let refused = |arguments: &[&str]| ctl(host, &control, &[&["capture"], arguments].concat()).expect_err("wrong");
    assert!(refused(&["tap:tx", "-w", &capture]).contains("there is no port 'tap:tx'"));
    assert!(refused(&["tap:ta", "-w", &capture, "--filter", "tcp"]).contains("'tcp' is not a filter"));
    assert!(refused(&["tap:ta", "-w", "/nowhere/a.pcapng"]).contains("/nowhere/a.pcapng"));
    // A client that has two at a time, one that does not read, and one that sends no socket.
    let mut client = Client::connect(&control).expect("the service");
    let begin = |client: &mut Client, port: &str, socket: &UnixStream| {
        client.request_with(&Request::Capture { port: port.into(), filters: Vec::new() }, &[socket.as_fd()])
    };
    let (own, other) = UnixStream::pair().expect("sockets");
    begin(&mut client, "tap:ta", &other).expect("a capture");
    let again = begin(&mut client, "tap:ta", &other).expect_err("the second one").to_string();
    assert!(again.contains("a capture of 'tap:ta' already"), "{again}");
    let none = client.request(&Request::Capture { port: "tap:tb".into(), filters: Vec::new() });
    assert!(none.expect_err("no socket").to_string().contains("without a socket"));
    drop(other);
    there.one.run(&["ping", "-q", "-f", "-c", "20000", "-w", "60", "198.18.0.2"]);
    // A disk that is full is the client's.
    let pings = there.one.spawn(&["ping", "-q", "-i", "0.002", "-c", "500", "-w", "60", "198.18.0.2"]);
    let full = there.file.path.with_file_name("full.pcapng");
    std::os::unix::fs::symlink("/dev/full", &full).expect("a link");
    let failed = refused(&["tap:tb", "-w", text(&full), "--count", "1"]);
    assert!(failed.contains("No space left"), "{failed}");
    // The reader leaves, and the port can be captured again.
    drop(own);
    wait_until("the capture's end", || {
        ctl(host, &control, &["capture", "tap:ta", "-w", &capture, "--count", "2"]).is_ok()
    });
    // A port that is taken out ends its capture.
    let (mut own, other) = UnixStream::pair().expect("sockets");
    begin(&mut client, "tap:tb", &other).expect("a capture");
    drop(other);
    assert!(pings.wait(Duration::from_secs(60)).lines.iter().any(|line| line.contains("500 received")));
    client.request(&Request::Remove { port: "tap:tb".into() }).expect("a port");
    own.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let mut rest = Vec::new();
    own.read_to_end(&mut rest).expect("the end of the capture");
    assert!(rest.windows(6).any(|part| part == b"tap:tb"), "the capture has its beginning, with the port's name");
    terminate(there.service);
}

#[test]
fn tshark_has_the_ports_as_interfaces_and_captures() {
    let there = TwoTaps::start();
    let control = there.control();
    let folder = tempfile::tempdir().expect("a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/extcap");
    std::fs::copy(script, folder.path().join("ringpass")).expect("room for a script");
    let program = Path::new(RINGPASS).parent().expect("a folder");
    let tshark = |arguments: &[&str]| {
        crate::common::tshark(folder.path(), &control, program, arguments).wait(Duration::from_secs(60))
    };
    let interfaces = tshark(&["-D"]).lines.join("\n");
    assert!(interfaces.contains("ringpass:tap:ta (Ringpass port tap:ta of switch lan)"), "{interfaces}");
    let pings = there.one.spawn(&["ping", "-q", "-i", "0.01", "-c", "6000", "-w", "60", "198.18.0.2"]);
    let captured =
        tshark(&["-i", "ringpass:tap:ta", "-f", "ethertype:0x0800", "-c", "20", "-T", "fields", "-e", "icmp.type"]);
    let (requests, replies): (Vec<_>, Vec<_>) = captured.lines.iter().partition(|line| line.trim() == "8");
    assert!(requests.len() == 10 && replies.len() == 10, "{captured:?}");
    assert!(replies.iter().all(|line| line.trim() == "0"), "{captured:?}");
    // The service has noticed that tshark has left.
    wait_until("the next capture", || {
        let file = there.file.path.with_file_name("a.pcapng");
        ctl(&there.host, &control, &["capture", "tap:ta", "-w", text(&file), "--count", "1"]).is_ok()
    });
    let wrong = tshark(&["-i", "ringpass:tap:ta", "-f", "tcp port 80", "-c", "1"]);
    assert!(wrong.status != Some(0) && wrong.errors.join("\n").contains("is not a filter"), "{wrong:?}");
    drop(pings);
    // Without a service there are no interfaces, and no error either.
    terminate(there.service);
    assert!(!tshark(&["-D"]).lines.join("\n").contains("ringpass:"));
}
