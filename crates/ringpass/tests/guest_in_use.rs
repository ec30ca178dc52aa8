//! A card that the kernel uses is left to it, whichever way it is named: checked in a guest, whose only card may be lost.

mod common;

use std::path::Path;

use common::RINGPASS;
use common::guest::{Guest, alone};

#[test]
fn a_card_in_use_is_left_to_the_kernel_whoever_opens_it() {
    let _alone = alone();
    let card = ringpass_lab::nic_address(0);
    let guest = Guest::new().memory(512).program(Path::new(RINGPASS)).nic_with_user_network("virtio-net-pci").boot();
    guest.run("modprobe virtio_net; until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done");
    guest.run("ip addr add 198.18.0.2/24 dev eth0; ip link set eth0 up");
    let socket = "--socket /tmp/s";
    // Each ends by itself, also where it takes the card.
    for command in [
        format!("fwd {card} null -t 1"),
        format!("fwd capture,file=/tmp/a.pcap:{card} null -t 1"),
        format!("model 82599 {socket} --wire {card} -t 1"),
        format!("netmapd {socket} --port x={card} -t 1"),
        format!("netmapd {socket} --attach vale0:{card} -t 1"),
        format!("netmapd {socket} --attach vale0:model:{card} -t 1"),
    ] {
        let text = guest.run(&format!("ringpass {command} 2>&1 || true"));
        assert!(text.contains("is in use: its interface eth0") && text.contains("--take-over"), "{command}: {text}");
        guest.run("[ -e /sys/class/net/eth0 ]");
    }
    // Nor does a program have it taken, even by a process that may open it.
    let _netmapd = guest.spawn(&format!("ringpass netmapd {socket} --no-sandbox --allow {card} -t 60"));
    guest.run("until [ -S /tmp/s ]; do sleep 0.1; done");
    let text = guest.run(&format!("ringpass vale {socket} attach vale0:{card} 2>&1 || true"));
    assert!(text.contains("is in use: its interface eth0"), "{text}");
    guest.run("[ -e /sys/class/net/eth0 ]");
}
