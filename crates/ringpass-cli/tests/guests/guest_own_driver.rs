//! Ringpass's own driver in a guest, between two cards that `ringpass model` serves: through VFIO as an
//! ordinary user, behind an IOMMU; and through sysfs as root, with huge pages and physical addresses.

use std::path::Path;
use std::time::Duration;

use crate::common::guest::{Guest, Iommu, Job, Wire, answered, tcp_from};
use crate::common::{RINGPASS, wait_until};

const CARDS: [&str; 2] = ["0000:00:10.0", "0000:00:11.0"];

/// Two namespaces whose only connection is the guest: 198.18.1.1 behind the first card, 198.18.1.3 behind the
/// second.
struct Between {
    wires: [Wire; 2],
    guest: Guest,
}

impl Between {
    /// Boots the guest; `options` are those of the first card's model.
    fn boot(iommu: Iommu, options: &[&str]) -> Self {
        let wires = [Wire::new(1, options), Wire::new(2, &[])];
        let [a, b] = &wires;
        b.host.run(&["ip", "address", "replace", "198.18.1.3/24", "dev", &b.tap]);
        a.host.neighbour(&a.tap, "198.18.1.3", &b.host.mac(&b.tap));
        b.host.neighbour(&b.tap, "198.18.1.1", &a.host.mac(&a.tap));
        let guest = Guest::new().memory(768).cpus(2).iommu(iommu).program(Path::new(RINGPASS));
        let guest = guest.card(&a.socket()).card(&b.socket()).boot();
        Self { wires, guest }
    }

    /// Binds the cards to vfio-pci, and gives them to the user.
    fn bind(&self) {
        self.guest.run("modprobe vfio-pci");
        for card in CARDS {
            self.guest.run(&format!(
                "echo vfio-pci >/sys/bus/pci/devices/{card}/driver_override; \
                 echo {card} >/sys/bus/pci/drivers_probe; \
                 chown user /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{card}/iommu_group))"
            ));
        }
    }

    /// Starts the forwarder as a user, and waits until packets pass.
    fn forward(&self, user: &str, options: &str) -> Job {
        let [a, b] = CARDS;
        let job = self.guest.spawn(&format!(
            "echo $$ >/run/forwarder; ulimit -l 65536; exec su {user} -c 'exec ringpass fwd {a} {b} --json -v {options} 2>&1'"
        ));
        wait_until("the forwarder's first line", || {
            let text = self.guest.printed(&job);
            assert!(!text.contains("ringpass: "), "{text}");
            text.contains("\"stats\"")
        });
        job
    }

    /// Sends traffic of the kernel between the namespaces, through the guest.
    fn traffic(&self) {
        let [a, b] = &self.wires;
        wait_until("the first ping", || {
            let first = a.host.spawn(&["ping", "-c", "1", "-W", "1", "198.18.1.3"]);
            first.wait(Duration::from_secs(60)).status == Some(0)
        });
        let text = a.host.run(&["ping", "-A", "-c", "100", "-w", "60", "198.18.1.3"]);
        assert!(answered(&text, 100), "{text}\n{}", self.guest.run("cat /run/output*"));
        let rate = tcp_from(&b.host, || a.host.run(&["iperf3", "-c", "198.18.1.3", "-t", "2", "-J"]));
        eprintln!("TCP through the guest: {rate:.1} Mbit/s");
    }

    /// Ends the forwarder as Ctrl-C does, and returns its output; the last line is its summary.
    fn end(&self, job: &Job) -> String {
        self.guest.run("kill -INT $(cat /run/forwarder)");
        let output = self.guest.wait(job, Duration::from_secs(60));
        assert_eq!(output.status, 0, "{}", output.text);
        assert!(output.text.lines().last().is_some_and(|line| line.contains("summary")), "{}", output.text);
        output.text
    }

    /// Returns a field of the forwarder's status in `/proc`.
    fn status(&self, field: &str) -> Vec<String> {
        let text = self.guest.run(&format!("grep -h ^{field}: /proc/$(cat /run/forwarder)/task/*/status"));
        text.lines().map(|line| line.split_whitespace().nth(1).unwrap_or_default().to_owned()).collect()
    }

    /// Returns the accesses that the guest's IOMMU has blocked.
    fn faults(&self) -> String {
        self.guest.run("dmesg | grep -i 'DMAR.*fault addr' || true")
    }
}

/// Returns how many interrupts of a card `/proc/interrupts` has counted.
fn woken(interrupts: &str, card: &str) -> u64 {
    let lines = interrupts.lines().filter(|line| line.contains(card));
    let counts = lines.flat_map(|line| line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()));
    counts.sum()
}

#[test]
fn an_ordinary_user_forwards_between_cards_through_vfio() {
    let between = Between::boot(Iommu::Translated, &[]);
    between.bind();
    let guest = &between.guest;

    // If the limit of locked memory leaves no room for packets, the error names the reason and the remedy.
    let [a, b] = CARDS;
    let refused = guest.output(&format!("ulimit -l 64; su user -c 'ringpass fwd {a} {b}'"), Duration::from_secs(60));
    assert!(refused.status == 1 && refused.text.contains("ulimit -l"), "{}", refused.text);
    let list = guest.run("su user -c 'ringpass list'");
    assert!(list.contains("VFIO, /dev/vfio/") && list.contains("yes, as 82599"), "{list}");

    let job = between.forward("user", "--hugepages off");
    for (field, value) in [("Uid", "1000"), ("CapEff", "0000000000000000"), ("Seccomp", "2"), ("NoNewPrivs", "1")] {
        let values = between.status(field);
        assert!(values.len() > 1 && values.iter().all(|found| found == value), "{field}: {values:?}");
    }
    between.traffic();
    // The forwarder sleeps when no packets come, and interrupts wake it.
    wait_until("interrupts of both cards", || {
        // A packet at one card wakes the worker for both, so it has to fall asleep again between the pings.
        for (wire, to) in between.wires.iter().zip(["198.18.1.3", "198.18.1.1"]) {
            std::thread::sleep(Duration::from_millis(200));
            wire.host.run(&["ping", "-c", "1", "-w", "60", to]);
        }
        let interrupts = guest.run("grep vfio-msix /proc/interrupts");
        CARDS.iter().all(|card| woken(&interrupts, card) > 0)
    });
    let text = between.end(&job);
    assert!(text.contains("PCI through VFIO"), "{text}");
    assert_eq!(between.faults(), "");

    // The cards are free again and none of their memory stays mapped, also after SIGKILL.
    let job = between.forward("user", "--hugepages off --queues 2");
    between.traffic();
    guest.run("kill -KILL $(cat /run/forwarder)");
    assert_eq!(guest.wait(&job, Duration::from_secs(60)).status, 137);
    let job = between.forward("user", "--hugepages off");
    between.traffic();
    between.end(&job);
    assert_eq!(between.faults(), "");
    for wire in between.wires {
        let counters = wire.counters();
        assert!(counters["rx_packets"].as_u64() > Some(100), "{counters}");
    }
}

/// A card that writes to addresses outside its buffers, into the guest's memory, does no harm: the IOMMU maps
/// only what the driver has mapped. Each attempt is counted, and the traffic continues.
#[test]
fn a_card_that_writes_outside_its_memory_does_no_harm() {
    let between = Between::boot(Iommu::Translated, &["--lies", "dma-outside@10=0x8000000"]);
    between.bind();
    let job = between.forward("user", "--hugepages off");
    between.traffic();
    between.end(&job);
    let [liar, other] = between.wires;
    let faults = |wire: Wire| wire.model.summary()["cards"][0]["dma_faults"].as_u64().expect("a count");
    assert!(faults(liar) > 50, "attempts");
    assert_eq!(faults(other), 0);
}

#[test]
fn root_forwards_between_cards_through_sysfs_and_gives_them_back() {
    let between = Between::boot(Iommu::Off, &[]);
    let guest = &between.guest;
    guest.run("modprobe ixgbe; echo 64 >/proc/sys/vm/nr_hugepages");
    let driver = |card| guest.run(&format!("basename $(readlink /sys/bus/pci/devices/{card}/driver) || true"));
    wait_until("Linux's driver", || CARDS.iter().all(|card| driver(card).trim() == "ixgbe"));

    let list = guest.run("ringpass list");
    assert!(list.contains("sysfs, as root; there is no IOMMU"), "{list}");
    let job = between.forward("root", "");
    // The process is no longer root, and can still return the cards to Linux's driver at the end.
    for (field, value) in [("Uid", "65534"), ("CapEff", "0000000000000000"), ("Seccomp", "2")] {
        let values = between.status(field);
        assert!(values.len() > 1 && values.iter().all(|found| found == value), "{field}: {values:?}");
    }
    assert!(CARDS.iter().all(|card| driver(card).trim() != "ixgbe"));
    between.traffic();
    let text = between.end(&job);
    assert!(text.contains("PCI through sysfs") && text.contains("on 2 MiB pages"), "{text}");
    wait_until("Linux's driver", || CARDS.iter().all(|card| driver(card).trim() == "ixgbe"));
    assert_eq!(guest.run("grep HugePages_Free /proc/meminfo | tr -s ' '"), "HugePages_Free: 64\n");
}
