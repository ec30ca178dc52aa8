//! Tests of cards that QEMU emulates, with TAPs as back-ends: Linux's own drivers forward through them.

use std::time::Duration;

use ringpass_lab::{Guest, Iommu, Namespace, Qemu, Tap, nic_address, nic_mac, wait_until};

/// Returns the guest's name of card `number`'s interface.
fn interface(guest: &Guest, number: usize) -> String {
    let script =
        format!("ls -d /sys/bus/pci/devices/{0}/net/* /sys/bus/pci/devices/{0}/virtio*/net/*", nic_address(number));
    let mut name = String::new();
    wait_until("the card's interface", || {
        let text = guest.output(&script, Duration::from_secs(60)).text;
        name = text
            .lines()
            .find(|line| line.starts_with("/sys"))
            .map_or("", |line| line.rsplit('/').next().unwrap())
            .to_owned();
        !name.is_empty()
    });
    name
}

#[test]
fn linux_bridges_between_cards_of_the_newest_qemu() {
    linux_bridges(Qemu::Newest, "igb");
}

#[test]
fn linux_bridges_between_cards_of_qemu_7_2() {
    linux_bridges(Qemu::V7_2, "e1000e");
}

fn linux_bridges(qemu: Qemu, intel: &str) {
    let (a, b) = (Namespace::new(), Namespace::new());
    let taps = [
        Tap::new(&a, "198.18.1.1/24"),
        Tap::new(&b, "198.18.1.2/24"),
        Tap::new(&a, "198.18.2.1/24").queues(2),
        Tap::new(&b, "198.18.2.2/24"),
    ];
    let cards = ["virtio-net-pci", "virtio-net-pci,disable-modern=on", "virtio-net-pci,mq=on", intel];
    let guest = taps.iter().zip(cards).fold(Guest::new().cpus(2), |guest, (tap, card)| guest.nic(card, tap));
    let guest = guest.iommu(Iommu::Passthrough).qemu(qemu).boot();
    guest.run("modprobe -a virtio_net igb e1000e bridge");
    for (pair, subnet) in [([0, 1], 1), ([2, 3], 2)] {
        let names = pair.map(|number| interface(&guest, number));
        guest.run(&format!("ip link add br{subnet} type bridge; ip link set br{subnet} up"));
        for (number, name) in pair.into_iter().zip(&names) {
            assert_eq!(guest.run(&format!("cat /sys/class/net/{name}/address")).trim(), nic_mac(number));
            guest.run(&format!("ip link set {name} master br{subnet} up"));
        }
        wait_until("the first ping", || {
            let ping = a.spawn(&["ping", "-c", "1", "-W", "1", &format!("198.18.{subnet}.2")]);
            ping.wait(Duration::from_secs(60)).status == Some(0)
        });
        a.run(&["ping", "-c", "20", "-i", "0.02", "-w", "60", &format!("198.18.{subnet}.2")]);
    }
    // Linux uses as many queue pairs as there are processors.
    let channels = guest.run(&format!("ethtool -l {}", interface(&guest, 2)));
    let (_, current) = channels.split_once("Current").expect("a second table");
    assert!(current.lines().any(|line| line.starts_with("Combined") && line.ends_with("\t2")), "{channels}");
    drop(guest);
    wait_until("the TAPs' end", || !a.run(&["ip", "link"]).contains("tq") && !b.run(&["ip", "link"]).contains("tq"));
}
