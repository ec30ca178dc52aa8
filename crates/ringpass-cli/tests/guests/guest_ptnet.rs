//! netmap ports passed into guests: a pipe between two guests, in memory that both map, with Ringpass's own
//! driver. Through sysfs as root, with huge pages and physical addresses; through VFIO as an ordinary user,
//! woken by interrupts.

#[path = "../../../netmap/ptnet/tests/it/common/mod.rs"]
mod ptnet;

use std::path::Path;
use std::time::Duration;

use crate::common::guest::{Guest, Iommu, Job};
use crate::common::{RINGPASS, folder, wait_until};
use ptnet::{Host, pipe_hosts, region};
use serde_json::Value;

/// PCI addresses of the port, and of the port's memory, in a guest.
const DEVICES: [&str; 2] = ["0000:00:10.0", "0000:00:11.0"];

/// Slots of each ring. With this number the memory is larger than 64 MiB.
const SLOTS: u32 = 4096;

/// Two guests, each with one end of a pipe.
struct Pair {
    guests: [Guest; 2],
    hosts: [Host; 2],
    _folder: tempfile::TempDir,
}

impl Pair {
    fn boot(iommu: Iommu) -> Self {
        let folder = folder();
        // Guests on a busy machine stand still for a second or more; a forwarder drops what the pipe has no
        // room for.
        let mut region = region(1, SLOTS);
        let hosts = pipe_hosts(folder.path(), &mut region, SLOTS);
        let guests = hosts.each_ref().map(|host| {
            let guest = Guest::new().memory(512).cpus(2).iommu(iommu).program(Path::new(RINGPASS));
            guest.card(&host.path).card(&host.path.with_extension("mem")).boot()
        });
        Self { guests, hosts, _folder: folder }
    }

    /// Starts the program that sends back what the second guest receives.
    fn echo(&self, user: &str, options: &str) -> Job {
        let guest = &self.guests[1];
        let port = DEVICES[0];
        let job = guest.spawn(&format!(
            "echo $$ >/run/echo; ulimit -l 65536; exec su {user} -c 'exec ringpass echo {port} --json -v {options} 2>&1'"
        ));
        wait_until("the echo's first line", || {
            let text = guest.printed(&job);
            assert!(!text.contains("ringpass: "), "{text}");
            text.contains("\"stats\"")
        });
        job
    }

    /// Sends numbered frames from the first guest; all must come back, in order. Returns the output.
    fn exchange(&self, user: &str, options: &str, count: u32) -> String {
        let port = DEVICES[0];
        let command = format!(
            "ulimit -l 65536; exec su {user} -c \
             'ringpass pktgen {port} --json -v --rate 2k --size 200 --flows 3 -c {count} {options} 2>&1'"
        );
        let output = self.guests[0].output(&command, Duration::from_secs(60));
        assert_eq!(output.status, 0, "{}", output.text);
        let summary: Value = serde_json::from_str(output.text.lines().last().unwrap()).unwrap();
        eprintln!("{summary}");
        for (counter, expected) in [("returned", count), ("lost", 0), ("reordered", 0), ("duplicate", 0)] {
            assert_eq!(summary[counter].as_u64(), Some(expected.into()), "{counter}: {summary}");
        }
        output.text
    }

    /// Sends probes one by one; all processes sleep between them.
    fn ping(&self, user: &str, options: &str) {
        let port = DEVICES[0];
        let command =
            format!("ulimit -l 65536; exec su {user} -c 'ringpass ping {port} --json -i 0.1 -c 20 {options} 2>&1'");
        let output = self.guests[0].output(&command, Duration::from_secs(60));
        eprintln!("{}", output.text.lines().last().unwrap_or_default());
        assert_eq!(output.status, 0, "{}", output.text);
    }

    fn end_echo(&self, job: &Job) -> String {
        self.guests[1].run("kill -INT $(cat /run/echo)");
        let output = self.guests[1].wait(job, Duration::from_secs(60));
        assert_eq!(output.status, 0, "{}", output.text);
        output.text
    }

    /// Ends both hosts, neither of which may have seen an invalid position.
    fn end(self) {
        let Self { guests, hosts, _folder } = self;
        drop(guests);
        let mut kicks = 0;
        for host in hosts {
            let counts = host.counters.get();
            eprintln!("{counts:?}");
            assert_eq!((counts.invalid_positions, counts.peer_faults), (0, 0), "{counts:?}");
            kicks += counts.kicks;
            host.end();
        }
        // On a loaded machine, one of the processes may never have been asleep when its guest sent something.
        assert!(kicks > 0);
    }
}

#[test]
fn two_guests_through_sysfs() {
    let pair = Pair::boot(Iommu::Off);
    for guest in &pair.guests {
        guest.run("echo 64 >/proc/sys/vm/nr_hugepages");
        let list = guest.run("ringpass list");
        assert!(list.contains("yes, as netmap port (ptnet)"), "{list}");
    }
    let job = pair.echo("root", "");
    let text = pair.exchange("root", "", 10_000);
    assert!(text.contains("PCI through sysfs") && text.contains("no interrupts over this bus"), "{text}");
    // A second time, with the rings at their current positions.
    pair.exchange("root", "", 1000);
    pair.ping("root", "");
    pair.end_echo(&job);
    let job = pair.echo("root", "");
    pair.exchange("root", "", 1000);
    pair.end_echo(&job);
    pair.end();
}

#[test]
fn two_guests_through_vfio() {
    let pair = Pair::boot(Iommu::Translated);
    for guest in &pair.guests {
        guest.run("modprobe vfio-pci");
        for device in DEVICES {
            guest.run(&format!(
                "echo vfio-pci >/sys/bus/pci/devices/{device}/driver_override; \
                 echo {device} >/sys/bus/pci/drivers_probe; \
                 chown user /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{device}/iommu_group))"
            ));
        }
    }
    let options = "--hugepages off";
    let job = pair.echo("user", options);
    let text = pair.exchange("user", options, 10_000);
    assert!(text.contains("PCI through VFIO") && !text.contains("no interrupts"), "{text}");
    pair.exchange("user", options, 1000);
    pair.ping("user", options);
    // After SIGKILL of a program, the kernel turns its device off. Then another program uses it.
    pair.guests[1].run("kill -KILL $(cat /run/echo)");
    assert_ne!(pair.guests[1].wait(&job, Duration::from_secs(60)).status, 0);
    let job = pair.echo("user", options);
    pair.exchange("user", options, 1000);
    pair.end_echo(&job);
    for (guest, host) in pair.guests.iter().zip(&pair.hosts) {
        assert_eq!(guest.run("dmesg | grep -i 'DMAR.*fault addr' || true"), "");
        assert!(host.counters.get().interrupts > 0);
    }
    pair.end();
}
