//! Two modelled cards that a guest's kernel bridges to each other, between two namespaces.

use std::time::Duration;

use crate::common::guest::{Guest, LOOK, NOTE_DROPS, Wire, answered, carrier, tcp_from, up};
use crate::common::wait_until;

#[test]
fn a_guest_bridges_two_cards() {
    let wires = [Wire::new(1, &[]), Wire::new(2, &[])];
    let guest = Guest::new().cpus(2).card(&wires[0].socket()).card(&wires[1].socket()).boot();
    for card in [0, 1] {
        up(&guest, card, card + 1);
    }
    guest.run(
        "modprobe bridge
         ip link add bridge type bridge
         for name in eth0 eth1; do
             ip address flush dev $name
             ip link set $name master bridge
         done
         ip link set bridge up",
    );
    guest.run(&format!("{}; {}", carrier(0), carrier(1)));
    for (wire, address) in wires.iter().zip(["198.18.3.1/24", "198.18.3.2/24"]) {
        wire.host.run(&["ip", "address", "add", address, "dev", &wire.tap]);
    }
    guest.run(NOTE_DROPS);
    let [a, b] = &wires;
    // The bridge is in its learning state before it forwards.
    wait_until("the bridge", || {
        a.host.spawn(&["ping", "-c", "1", "-W", "1", "198.18.3.2"]).wait(Duration::from_secs(60)).status == Some(0)
    });
    let text = a.host.run(&["ping", "-A", "-c", "300", "-w", "300", "198.18.3.2"]);
    if !answered(&text, 300) {
        let seen = guest.output(LOOK, Duration::from_secs(60)).text;
        // Counters only, and what lies around the gap: whoever runs the tests may see but a part of a long message.
        let gap: Vec<_> = text.lines().filter(|line| !line.contains("bytes from")).collect();
        panic!("{}\n{seen}\n{}\n{}", gap.join("\n"), a.look(), b.look());
    }
    for direction in [&[][..], &["-R"]] {
        let client = [&["iperf3", "-c", "198.18.3.2", "-t", "2", "-J"], direction].concat();
        let rate = tcp_from(&b.host, || a.host.run(&client));
        eprintln!("TCP over the bridge {direction:?}: {rate:.1} Mbit/s");
    }
}
