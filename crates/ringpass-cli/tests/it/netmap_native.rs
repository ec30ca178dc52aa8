//! Ports of the machine in netmap mode (models of cards, TAPs and others), with programs that start and end.

use std::time::Duration;

use crate::common::guest::answered;
use crate::common::netmap::{Netmapd, frame, number, receive, send};
use crate::common::{Namespace, Random, folder, ringpass, text, unique, wait_until};
use ringpass_lab::Ended;
use ringpass_netmap::client::{Client, Port};
use ringpass_netmap::protocol::Request;
use ringpass_netmap::request::{Kind, PortInfo};
use serde_json::Value;

/// kernel – TAP – model of a card – netmapd – program – TAP – kernel
#[test]
fn the_kernels_traffic_passes_a_program_with_a_card() {
    let taps = [unique("nn"), unique("nn")];
    let netmapd = Netmapd::new(&["--hugepages", "off", "--port", &format!("x=model:tap:{}", taps[0])]);
    let forward = netmapd.spawn(&["fwd", "netmap:x", &format!("tap:{}", taps[1])]);
    let ends = [Namespace::new(), Namespace::new()];
    wait_until("the program", || netmapd.native()["programs"]["registrations"] == 1);
    for (number, (end, tap)) in ends.iter().zip(&taps).enumerate() {
        end.take(&netmapd.namespace, tap, &format!("198.18.0.{}/24", number + 1));
    }
    wait_until("the first ping", || {
        let ping = ends[0].spawn(&["ping", "-c", "1", "-W", "1", "198.18.0.2"]);
        ping.wait(Duration::from_secs(10)).status == Some(0)
    });
    let pings = ends[0].run(&["ping", "-A", "-n", "-c", "100", "-s", "1400", "-w", "60", "198.18.0.2"]);
    assert!(answered(&pings, 100), "{pings}");
    let port = netmapd.native();
    assert!(port["status"]["link"] == true && port["status"]["mac"] != "00:00:00:00:00:00", "{port}");
    let [card, program] = [&port["status"]["stats"], &port["programs"]["counters"]];
    for (counter, other) in [("rx_packets", "tx_packets"), ("tx_packets", "rx_packets")] {
        assert!(card[counter].as_u64() >= Some(100) && program[other].as_u64() >= Some(100), "{port}");
    }
    let (_, list, _) = netmapd.vale(&[]);
    assert!(
        list.contains("netmap:x (model:tap:") && list.contains("link up") && list.contains("1 program(s)"),
        "{list}"
    );
    forward.signal("INT");
    assert_eq!(forward.wait(Duration::from_secs(10)).status, Some(0));
    // Without a program, frames that arrive are dropped and counted.
    let dropped = || netmapd.native()["status"]["dropped"].as_u64().expect("a number");
    wait_until("the program's end", || netmapd.native()["programs"].is_null());
    let before = dropped();
    ends[0].spawn(&["ping", "-c", "3", "-i", "0.1", "-W", "1", "198.18.0.2"]).wait(Duration::from_secs(10));
    wait_until("frames for nobody", || dropped() >= before + 3);
    // When a port is gone, programs that use it end, and only those.
    let (mine, other) = (netmapd.open("netmap:x"), netmapd.open("vale0:a"));
    ends[0].run(&["ip", "link", "del", &taps[0]]);
    wait_until("the port's end", || mine.wait(mine.rx().iter(), Duration::from_millis(10)).is_err());
    assert!(!other.wait(other.rx().iter(), Duration::from_millis(10)).expect("a switch's port goes on"));
    assert!(netmapd.status()["ports"].as_array().is_some_and(Vec::is_empty));
    wait_until("all buffers", || netmapd.all_free());
    assert_eq!(netmapd.end_with_errors(), ["netmap:x is gone: the interface was deleted"]);
}

/// On a port that returns what it sends, frames that a program sends by ring N come back.
#[test]
fn rings_and_queues() {
    let netmapd = Netmapd::new(&["--hugepages", "off", "--queues", "2", "--port", "x=model:null", "--port", "y=null"]);
    let info = |name: &str| {
        let request = Request::new(Kind::PortInfoGet, name, &[]);
        let (reply, _) = Client::connect(&netmapd.socket).unwrap().ask(&request).expect("an answer");
        PortInfo::parse(reply.body.first_chunk().unwrap())
    };
    for (name, memory) in [("x", 2), ("y", 1)] {
        let info = info(name);
        assert_eq!((info.rings, info.slots, info.memory_id, info.host_rings), ([2; 2], [1024; 2], memory, [0; 2]));
    }
    let all = netmapd.open("netmap:x");
    assert_eq!((all.tx().len(), all.rx().len()), (2, 2));
    let [one, receiving, sending] = ["netmap:x-1", "netmap:x/R", "netmap:x/T"].map(|name| netmapd.open(name));
    assert_eq!((one.tx().len(), one.rx().len()), (1, 1));
    assert_eq!((receiving.tx().len(), receiving.rx().len()), (0, 2));
    assert_eq!((sending.tx().len(), sending.rx().len()), (2, 0));
    (0..500).for_each(|n| send(&one, &frame(1, 2, n)));
    one.tx()[0].sync().unwrap();
    let sent = || netmapd.native()["programs"]["counters"][1]["rx_packets"].as_u64();
    wait_until("what was sent by the second ring", || sent() == Some(500));
    wait_until("what the card sent", || netmapd.native()["status"]["stats"]["tx_packets"] == 500);
    assert_eq!(netmapd.native()["programs"]["counters"][0]["rx_packets"], 0);
    drop((all, one, receiving, sending));
    wait_until("the programs' end", || netmapd.all_free());
    let refused = |name: &str| {
        let Ended { status, errors, .. } = netmapd.spawn(&["dump", name]).wait(Duration::from_secs(10));
        assert_eq!(status, Some(1));
        errors.join(" ")
    };
    assert!(refused("netmap:x-2").contains("has no ring 2; write one from 0 to 1"));
    for (name, why) in [
        ("netmap:y/RT", "R and T together leave no ring"),
        ("netmap:y/r", "no program has this port, so there is nothing to monitor; open it first"),
        ("netmap:p{1/r", "no program has this end of the pipe"),
        ("netmap:y@conf:rings=2", "options of a registration behind '@' are not there yet"),
        ("netmap:y&", "--port"),
    ] {
        let error = refused(name);
        assert!(error.contains(why) && error.contains(name), "{error}");
    }
    assert!(refused("netmap:z").contains("--port"));
    assert!(refused("netmap:x@7").contains("lies in memory 2, not 7; write @2"));
    assert!(refused("netmap:x@1").contains("lies in memory 2"));
    assert!(refused("netmap:y@2").contains("lies in memory 1"));
    assert!(refused("vale0:a@2").contains("another port's"));
    assert!(refused("netmap:p{1@3").contains("there is no memory 3"));
    // Not for guests that are not trusted.
    let socket = netmapd.folder.path().join("guest");
    for name in ["netmap:x", "netmap:y"] {
        let Ended { status, errors, .. } =
            netmapd.spawn(&["passthrough", name, "--socket", text(&socket)]).wait(Duration::from_secs(10));
        assert!(status == Some(1) && errors.join(" ").contains("say --trusted"), "{errors:?}");
    }
    wait_until("the end of what was refused", || netmapd.all_free());
    netmapd.end();
}

#[test]
fn wrong_ports_get_a_line() {
    let folder = folder();
    let socket = folder.path().join("none.sock");
    for (port, why) in [
        ("x", "NAME=ADDRESS"),
        ("x{1=null", "is not a name for a port"),
        ("vale0:x=null", "is not a name for a port"),
        ("x-1=null", "is not a name for a port"),
        ("x=nothing", "nothing"),
    ] {
        let (status, _, errors) = ringpass(&["netmapd", "--socket", text(&socket), "--port", port, "--no-sandbox"]);
        assert!(matches!(status, Some(1 | 2)) && errors.contains(why), "{port}: {errors}");
    }
    let twice = ["--port", "x=null", "--port", "x=null"];
    let (_, _, errors) = ringpass(&[&["netmapd", "--socket", text(&socket), "--no-sandbox"][..], &twice].concat());
    assert!(errors.contains("two ports are called x"), "{errors}");
}

/// Programs that are killed at any instant leave a working port for the next program, and all buffers.
#[test]
fn killed_programs_leave_the_port_for_the_next() {
    const KILLS: usize = 40;
    let tap = unique("nn");
    let netmapd = Netmapd::new(&["--hugepages", "off", "--port", &format!("x=model:tap:{tap}")]);
    netmapd.namespace.run(&["ip", "link", "set", &tap, "up"]);
    let (mut random, mut next) = (Random::new(11), 1);
    for kill in 0..KILLS {
        let role = ["pktgen", "echo", "dump"][kill % 3];
        let program = netmapd.spawn(&[role, "netmap:x"]);
        std::thread::sleep(Duration::from_millis(random.below(120)));
        program.signal("KILL");
        program.wait(Duration::from_secs(10));
        if kill % 8 == 7 {
            // The frames of the next program arrive, although the previous one was killed in the middle of an
            // operation.
            let (mine, far) = (netmapd.open("netmap:x"), netmapd.spawn(&["echo", &format!("packet:{tap}")]));
            wait_until("an echo", || {
                send(&mine, &frame(2, 1, next));
                mine.tx()[0].sync().unwrap();
                next += 1;
                let frames = receive(&mine, Duration::from_millis(200));
                frames.iter().any(|frame| frame[12..14] == [0x88, 0xb5] && number(frame) > 0 && number(frame) < next)
            });
            far.signal("INT");
            far.wait(Duration::from_secs(10));
        }
    }
    wait_until("the end of what they had", || netmapd.all_free());
    netmapd.end();
}

/// Monitors see what programs send and receive, on a card's port and on a switch's, and keep the port open when
/// its program ends.
#[test]
fn monitors() {
    let tap = unique("nn");
    let netmapd = Netmapd::new(&["--hugepages", "off", "--port", &format!("x=model:tap:{tap}")]);
    netmapd.namespace.run(&["ip", "link", "set", &tap, "up"]);
    let (mine, both, received) = (netmapd.open("netmap:x"), netmapd.open("netmap:x/rt"), netmapd.open("netmap:x/r"));
    let shared = netmapd.open("netmap:x/z");
    assert_eq!(shared.granted().memory_id, mine.granted().memory_id);
    assert_ne!(both.granted().memory_id, mine.granted().memory_id, "who looks cannot write");
    let echo = netmapd.spawn(&["echo", &format!("packet:{tap}")]);
    let ours = |port: &Port| {
        let frames = receive(port, Duration::from_millis(100)).into_iter();
        frames.filter(|frame| frame[12..14] == [0x88, 0xb5]).collect::<Vec<_>>()
    };
    wait_until("an echo", || {
        send(&mine, &frame(2, 1, 0));
        mine.tx()[0].sync().unwrap();
        !ours(&mine).is_empty()
    });
    send(&mine, &frame(2, 1, 7));
    mine.tx()[0].sync().unwrap();
    for (port, expected) in [
        (&mine, vec![frame(1, 2, 7)]),
        (&both, vec![frame(2, 1, 7), frame(1, 2, 7)]),
        (&received, vec![frame(1, 2, 7)]),
        (&shared, vec![frame(2, 1, 7), frame(1, 2, 7)]),
    ] {
        let mut came = Vec::new();
        wait_until("the echo", || {
            // Copies of the first frames may be late.
            came.extend(ours(port).into_iter().filter(|frame| number(frame) > 0));
            came.len() >= expected.len()
        });
        assert_eq!(came, expected);
    }
    let (_, list, _) = netmapd.vale(&[]);
    assert!(list.contains("monitor of x: "), "{list}");
    for (name, why) in [("netmap:p{1/t", "no program has this end of the pipe"), ("netmap:x-1/r", "has no ring 1")] {
        let Ended { status, errors, .. } = netmapd.spawn(&["dump", name]).wait(Duration::from_secs(10));
        assert!(status == Some(1) && errors.join(" ").contains(why), "{name}: {errors:?}");
    }
    // On a pipe.
    let (first, second) = (netmapd.open("netmap:p{1"), netmapd.open("netmap:p}1"));
    let watching = netmapd.open("netmap:p{1/rt");
    send(&first, &frame(2, 1, 3));
    first.tx()[0].sync().unwrap();
    send(&second, &frame(1, 2, 4));
    second.tx()[0].sync().unwrap();
    assert_eq!(receive(&watching, Duration::from_secs(1)), [frame(2, 1, 3), frame(1, 2, 4)]);
    assert_eq!(receive(&second, Duration::from_secs(1)), [frame(2, 1, 3)]);
    assert_eq!(netmapd.status()["pipes"][0]["monitors"], 1);
    drop((first, second, watching));
    // On a switch.
    let (from, to) = (netmapd.open("vale0:a"), netmapd.open("vale0:b"));
    let watching = netmapd.open("vale0:a/t");
    (0..100).for_each(|n| send(&from, &frame(2, 1, n)));
    from.tx()[0].sync().unwrap();
    let mut numbers = [Vec::new(), Vec::new()];
    wait_until("all frames", || {
        for (numbers, port) in numbers.iter_mut().zip([&watching, &to]) {
            numbers.extend(receive(port, Duration::from_millis(50)).iter().map(|frame| number(frame)));
        }
        numbers.iter().all(|numbers| numbers.len() == 100)
    });
    assert_eq!(numbers, [(0..100).collect::<Vec<_>>(), (0..100).collect()]);
    drop(from);
    let entry = |name: &str| netmapd.status()["vale"].as_array().unwrap().iter().any(|port| port["port"] == name);
    assert!(entry("vale0:a"));
    drop(watching);
    wait_until("the port's end", || !entry("vale0:a"));
    drop((mine, both, received, shared, to));
    wait_until("the end of all", || netmapd.all_free() && netmapd.status()["monitors"] == Value::Array(Vec::new()));
    echo.signal("INT");
    echo.wait(Duration::from_secs(10));
    netmapd.end();
}
