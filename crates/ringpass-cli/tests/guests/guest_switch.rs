//! The switch between a guest whose kernel has VLAN interfaces on one card, and two namespaces behind access
//! ports.

use std::time::Duration;

use crate::common::guest::{Guest, answered};
use crate::common::{Namespace, RINGPASS, folder, text, unique, wait_until};
use ringpass_lab::Tap;

#[test]
fn vlan_interfaces_of_a_guest_meet_access_ports() {
    let (middle, folder) = (Namespace::new(), folder());
    let card = Tap::new(&middle, "198.18.9.1/24").without_offloads();
    let guest = Guest::new().nic("virtio-net-pci", &card).boot();
    let taps = [unique("ts"), unique("ts")];
    let file = folder.path().join("switch.toml");
    let config = format!(
        "[[port]]\nname = \"guest\"\naddress = \"packet:{}\"\ntrunk = \"10,20\"\n\
         [[port]]\naddress = \"model:tap:{}\"\nvlan = 10\n[[port]]\naddress = \"tap:{}\"\nvlan = 20\n",
        card.name, taps[0], taps[1]
    );
    std::fs::write(&file, config).unwrap();
    let switch = middle.spawn(&[RINGPASS, "switch", "--config", text(&file), "--json"]);
    wait_until("the switch's first line", || !switch.line().is_empty());
    let ends = [Namespace::new(), Namespace::new()];
    for (number, (end, tap)) in ends.iter().zip(&taps).enumerate() {
        end.take(&middle, tap, &format!("198.19.{}0.2/24", number + 1));
    }
    guest.run(
        "modprobe virtio_net
         modprobe 8021q
         while ! ip link set eth0 up 2>/dev/null && [ $((tries += 1)) -lt 300 ]; do sleep 0.1; done
         for id in 10 20; do
             ip link add link eth0 name vlan$id type vlan id $id
             ip address add 198.19.$id.1/24 dev vlan$id
             ip link set vlan$id up
         done",
    );
    for (end, address) in ends.iter().zip(["198.19.10.1", "198.19.20.1"]) {
        wait_until("the first ping", || {
            end.spawn(&["ping", "-c", "1", "-W", "2", address]).wait(Duration::from_secs(60)).status == Some(0)
        });
        let text = end.run(&["ping", "-A", "-n", "-c", "100", "-s", "1472", "-w", "60", address]);
        assert!(answered(&text, 100), "{text}");
    }
    // There is no answer without a tag, and none from the other VLAN.
    guest.run("ip address add 198.19.10.9/24 dev eth0");
    let other = ends[1].spawn(&["ping", "-c", "1", "-W", "1", "-I", &taps[1], "198.19.10.2"]);
    assert_ne!(other.wait(Duration::from_secs(60)).status, Some(0));
    let summary = switch.summary();
    let vlan = &summary["ports"][0]["extended"];
    assert!(vlan["switch_forwarded"].as_u64() >= Some(200), "{summary}");
}
