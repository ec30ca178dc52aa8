//! A card that the kernel uses is left to the kernel, however it is named. The test runs in a guest, whose only
//! card may be lost.

use std::path::Path;

use crate::common::RINGPASS;
use crate::common::guest::Guest;

#[test]
fn a_card_in_use_is_left_to_the_kernel_however_it_is_opened() {
    let card = ringpass_lab::nic_address(0);
    let guest = Guest::new().memory(512).program(Path::new(RINGPASS)).nic_with_user_network("virtio-net-pci").boot();
    guest.run("modprobe virtio_net; until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done");
    guest.run("ip addr add 198.18.0.2/24 dev eth0; ip link set eth0 up");
    let socket = "--socket /tmp/s";
    // Each command ends on its own, even if it takes the card by mistake.
    let (in_use, no_wire) =
        (["is in use: its interface eth0", "--take-over"], ["the far end of a model's wire", "TAP"]);
    for (command, words) in [
        (format!("fwd {card} null -t 1"), in_use),
        (format!("fwd capture,file=/tmp/a.pcap:{card} null -t 1"), in_use),
        (format!("model 82599 {socket} --wire {card} -t 1"), no_wire),
        (format!("netmapd {socket} --port x={card} -t 1"), in_use),
        (format!("netmapd {socket} --attach vale0:{card} -t 1"), in_use),
        (format!("netmapd {socket} --attach vale0:model:{card} -t 1"), no_wire),
    ] {
        let text = guest.run(&format!("ringpass {command} 2>&1 || true"));
        assert!(words.iter().all(|word| text.contains(word)), "{command}: {text}");
        guest.run("[ -e /sys/class/net/eth0 ]");
    }
    // A program's request does not take the card either, not even through a process that is allowed to open it.
    let _netmapd = guest.spawn(&format!("ringpass netmapd {socket} --no-sandbox --allow {card} -t 60"));
    guest.run("until [ -S /tmp/s ]; do sleep 0.1; done");
    let text = guest.run(&format!("ringpass vale {socket} attach vale0:{card} 2>&1 || true"));
    assert!(text.contains("is in use: its interface eth0"), "{text}");
    guest.run("[ -e /sys/class/net/eth0 ]");
}
