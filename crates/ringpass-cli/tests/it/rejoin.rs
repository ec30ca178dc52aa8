//! Interfaces that are deleted and created again: their ports are down meanwhile, and then continue, in the
//! sandbox.

use std::time::Duration;

use crate::common::netmap::{Netmapd, frame, receive, send};
use crate::common::{Namespace, RINGPASS, unique, wait_until};
use ringpass_lab::Ended;

/// Returns whether one ping is answered. Interfaces that come back have other MAC addresses, so the ARP caches
/// are flushed.
fn answers(ends: &[Namespace; 2], from: usize, to: &str) -> bool {
    ends.iter().for_each(|end| _ = end.run(&["ip", "neighbour", "flush", "all"]));
    let from = &ends[from];
    from.spawn(&["ping", "-c", "1", "-W", "1", to]).wait(Duration::from_secs(10)).status == Some(0)
}

/// Creates a veth pair: one end stays, and the other is moved to a namespace and gets an address.
fn veth(middle: &Namespace, stays: &str, moved: &str, to: &Namespace, address: &str) {
    middle.run(&["ip", "link", "add", stays, "type", "veth", "peer", "name", moved]);
    middle.run(&["ip", "link", "set", stays, "up"]);
    to.take(middle, moved, address);
}

/// Creates a persistent TAP, and waits until a process has attached to it.
fn make_tap(namespace: &Namespace, tap: &str) {
    namespace.run(&["ip", "tuntap", "add", "dev", tap, "mode", "tap"]);
    namespace.run(&["ip", "link", "set", tap, "up"]);
    wait_until("the TAP's carrier", || namespace.run(&["ip", "link", "show", "dev", tap]).contains("LOWER_UP"));
}

#[test]
fn a_switch_takes_interfaces_that_come_back() {
    let (middle, ends) = (Namespace::new(), [Namespace::new(), Namespace::new()]);
    let [here, there, tap] = [unique("rh"), unique("rt"), unique("rp")];
    veth(&middle, &here, &there, &ends[0], "198.18.0.1/24");
    let ports = [format!("packet:{here}"), format!("tap:{tap}")];
    let switch = middle.spawn(&[RINGPASS, "switch", &ports[0], &ports[1], "--json"]);
    wait_until("the switch's first line", || !switch.line().is_empty());
    ends[1].take(&middle, &tap, "198.18.0.2/24");
    wait_until("the first answer", || answers(&ends, 0, "198.18.0.2"));

    middle.run(&["ip", "link", "delete", &here]);
    assert!(!answers(&ends, 1, "198.18.0.1"));
    veth(&middle, &here, &there, &ends[0], "198.18.0.1/24");
    wait_until("the veth's return", || answers(&ends, 0, "198.18.0.2"));

    // The switch looks for the TAP in the namespace in which it created it.
    ends[1].run(&["ip", "link", "delete", &tap]);
    assert!(!answers(&ends, 0, "198.18.0.2"));
    make_tap(&middle, &tap);
    ends[1].take(&middle, &tap, "198.18.0.2/24");
    wait_until("the TAP's return", || answers(&ends, 0, "198.18.0.2"));
    switch.signal("TERM");
    let Ended { status, errors, .. } = switch.wait(Duration::from_secs(20));
    assert_eq!(status, Some(0), "{errors:?}");
    for port in &ports {
        let of = |what: &str| errors.iter().filter(|line| line.contains(port) && line.contains(what)).count();
        assert!((of("the port is down until"), of("the interface is back")) == (1, 1), "{errors:?}");
    }
}

#[test]
fn netmapd_takes_interfaces_that_come_back() {
    let (middle, end, tap) = (Namespace::new(), Namespace::new(), unique("rn"));
    let netmapd = Netmapd::in_namespace(middle, &["--attach", &format!("vale0:tap:{tap}")]);
    let port = netmapd.open("vale0:program");
    let passes = || {
        send(&port, &frame(0xff, 1, 7));
        port.tx()[0].sync().unwrap();
        end.run(&["ip", "neighbour", "flush", "all"]);
        // A broadcast: the kernel's ARP request.
        end.spawn(&["ping", "-c", "1", "-W", "1", "198.18.0.9"]).wait(Duration::from_secs(10));
        !receive(&port, Duration::from_secs(1)).is_empty()
    };
    end.take(&netmapd.namespace, &tap, "198.18.0.2/24");
    wait_until("the first frame", passes);
    end.run(&["ip", "link", "delete", &tap]);
    // The server sleeps meanwhile, instead of spinning on a descriptor that reports an error all the time.
    wait_until("the loss", || netmapd.namespace.run(&["ip", "-j", "link", "show"]).find(&tap).is_none());
    let id = netmapd.program.as_ref().expect("it runs").id();
    let used = || {
        let threads = std::fs::read_dir(format!("/proc/{id}/task")).expect("it runs").flatten();
        let time = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok());
        Duration::from_nanos(time.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum())
    };
    std::thread::sleep(Duration::from_millis(500));
    let before = used();
    std::thread::sleep(Duration::from_secs(1));
    let used = used() - before;
    assert!(used < Duration::from_millis(300), "{used:?} in a second without an interface");
    make_tap(&netmapd.namespace, &tap);
    end.take(&netmapd.namespace, &tap, "198.18.0.2/24");
    wait_until("the first frame again", passes);
    drop(port);
    assert_eq!(netmapd.end_with_errors().len(), 2, "it was gone, it is back");
}
