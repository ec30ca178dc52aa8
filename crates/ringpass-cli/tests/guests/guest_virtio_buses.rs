//! QEMU's virtio cards over each way to reach them, from inside the sandbox: VFIO as an ordinary user, behind
//! an IOMMU and woken by interrupts; I/O ports through sysfs, where the process may not use the I/O
//! instructions.

use std::path::Path;
use std::time::Duration;

use crate::common::guest::{Guest, Iommu};
use crate::common::pairs::Pairs;
use crate::common::{RINGPASS, wait_until};

/// Returns how many interrupts of a card `/proc/interrupts` has counted.
fn woken(interrupts: &str, card: &str) -> u64 {
    let lines = interrupts.lines().filter(|line| line.contains(card));
    let counts = lines.flat_map(|line| line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()));
    counts.sum()
}

#[test]
fn an_ordinary_user_forwards_between_virtio_cards_through_vfio() {
    let guest = Guest::new().memory(768).cpus(2).iommu(Iommu::Translated).program(Path::new(RINGPASS));
    let bypassing = "virtio-net-pci,disable-legacy=on";
    let devices = ["", ",packed=on"].map(|rings| format!("{bypassing},iommu_platform=on{rings}"));
    let pairs = Pairs::boot(guest, devices.iter().map(String::as_str).chain([bypassing]));
    let guest = &pairs.guest;
    guest.run("modprobe vfio-pci");
    for card in (0..3).flat_map(Pairs::cards) {
        guest.run(&format!(
            "d=/sys/bus/pci/devices/{card}; echo vfio-pci >$d/driver_override; \
             if [ -e $d/driver ]; then echo {card} >$d/driver/unbind; fi; echo {card} >/sys/bus/pci/drivers_probe; \
             chown user /dev/vfio/$(basename $(readlink $d/iommu_group))"
        ));
    }

    for pair in [0, 1] {
        let job = pairs.forward(pair, "user", "--hugepages off");
        let status = guest.run("grep -h ^Uid: /proc/$(cat /run/forwarder)/status");
        assert_eq!(status.split_whitespace().nth(1), Some("1000"), "{status}");
        pairs.pings(pair);
        pairs.tcp(pair);
        pairs.file(pair);
        // The forwarder sleeps when no packets come. A packet at one card wakes the worker for both, so it has
        // to fall asleep again between the pings.
        let interrupts = || guest.run("grep vfio-msix /proc/interrupts");
        let counts = |text: &str| Pairs::cards(pair).map(|card| woken(text, &card));
        wait_until("a forwarder that is woken", || {
            let before = counts(&interrupts());
            std::thread::sleep(Duration::from_millis(500));
            pairs.first_ping(pair);
            let after = counts(&interrupts());
            eprintln!("interrupts: {before:?}, {after:?}");
            before.iter().sum::<u64>() < after.iter().sum() && !after.contains(&0)
        });
        let (text, _) = pairs.end(&job);
        assert!(text.contains("PCI through VFIO") && text.contains("modern, registers in mapped memory"), "{text}");
    }
    assert_eq!(guest.run("dmesg | grep -i 'DMAR.*fault addr' || true"), "");

    // A card that bypasses the IOMMU would treat this process's addresses as physical ones.
    let [a, b] = Pairs::cards(2);
    let refused = guest.output(&format!("su user -c 'ringpass fwd {a} {b} --hugepages off'"), Duration::from_secs(60));
    assert!(refused.status == 1 && refused.text.contains("iommu_platform=on"), "{}", refused.text);
}

#[test]
fn root_forwards_between_legacy_cards_through_calls_of_the_kernel() {
    let guest = Guest::new().memory(768).cpus(2).program(Path::new(RINGPASS)).program(Path::new("/usr/bin/setpriv"));
    let pairs = Pairs::boot(guest, ["virtio-net-pci,disable-modern=on"]);
    let guest = &pairs.guest;
    guest.run("echo 64 >/proc/sys/vm/nr_hugepages");
    let [a, b] = Pairs::cards(0);
    let job = guest.spawn(&format!(
        "echo $$ >/run/forwarder; exec setpriv --bounding-set -sys_rawio --inh-caps -sys_rawio \
         ringpass fwd {a} {b} --json 2>&1"
    ));
    wait_until("the forwarder's first line", || guest.printed(&job).contains("\"stats\""));
    pairs.first_ping(0);
    let status = guest.run("grep -h -e ^Uid: -e ^Seccomp: /proc/$(cat /run/forwarder)/task/*/status");
    assert!(status.contains("Uid:\t65534") && status.contains("Seccomp:\t2"), "{status}");
    pairs.pings(0);
    pairs.tcp(0);
    pairs.file(0);
    let (text, summary) = pairs.end(&job);
    assert!(text.contains("legacy, I/O ports by calls of the kernel (sysfs)"), "{text}");
    // Each doorbell was one such call.
    let ports = summary["ports"].as_array().expect("ports");
    assert!(ports.iter().all(|port| port["extended"]["doorbells"].as_u64() > Some(0)), "{summary}");
}
