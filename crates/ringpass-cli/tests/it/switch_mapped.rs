//! A card and two processes on one switch: frames to the address of either process are received into its own
//! buffers, all others are copied, and all stations reach each other.

use std::process::Command;

use crate::common::guest::answered;
use crate::common::*;

/// A namespace with one station of the switch.
struct Station {
    namespace: Namespace,
    tap: String,
    address: String,
    mac: String,
    /// The process that connects it to the switch, if there is one.
    process: Option<Program>,
}

impl Station {
    fn new(number: usize) -> Self {
        let (namespace, tap) = (Namespace::new(), unique("tsm"));
        let (address, mac) = (format!("198.18.0.{number}"), format!("02:00:00:00:0a:0{number}"));
        Self { namespace, tap, address, mac, process: None }
    }

    /// Moves its TAP, which exists by now, to its namespace.
    fn settle(&self, from: &Namespace) {
        from.run(&["ip", "link", "set", &self.tap, "address", &self.mac]);
        self.namespace.take(from, &self.tap, &format!("{}/24", self.address));
    }

    fn pings(&self, other: &Self, count: usize) -> bool {
        let command = ["netns", "exec", &self.namespace.0, "ping", "-n", "-i", "0.01", "-s", "1000", "-w"];
        let wanted = [if count == 1 { "2" } else { "60" }, "-c", &count.to_string(), &other.address];
        let output = Command::new("ip").args(command).args(wanted).output().expect("ping runs");
        answered(&String::from_utf8_lossy(&output.stdout), count)
    }
}

#[test]
fn frames_for_guests_are_not_copied_and_all_reach_all() {
    let (middle, folder) = (Namespace::new(), folder());
    let mut stations = [1, 2, 3].map(Station::new);
    let card = format!("model:tap:{}", stations[0].tap);
    let sockets = [1, 2].map(|guest| folder.path().join(format!("guest{guest}")));
    let guests = sockets.each_ref().map(|socket| format!("vhost:{}", socket.display()));
    let maps = [0, 1].map(|guest| format!("{card}={}@{}", guests[guest], stations[guest + 1].mac));
    let command = ["--map", &maps[0], "--map", &maps[1], "--json"];
    let switch = middle.spawn(&[&[RINGPASS, "switch", &card, &guests[0], &guests[1]], &command[..]].concat());
    wait_until("the switch's first line", || !switch.line().is_empty());
    for (station, socket) in stations[1..].iter_mut().zip(&sockets) {
        let (guest, tap) = (format!("virtio-user:{}", socket.display()), format!("tap:{}", station.tap));
        let process = middle.spawn(&[RINGPASS, "fwd", &guest, &tap, "--json"]);
        wait_until("the process's first line", || !process.line().is_empty());
        station.process = Some(process);
    }
    stations.iter().for_each(|station| station.settle(&middle));

    for (one, other) in [(0, 1), (0, 2), (1, 2), (2, 1), (1, 0), (2, 0)] {
        wait_until("the first ping", || stations[one].pings(&stations[other], 1));
        assert!(stations[one].pings(&stations[other], 200), "{one} to {other}");
    }
    let summary = switch.summary();
    // From the card: 200 requests and as many answers, except the first ones. Frames from the other guest are
    // copied.
    let mapped = [1, 2].map(|guest| {
        let counters = &summary["ports"][guest]["extended"];
        counters["mapped_packets"].as_u64().unwrap_or_else(|| panic!("{summary}"))
    });
    let from_card = summary["ports"][0]["rx_packets"].as_u64().expect("a number");
    assert!(mapped.iter().all(|&mapped| mapped > 300) && mapped[0] + mapped[1] <= from_card, "{summary}");
}
