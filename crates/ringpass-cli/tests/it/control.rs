//! Control sockets: `ringpass ctl` and other clients, of the service and of single commands.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringpass::control::{Client, PortStatus, Request, Status};
use ringpass_lab::{Namespace, Program, wait_until};
use serde_json::Value;

use crate::common::{RINGPASS, for_everybody, text};

/// A program with both control sockets.
struct Controlled {
    program: Program,
    _folder: tempfile::TempDir,
    control: PathBuf,
    read_only: PathBuf,
}

/// Starts a program, and waits until it can be asked.
fn start(namespace: &Namespace, arguments: &[&str]) -> Controlled {
    let (folder, _) = for_everybody();
    let [control, read_only] = ["control", "read-only"].map(|name| folder.path().join(name));
    let everybody = format!("{},mode=0666", text(&read_only));
    let sockets = ["--control", text(&control), "--control-read-only", &everybody, "--json"];
    let program = namespace.spawn(&[&[RINGPASS], arguments, &sockets].concat());
    wait_until("the control socket", || Client::connect(&control).is_ok_and(|mut client| client.status().is_ok()));
    Controlled { program, _folder: folder, control, read_only }
}

fn ctl(socket: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(RINGPASS);
    let output = command.args(["ctl", "--socket", text(socket)]).args(arguments).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn status(socket: &Path) -> Status {
    Client::connect(socket).and_then(|mut client| client.status()).unwrap_or_else(|error| panic!("{error}"))
}

fn end(controlled: Controlled) {
    controlled.program.signal("TERM");
    let ended = controlled.program.wait(Duration::from_secs(20));
    assert_eq!(ended.status, Some(0), "{:?}", ended.errors);
}

/// Two namespaces with a veth pair, `va` and `vb`.
fn veth() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(), Namespace::new());
    // Linux answers for all its addresses on every interface, also on the one that belongs to the switch.
    b.run(&["sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore"]);
    a.ip(&["link", "add", "name", "va", "type", "veth", "peer", "name", "vb", "netns", &b.0]);
    a.ip(&["address", "add", "198.18.0.1/24", "dev", "va"]);
    a.ip(&["link", "set", "va", "up"]);
    b.ip(&["link", "set", "vb", "up"]);
    (a, b)
}

#[test]
fn a_switch_tells_its_ports_stations_and_what_happens() {
    let (a, b) = veth();
    let switch = start(&b, &["switch", "packet:vb", "tap:host"]);
    wait_until("the TAP", || b.ip(&["link"]).contains(" host:"));
    b.ip(&["address", "add", "198.18.0.2/24", "dev", "host"]);
    b.ip(&["link", "set", "host", "up"]);
    let mut events = Client::connect(&switch.read_only).expect("everybody may read");
    assert!(!events.greeting().changes && events.greeting().program == "ringpass switch");
    events.request(&Request::Events).expect("an answer");
    // Stations that are there are looked at first.
    std::thread::sleep(Duration::from_millis(500));
    let said = a.run(&["ping", "-q", "-i", "0.01", "-c", "100", "-w", "30", "198.18.0.2"]);
    assert!(said.contains("100 received, 0% packet loss"), "{said}");
    let Status { ports, switches, workers, buffers, buffers_in_use, .. } = status(&switch.control);
    let names: Vec<_> = ports.iter().map(|port| (&port.name[..], &port.state[..], port.link)).collect();
    assert_eq!(names, [("packet:vb", "running", true), ("tap:host", "running", true)]);
    assert!(ports.iter().all(|port| port.stats.rx_packets >= 100 && port.stats.tx_packets >= 100), "{ports:?}");
    assert!(ports[0].extended["switch_forwarded"] >= 99, "{ports:?}");
    assert!(switches.len() == 1 && switches[0].ports == ["packet:vb", "tap:host"], "{switches:?}");
    assert!(workers.len() == 1 && workers[0].moved >= 200 && workers[0].busy_cycles > 0, "{workers:?}");
    assert!(buffers > 1000 && buffers_in_use < buffers, "{buffers_in_use} of {buffers}");
    let mac = a.mac("va");
    let stations = ctl(&switch.control, &["stations", "--json"]).expect("stations");
    let stations: Vec<Value> = stations.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let own = stations.iter().find(|station| station["mac"] == mac).expect("the far end");
    assert_eq!((&own["port"], &own["switch"], &own["vlan"]), (&"packet:vb".into(), &"switch".into(), &0.into()));
    a.ip(&["link", "set", "va", "down"]);
    let mut seen = Vec::new();
    wait_until("the link to go down", || {
        seen.extend(events.event(Duration::from_millis(100)).expect("it lives"));
        seen.iter().any(|event| event["event"] == "link" && event["port"] == "packet:vb" && event["up"] == false)
    });
    let learnt = |event: &Value| event["event"] == "learnt" && event["mac"] == mac && event["port"] == "packet:vb";
    assert!(seen.iter().any(learnt), "{seen:?}");
    end(switch);
}

#[test]
fn the_command_prints_for_people_and_machines_and_says_what_is_wrong() {
    let host = Namespace::new();
    let forwarder = start(&host, &["fwd", "tap:left", "null"]);
    let control = &forwarder.control;
    let list = ctl(control, &["list"]).expect("a list");
    let line = |text: &str| list.lines().any(|line| text.split(' ').all(|word| line.contains(word)));
    assert!(list.lines().count() == 3 && line("tap:left running") && line("null running"), "{list}");
    let list = ctl(control, &["list", "--json"]).expect("a list");
    let first: Value = serde_json::from_str(list.lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&first["port"], &first["switch"], &first["state"]),
        (&"tap:left".into(), &Value::Null, &"running".into())
    );
    let shown = ctl(control, &["show", "tap:left", "--json"]).expect("a port");
    let port: PortStatus = serde_json::from_str(&shown).expect("a port");
    assert_eq!((&port.name[..], &port.address[..], port.queues.len()), ("tap:left", "tap:left", 1));
    assert!(ctl(control, &["show", "null"]).expect("a port").contains("rx_packets"));
    let stats = ctl(control, &["stats", "--interval", "0.1"]).expect("rates");
    assert!(stats.lines().count() == 2 && stats.contains("0 pps"), "{stats}");
    let nobody = ctl(control, &["show", "tap:lfet"]).expect_err("no such port");
    assert!(nobody.contains("there is no port 'tap:lfet', but tap:left, null") && nobody.lines().count() == 1);
    let stations = ctl(control, &["stations"]).expect_err("no switch");
    assert!(stations.contains("this program has no switch"), "{stations}");
    let absent = ctl(&control.with_file_name("absent"), &["list"]).expect_err("no socket");
    assert!(absent.contains("no program is controlled there") && absent.lines().count() == 1, "{absent}");
    // Bash completes the names.
    let completed = |words: &str| {
        let script = format!(
            "source <(COMPLETE=bash {RINGPASS}); COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
             _clap_complete_ringpass ringpass \"${{COMP_WORDS[-1]}}\"; printf '%s ' \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["-c", &script]).output().expect("it starts");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let all = completed(&format!("ringpass ctl --socket {} show ''", text(control)));
    assert!(all.starts_with("tap:left null "), "{all}");
    assert_eq!(completed(&format!("ringpass ctl --socket {} remove ta", text(control))), "tap:left ");
    assert!(completed("ringpass swi").starts_with("switch"));
    // Another user may use the socket for all, and not the other one.
    let other = |socket: &Path| {
        let program = control.with_file_name("ringpass");
        let mut command = Command::new(program);
        command.args(["ctl", "list", "--socket", text(socket)]).uid(65_533).gid(65_533);
        command.output().expect("it starts")
    };
    assert!(other(&forwarder.read_only).status.success());
    let refused = other(control);
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && errors.contains("you may not connect"), "{errors}");
    end(forwarder);
}

#[test]
fn netmap_ports_are_seen_too() {
    let host = Namespace::new();
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("netmap");
    let netmapd = ["netmapd", "--socket", text(&socket), "--attach", "vale0:tap:ta", "--port", "e=tap:te"];
    let server = start(&host, &netmapd);
    let socket = format!("RINGPASS_NETMAP_SOCKET={}", text(&socket));
    let mut events = Client::connect(&server.control).expect("it listens");
    events.request(&Request::Events).expect("an answer");
    let generator = host.spawn(&["env", &socket, RINGPASS, "pktgen", "vale0:a", "--count", "1000", "--rate", "1000"]);
    let port = |name: &str| status(&server.control).ports.into_iter().find(|port| port.name == name);
    wait_until("what a program sends", || port("vale0:a").is_some_and(|port| port.stats.rx_packets > 100));
    let attached = port("vale0:tap:ta").expect("it is attached");
    assert!(attached.address == "tap:ta" && attached.switch.as_deref() == Some("vale0"), "{attached:?}");
    assert!(attached.stats.tx_packets > 100 && attached.link, "{attached:?}");
    assert!(port("netmap:e").is_some_and(|port| port.address == "tap:te" && port.mac.len() == 17));
    let stations = ctl(&server.control, &["stations", "vale0"]).expect("stations");
    assert!(stations.lines().any(|line| line.ends_with("vale0:a")), "{stations}");
    assert!(ctl(&server.control, &["stations", "vale1"]).expect_err("no switch").contains("there is no switch"));
    let refused = ctl(&server.control, &["add", "vale0", "null"]).expect_err("netmapd's own way");
    assert!(refused.contains("ringpass vale"), "{refused}");
    let status = status(&server.control);
    assert!(status.switches[0].stations >= 1 && status.buffers > status.buffers_in_use, "{status:?}");
    let mut top = Command::new(RINGPASS);
    let said = top.args(["top", "--once", "--interval", "0.2", "--socket", text(&server.control)]).output();
    let said = String::from_utf8(said.expect("it starts").stdout).expect("UTF-8");
    assert!(said.starts_with("ringpass netmapd") && said.lines().count() >= 4, "{said}");
    let mut client = Client::connect(&server.read_only).expect("it listens");
    let metrics = client.request(&Request::Metrics { format: Default::default() }).expect("metrics");
    let line = "ringpass_port_received_packets_total{port=\"vale0:a\",switch=\"vale0\"}";
    assert!(metrics.as_str().is_some_and(|text| text.contains(line)), "{metrics}");
    generator.wait(Duration::from_secs(20));
    host.ip(&["link", "delete", "te"]);
    let mut seen = Vec::new();
    wait_until("the interface's end", || {
        seen.extend(events.event(Duration::from_millis(100)).expect("it lives"));
        let told = |event: &Value| event["message"].as_str().is_some_and(|text| text.contains("was deleted"));
        seen.iter().any(|event| event["event"] == "log" && told(event))
    });
    wait_until("the link to go down", || port("netmap:e").is_some_and(|port| !port.link));
    end(server);
}

#[test]
fn top_shows_rates_as_text_and_on_a_terminal() {
    let host = Namespace::new();
    let generator = start(&host, &["pktgen", "null", "--rate", "50k", "--interval", "60"]);
    let top = |arguments: &[&str]| {
        let output =
            Command::new(RINGPASS).args(["top", "--socket", text(&generator.control)]).args(arguments).output();
        String::from_utf8(output.expect("it starts").stdout).expect("UTF-8")
    };
    let said = top(&["--once", "--interval", "0.5"]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("ringpass pktgen   0:00:0"), "{said}");
    assert!(lines[1].starts_with("workers busy: ") && lines[2].starts_with("null"), "{said}");
    let rate = lines[2].split("tx").nth(1).expect("what is sent").trim();
    assert!(rate.contains("kpps"), "{said}");
    // A pipe gets text without being asked for it.
    assert_eq!(top(&["--interval", "0.1"]).lines().count(), 3);
    // A terminal of util-linux's script: select the port, show all of it, go.
    let command = format!("stty cols 100 rows 20; {RINGPASS} top --socket {} -i 0.2", text(&generator.control));
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm");
    terminal.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut terminal = terminal.spawn().expect("script starts");
    let mut keys = terminal.stdin.take().expect("a pipe");
    for key in ["", "j", "\r", "q"] {
        keys.write_all(key.as_bytes()).expect("it reads");
        std::thread::sleep(Duration::from_millis(1000));
    }
    let output = terminal.wait_with_output().expect("it ends");
    let screen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{screen}");
    for text in ["ringpass", "kpps", "q quit", "null: frames a second", "\u{1b}[?1049l"] {
        assert!(screen.contains(text), "{text} in {screen}");
    }
    end(generator);
}
