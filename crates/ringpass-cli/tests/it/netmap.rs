//! netmap ports between programs: `ringpass netmapd` and its clients on one machine.

use std::time::Duration;

use crate::common::guest::answered;
use crate::common::netmap::{Netmapd, frame, receive, send, undisturbed};
use crate::common::{Namespace, Program, Random, folder, ringpass, text, unique, wait_until};
use ringpass_lab::Ended;
use ringpass_netmap::client::{Client, Port};
use ringpass_netmap::protocol::Request;
use ringpass_netmap::request::{Kind, Register};
use ringpass_pci::registers::ptnet::port::{FEATURES, HEADER_LEN};
use ringpass_pci::{PciDevice, VfioUser};
use serde_json::Value;

#[test]
fn ringpass_programs_meet_on_a_switch_and_by_a_pipe() {
    let netmapd = Netmapd::new(&[]);
    for [from, to] in [["vale0:a", "vale0:b"], ["netmap:x{1", "netmap:x}1"]] {
        let dump = netmapd.spawn(&["dump", to, "--count", "1000"]);
        wait_until("the receiving end", || {
            // The port on the switch may still exist when the one on the pipe is awaited.
            let pipe = || netmapd.status()["pipes"].as_array().is_some_and(|pipes| !pipes.is_empty());
            if to == "vale0:b" { netmapd.counters(to) != Value::Null } else { pipe() }
        });
        let send = netmapd.spawn(&["pktgen", from, "--count", "1000", "--rate", "10000", "--json"]);
        let Ended { status, lines, errors } = dump.wait(Duration::from_secs(30));
        assert_eq!(status, Some(0), "{errors:?}");
        assert!(lines.iter().filter(|line| line.contains("198.18.0.1")).count() >= 1000, "{lines:?}");
        assert_eq!(send.wait(Duration::from_secs(20)).status, Some(0));
    }
    // Resources without a user are removed: switch, ports and pipe.
    wait_until("the ports' end", || netmapd.status()["vale"].as_array().is_some_and(Vec::is_empty));
    let status = netmapd.status();
    assert!(status["switches"].as_array().is_some_and(Vec::is_empty), "{status}");
    assert!(status["pipes"].as_array().is_some_and(Vec::is_empty), "{status}");
    netmapd.end();
}

/// Options behind a port's name: rings of one direction, one ring, exclusive use, a monitor.
#[test]
fn addresses_select_rings_and_monitors() {
    let netmapd = Netmapd::new(&[]);
    let _sender = netmapd.spawn(&["pktgen", "netmap:vale0:a/T", "--rate", "1000"]);
    // There is nothing to monitor before.
    wait_until("the sender's port", || netmapd.status()["vale"][0]["port"] == "vale0:a");
    let dumps = ["vale0:b-0/xR", "vale0:a/t"].map(|name| netmapd.spawn(&["dump", name, "--count", "100"]));
    for dump in dumps {
        let Ended { status, lines, errors } = dump.wait(Duration::from_secs(30));
        assert_eq!(status, Some(0), "{errors:?}");
        assert!(lines.iter().filter(|line| line.contains("198.18.0.1")).count() >= 100, "{lines:?}");
        assert!(errors.join(" ").contains("it only receives"), "{errors:?}");
    }
    netmapd.end();
}

/// Two TAPs on one switch, and a program that receives broadcasts.
#[test]
fn the_kernels_traffic_passes_a_switch() {
    let (middle, taps) = (Namespace::new(), [unique("nm"), unique("nm")]);
    let attach: Vec<String> = taps.iter().map(|tap| format!("vale0:tap:{tap}")).collect();
    let netmapd = Netmapd::in_namespace(middle, &["--attach", &attach[0], "--attach", &attach[1]]);
    let ends = [Namespace::new(), Namespace::new()];
    for (number, (end, tap)) in ends.iter().zip(&taps).enumerate() {
        end.take(&netmapd.namespace, tap, &format!("198.18.0.{}/24", number + 1));
    }
    let listener = netmapd.open("vale0:listener");
    wait_until("the first ping", || {
        let ping = ends[0].spawn(&["ping", "-c", "1", "-W", "1", "198.18.0.2"]);
        ping.wait(Duration::from_secs(10)).status == Some(0)
    });
    let pings = ends[0].run(&["ping", "-A", "-n", "-c", "100", "-s", "1400", "-w", "60", "198.18.0.2"]);
    assert!(answered(&pings, 100), "{pings}");
    // It has received the ARP request, and none of the pings.
    let frames = receive(&listener, Duration::from_secs(1));
    assert!(frames.iter().any(|frame| frame[..6] == [0xff; 6]), "{frames:?}");
    assert!(frames.iter().all(|frame| frame.len() < 1400 || frame[0] & 1 != 0), "somebody else's frames");
    let stations = netmapd.status()["switches"][0]["stations"].as_array().map(Vec::len);
    assert!(stations >= Some(2), "{stations:?}");
    // In its sandbox it opens no further port, and says so.
    let (status, _, errors) = netmapd.vale(&["attach", "vale0:null"]);
    assert_eq!(status, Some(1));
    assert!(errors.contains("--attach vale0:null"), "{errors}");
    let (status, ..) = netmapd.vale(&["detach", &attach[1]]);
    assert_eq!(status, Some(0));
    let gone = ends[0].spawn(&["ping", "-c", "1", "-W", "1", "198.18.0.2"]);
    assert_eq!(gone.wait(Duration::from_secs(10)).status, Some(1), "detached");
    netmapd.end();
}

#[test]
fn ports_are_made_attached_and_let_go() {
    let netmapd = Netmapd::new(&["--no-sandbox", "--allow", "null"]);
    let right = |arguments: &[&str]| {
        let (status, _, errors) = netmapd.vale(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {errors}");
    };
    let wrong = |arguments: &[&str], why: &str| {
        let (status, _, errors) = netmapd.vale(arguments);
        assert!(status == Some(1) && errors.contains(why) && !errors.contains('\n'), "{arguments:?}: {errors}");
    };
    right(&["new", "vale7:stays", "--slots", "64", "--rings", "2"]);
    wrong(&["new", "vale7:stays"], "stays exists already");
    wrong(&["new", "netmap:x"], "is called by up to 15 letters");
    wrong(&["delete", "vale7:other"], "is not attached");
    wrong(&["delete", "other"], "is not a persistent port");
    wrong(&["delete", "stays"], "is attached to vale7; detach it first");
    let port = netmapd.open("vale7:stays");
    assert_eq!((port.granted().rings, port.granted().slots), ([2, 2], [64, 64]));
    wrong(&["delete", "vale7:stays"], "programs use it");
    drop(port);
    let entry = |status: &Value| (status["vale"][0]["port"].clone(), status["vale"][0]["stays"].clone());
    wait_until("the program's end", || netmapd.status()["vale"][0]["registrations"] == 0);
    assert_eq!(entry(&netmapd.status()), ("vale7:stays".into(), true.into()));
    right(&["attach", "vale7:null"]);
    wrong(&["attach", "vale7:null"], "is attached already");
    wrong(&["attach", "vale7:tap:a/b"], "is not an interface name");
    wrong(&["attach", "vale7:eth0"], "packet:NAME");
    wrong(&["detach", "vale7:tap:x"], "is not attached");
    let (_, list, _) = netmapd.vale(&[]);
    for part in ["vale7", "null (attached)", "vale7:stays: memory 3"] {
        assert!(list.contains(part), "{list}");
    }
    right(&["detach", "vale7:null"]);
    right(&["detach", "vale7:stays"]);
    let (_, list, _) = netmapd.vale(&[]);
    assert!(list.contains("netmap:stays (no switch): memory 3") && !list.contains("vale7"), "{list}");
    // A port that cannot be attached is not created either.
    let taken = netmapd.open("vale7:taken");
    wrong(&["new", "vale7:taken"], "a program's port");
    drop(taken);
    right(&["new", "taken"]);
    right(&["delete", "taken"]);
    right(&["attach", "vale7:stays"]);
    right(&["delete", "vale7:stays"]);
    assert!(netmapd.status()["switches"].as_array().is_some_and(Vec::is_empty));
    netmapd.end();
}

/// Native ports are attached by their name, also in the sandbox, in which no port is opened.
#[test]
fn native_ports_are_attached_to_a_switch() {
    let netmapd = Netmapd::new(&["--port", "nic=null"]);
    let vale = |arguments: &[&str]| {
        let (status, _, errors) = netmapd.vale(arguments);
        (status, errors)
    };
    let program = netmapd.open("netmap:nic");
    let (status, why) = vale(&["attach", "vale7:nic"]);
    assert!(status == Some(1) && why.contains("programs use it"), "{why}");
    drop(program);
    wait_until("the program's end", || vale(&["attach", "vale7:nic"]).0 == Some(0));
    let (_, list, _) = netmapd.vale(&[]);
    assert!(list.contains("vale7") && list.contains("nic (attached)"), "{list}");
    let why = Port::open(&"netmap:nic".parse().expect("a name"), &netmapd.socket, Register::default()).map(drop);
    assert!(why.is_err_and(|why| why.to_string().contains("is attached to vale7")));
    let (status, why) = vale(&["attach", "vale8:nic"]);
    assert!(status == Some(1) && why.contains("attached to vale7"), "{why}");
    // What a program sends on the switch reaches the port, which counts it.
    let program = netmapd.open("vale7:program");
    send(&program, &frame(2, 1, 0));
    program.tx()[0].sync().unwrap();
    wait_until("a frame", || netmapd.status()["ports"][0]["status"]["stats"]["tx_packets"] == 1);
    assert_eq!(vale(&["detach", "vale7:nic"]), (Some(0), String::new()));
    drop(program);
    wait_until("the switch's end", || netmapd.status()["switches"].as_array().is_some_and(Vec::is_empty));
    drop(netmapd.open("netmap:nic"));
    netmapd.end();
}

/// Programs name the port that is to be attached. A port that the process was not started with is not opened,
/// so a program can neither write files as the server's user nor take cards.
#[test]
fn programs_attach_only_what_it_was_started_with() {
    let folder = folder();
    let [theirs, own] = ["theirs.pcap", "own.pcap"].map(|name| folder.path().join(name));
    let [theirs_at, own_at] = [&theirs, &own].map(|path| format!("vale0:pcap:,out={}", text(path)));
    let netmapd = Netmapd::new(&["--no-sandbox", "--attach", &own_at]);
    let (status, _, errors) = netmapd.vale(&["attach", &theirs_at]);
    assert!(status == Some(1) && !errors.contains('\n'), "{errors}");
    assert!(errors.contains("--allow pcap:,out="), "{errors}");
    assert!(!theirs.exists(), "a program had a file made");
    let (status, _, errors) = netmapd.vale(&["attach", "vale0:tap:rpattach"]);
    assert!(status == Some(1) && errors.contains("--allow tap:rpattach"), "{errors}");
    // Ports that it was started with may be detached and attached again.
    for what in ["detach", "attach"] {
        let (status, _, errors) = netmapd.vale(&[what, &own_at]);
        assert_eq!(status, Some(0), "{what}: {errors}");
    }
    let (status, _, errors) = ringpass(&["netmapd", "--allow", "null"]);
    assert!(status == Some(2) && errors.contains("--no-sandbox"), "{errors}");
    netmapd.end();
}

/// Programs start, send and are killed at any moment, beside two programs whose numbered frames all arrive in
/// order.
#[test]
fn killed_programs_cost_nobody_else_a_frame() {
    const KILLS: usize = 60;
    let netmapd = Netmapd::new(&[]);
    undisturbed(&netmapd, || {
        let mut random = Random::new(7);
        for kill in 0..KILLS {
            let port = ["vale0:killed", "vale0:killed{p", "netmap:k{1"][kill % 3];
            let role = ["pktgen", "dump", "echo"][random.below(3) as usize];
            let program = netmapd.spawn(&[role, port]);
            std::thread::sleep(Duration::from_millis(random.below(120)));
            program.signal("KILL");
            program.wait(Duration::from_secs(10));
        }
    });
    netmapd.end();
}

#[test]
fn a_bridge_joins_ports() {
    let netmapd = Netmapd::new(&[]);
    for (ends, how) in [(["vale0:left", "vale1:right"], "copied"), (["netmap:a}1", "netmap:a{2"], "exchanged")] {
        let bridge = netmapd.spawn(&["bridge", ends[0], ends[1]]);
        let line = bridge.line();
        assert!(line.contains(how), "{line}");
        let names = if how == "copied" { ["vale0:from", "vale1:to"] } else { ["netmap:a{1", "netmap:a}2"] };
        let [from, to] = names.map(|name| netmapd.open(name));
        let mut next = 0;
        while next < 5000 {
            (0..100).for_each(|n| send(&from, &frame(2, 1, next + n)));
            from.tx()[0].sync().unwrap();
            let wait_until = next + 100;
            while next < wait_until {
                let frames = receive(&to, Duration::from_secs(20));
                assert!(!frames.is_empty(), "nothing behind {next}");
                for received in frames {
                    assert_eq!(received, frame(2, 1, next), "whole, and in order");
                    next += 1;
                }
            }
        }
        bridge.signal("INT");
        let Ended { status, lines, errors } = bridge.wait(Duration::from_secs(10));
        assert_eq!(status, Some(0), "{errors:?}");
        assert!(lines.last().is_some_and(|line| line.contains("5000 from A to B")), "{lines:?}");
    }
    netmapd.end();
}

#[test]
fn nobody_there_and_wrong_names_get_a_line() {
    let folder = folder();
    let socket = folder.path().join("none.sock");
    let (status, _, errors) = crate::common::ringpass(&["vale", "--socket", text(&socket)]);
    assert!(status == Some(1) && errors.contains("start 'ringpass netmapd'"), "{errors}");
    let netmapd = Netmapd::new(&[]);
    for (arguments, why) in [
        (&["bridge", "vale0:a", "eth0"][..], "write netmap:PORT or valeSWITCH:PORT"),
        (&["bridge", "vale0:a", "netmap:eth0"], "there are VALE ports"),
        (&["pktgen", "netmap:eth0"], "there are VALE ports"),
        (&["passthrough", "netmap:x{1", "--socket", "/tmp/x"], "--trusted"),
        (&["netmapd", "--socket", text(&netmapd.socket)], "is served by another process"),
        (&["netmapd", "--socket", text(&socket), "--attach", "tap:x"], "write SWITCH:PORT"),
    ] {
        let Ended { status, errors, .. } = netmapd.spawn(arguments).wait(Duration::from_secs(20));
        let last = errors.last().cloned().unwrap_or_default();
        assert!(status == Some(1) && last.contains(why), "{arguments:?}: {errors:?}");
    }
    netmapd.end();
}

#[test]
fn a_server_without_programs_sleeps_and_ends_when_told_to() {
    let netmapd = Netmapd::new(&["--until-idle", "3"]);
    let port = netmapd.open("vale0:a");
    std::thread::sleep(Duration::from_millis(500));
    let stat = |id: u32| {
        let threads = std::fs::read_dir(format!("/proc/{id}/task")).expect("it runs").flatten();
        let used = threads.filter_map(|thread| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(used.sum())
    };
    let id = netmapd.program.as_ref().map(Program::id).expect("it runs");
    let before = stat(id);
    std::thread::sleep(Duration::from_secs(2));
    let used = stat(id) - before;
    assert!(used < Duration::from_millis(60), "{used:?} in 2 s with a port where nothing happens");
    // A port that lasts without a program is a reason to stay.
    assert_eq!(netmapd.vale(&["new", "lasting"]).0, Some(0));
    drop(port);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(netmapd.vale(&["delete", "lasting"]).0, Some(0));
    let mut netmapd = netmapd;
    let Ended { status, errors, .. } = netmapd.program.take().expect("it runs").wait(Duration::from_secs(25));
    assert_eq!(status, Some(0), "{errors:?}");
}

/// One row for each case, with its numbers.
#[test]
fn bench_netmap_prints_rows() {
    if crate::common::refused_on_one_cpu("netmap") {
        return;
    }
    let (status, out, errors) = crate::common::ringpass(&[
        "bench",
        "netmap",
        "--only",
        "throughput,rtt",
        "--batch",
        "64",
        "-t",
        "0.5",
        "--rounds",
        "1",
        "--json",
    ]);
    assert_eq!(status, Some(0), "{errors}");
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for what in ["pipe", "vale"] {
        let row = rows.iter().find(|row| row["what"] == what && row["batch"] == 64).expect("a row");
        assert_eq!(row["path"], "host-host");
        assert!(row["mpps"].as_f64().is_some_and(|mpps| mpps > 0.0), "{row}");
        let row = rows.iter().find(|row| row["what"] == what && row["mode"] == "blocking").expect("a row");
        assert!(row["rtt_us_min"].as_f64().is_some_and(|us| us > 0.0), "{row}");
        assert!(row["rtt_us_avg"].as_f64() >= row["rtt_us_min"].as_f64(), "{row}");
    }
}

/// A guest's driver requests headers in front of its frames, and the next guest begins without them.
#[test]
fn guests_request_headers_of_their_port() {
    let netmapd = Netmapd::new(&["--hugepages", "off"]);
    let header = |name: &str| {
        let (reply, _) = Client::connect(&netmapd.socket)
            .unwrap()
            .ask(&Request::new(Kind::PortHdrGet, name, &[]))
            .expect("an answer");
        u32::from_le_bytes(*reply.body.first_chunk().unwrap())
    };
    for (name, options, granted) in [("vale0:vm", &[][..], 12), ("netmap:p{1", &["--trusted"], 0)] {
        let socket = netmapd.folder.path().join("guest");
        let guest = [&["passthrough", name, "--socket", text(&socket)], options].concat();
        let passthrough = netmapd.spawn(&guest);
        wait_until("the device", || socket.exists() && netmapd.status().to_string().contains("registrations"));
        let device = VfioUser::open(&socket).expect("the device");
        let registers = device.region(0).expect("registers");
        registers.write32(FEATURES as usize, 1);
        registers.write32(HEADER_LEN as usize, 12);
        assert_eq!(
            (registers.read32(FEATURES as usize), registers.read32(HEADER_LEN as usize)),
            (granted / 12, granted)
        );
        assert_eq!(header(name.trim_start_matches("netmap:")), granted);
        drop((registers, device));
        wait_until("the guest's end", || header(name.trim_start_matches("netmap:")) == 0);
        passthrough.signal("INT");
        assert_eq!(passthrough.wait(Duration::from_secs(10)).status, Some(0));
    }
    netmapd.end();
}
