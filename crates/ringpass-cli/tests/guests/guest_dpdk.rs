//! DPDK's own ixgbe driver on the modelled card, in a guest: over VFIO behind an IOMMU as an ordinary user, and
//! over `uio_pci_generic`. Its `testpmd` answers ARP requests and pings, and forwards between two cards.

use std::time::{Duration, Instant};

use crate::common::guest::{Guest, Iommu, Wire, answered, tcp_from};

const TESTPMD: &str = "testpmd --lcores '(0,1)@0' -n 1 --in-memory --no-telemetry -m 32 -a 0000:00:10.0 -- \
                       --total-num-mbufs=2048 --rxd=128 --txd=128 --forward-mode=icmpecho --auto-start";

/// Starts testpmd, has it answer pings from the far end, ends it, and compares its counters with what was sent.
fn pings(guest: &Guest, wire: &Wire, user: &str) {
    guest.run("rm -f /run/stop; echo 24 >/proc/sys/vm/nr_hugepages; [ $(cat /proc/sys/vm/nr_hugepages) = 24 ]");
    let job = guest.spawn(&format!(
        "ulimit -l unlimited; (until [ -e /run/stop ]; do sleep 0.1; done; echo) | su {user} -c \"{TESTPMD}\""
    ));
    // It takes some seconds to start, and prints little before its end.
    let start = Instant::now();
    while wire.host.spawn(&["ping", "-c", "1", "-W", "1", "198.18.1.2"]).wait(Duration::from_secs(60)).status != Some(0)
    {
        let text = guest.printed(&job);
        assert!(guest.running(&job) && !text.contains("cannot be used"), "{text}");
        assert!(start.elapsed() < Duration::from_secs(180), "no answer: {text}");
    }
    let text = wire.host.run(&["ping", "-A", "-c", "500", "-w", "300", "-s", "1000", "198.18.1.2"]);
    assert!(answered(&text, 500), "{text}");
    guest.run("touch /run/stop");
    let output = guest.wait(&job, Duration::from_secs(60));
    assert_eq!(output.status, 0, "{}", output.text);
    let packets = |name: &str| -> u64 {
        let (_, rest) = output.text.split_once(name).unwrap_or_else(|| panic!("no {name}: {}", output.text));
        rest.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{}", output.text))
    };
    assert!(packets("RX-packets:") >= 500 && packets("TX-packets:") >= 500, "{}", output.text);
}

#[test]
fn dpdk_over_vfio_and_uio() {
    let wire = Wire::new(1, &[]);
    let guest = Guest::new().memory(384).cpus(2).iommu(Iommu::Passthrough).dpdk().card(&wire.socket()).boot();

    eprintln!("- VFIO, as an ordinary user");
    guest.run(
        "modprobe -a vfio-pci vfio_iommu_type1
         cd /sys/bus/pci/devices/0000:00:10.0
         echo vfio-pci >driver_override; echo 0000:00:10.0 >/sys/bus/pci/drivers_probe
         chown user /dev/vfio/$(basename $(readlink iommu_group)); chmod 666 /dev/vfio/vfio
         chmod 777 /dev/hugepages /run",
    );
    pings(&guest, &wire, "user");

    eprintln!("- uio_pci_generic, as root");
    guest.run(
        "modprobe uio_pci_generic
         cd /sys/bus/pci/devices/0000:00:10.0
         echo 0000:00:10.0 >driver/unbind
         echo uio_pci_generic >driver_override; echo 0000:00:10.0 >/sys/bus/pci/drivers_probe",
    );
    pings(&guest, &wire, "root");
}

#[test]
fn dpdk_forwards_between_two_cards() {
    let wires = [Wire::new(1, &[]), Wire::new(2, &[])];
    let guest = Guest::new().memory(384).cpus(2).dpdk().card(&wires[0].socket()).card(&wires[1].socket()).boot();
    guest.run(
        "echo 24 >/proc/sys/vm/nr_hugepages; [ $(cat /proc/sys/vm/nr_hugepages) = 24 ]
         modprobe uio_pci_generic
         for card in 0000:00:10.0 0000:00:11.0; do
             echo $card >/sys/bus/pci/devices/$card/driver/unbind
             echo uio_pci_generic >/sys/bus/pci/devices/$card/driver_override
             echo $card >/sys/bus/pci/drivers_probe
         done",
    );
    let job = guest.spawn(
        "(until [ -e /run/stop ]; do sleep 0.1; done; echo) | \
         testpmd --lcores '(0,1)@0' -n 1 --in-memory --no-telemetry -m 32 -a 0000:00:10.0 -a 0000:00:11.0 -- \
         --total-num-mbufs=4096 --rxd=256 --txd=256 --forward-mode=io --auto-start",
    );
    for (wire, address) in wires.iter().zip(["198.18.3.1/24", "198.18.3.2/24"]) {
        wire.host.run(&["ip", "address", "add", address, "dev", &wire.tap]);
    }
    let [a, b] = &wires;
    let start = Instant::now();
    while a.host.spawn(&["ping", "-c", "1", "-W", "1", "198.18.3.2"]).wait(Duration::from_secs(60)).status != Some(0) {
        let text = guest.printed(&job);
        assert!(guest.running(&job) && !text.contains("cannot be used"), "{text}");
        assert!(start.elapsed() < Duration::from_secs(180), "no answer: {text}");
    }
    let text = a.host.run(&["ping", "-A", "-c", "300", "-w", "300", "198.18.3.2"]);
    assert!(answered(&text, 300), "{text}\n{}\n{}", a.look(), b.look());
    for direction in [&[][..], &["-R"]] {
        let client = [&["iperf3", "-c", "198.18.3.2", "-t", "2", "-J"], direction].concat();
        let rate = tcp_from(&b.host, || a.host.run(&client));
        eprintln!("TCP over testpmd {direction:?}: {rate:.1} Mbit/s");
    }
    guest.run("touch /run/stop");
    let output = guest.wait(&job, Duration::from_secs(60));
    assert_eq!(output.status, 0, "{}", output.text);
}
