//! netmap ports passed into guests by `ringpass passthrough`, and our driver for them in the guest, with the
//! guest's kernel behind a TAP.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringpass_lab::{Builder, Ended, Guest, Iommu, Job, Program, wait_until};
use serde_json::Value;

use super::guest::{answered, tcp_by};
use super::netmap::Netmapd;
use super::{RINGPASS, text, unique};

/// PCI addresses of the port, and of the port's memory, in a guest.
pub const PORT: &str = "0000:00:10.0";
pub const MEMORY: &str = "0000:00:11.0";

/// A port that is passed to a guest; its process is killed when dropped.
pub struct Passed {
    pub program: Program,
    socket: PathBuf,
}

impl Netmapd {
    /// Passes a port, with `options` of `ringpass passthrough`.
    pub fn pass(&self, port: &str, options: &[&str]) -> Passed {
        let socket = self.folder.path().join(unique("port"));
        let command = ["passthrough", port, "--socket", text(&socket), "--json"];
        let program = self.spawn(&[&command, options].concat());
        wait_until("the port's sockets", || program.line().contains("\"start\""));
        Passed { program, socket }
    }
}

impl Passed {
    /// Prepares a guest with this port and the program under test.
    pub fn guest(&self, iommu: Iommu) -> Builder {
        let guest = Guest::new().memory(384).iommu(iommu).program(Path::new(RINGPASS));
        guest.card(&self.socket).card(&self.socket.with_extension("mem"))
    }

    /// Ends the process and returns its counters. Its guests must have started the port `starts` times, and
    /// written no invalid position.
    pub fn end(self, starts: u64) -> Value {
        self.program.signal("TERM");
        let Ended { status, lines, errors } = self.program.wait(Duration::from_secs(60));
        assert_eq!(status, Some(0), "{errors:?}");
        let total: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
        let expected = [("creates", starts), ("wild", 0), ("peer_faults", 0)];
        assert!(expected.iter().all(|(name, count)| total[name] == *count), "{total}");
        total
    }
}

/// How our driver reaches its port in a guest. It forwards between the port and a TAP named `g`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// With huge pages and physical addresses; it polls.
    Sysfs,
    /// Behind an IOMMU, woken by interrupts.
    Vfio,
}

impl Driver {
    pub fn iommu(self) -> Iommu {
        if self == Self::Vfio { Iommu::Translated } else { Iommu::Off }
    }

    /// Starts the driver in a guest, whose kernel gets `address` behind it.
    pub fn start(self, guest: &Guest, address: &str, options: &str) -> Job {
        let (before, huge) = match self {
            Self::Sysfs => ("echo 64 >/proc/sys/vm/nr_hugepages".to_owned(), ""),
            Self::Vfio => (bind(&[PORT, MEMORY]), "--hugepages off"),
        };
        let queues = if options.contains("--queues") { "multi_queue" } else { "" };
        guest.run(&format!(
            "{before}
             modprobe tun
             [ -e /sys/class/net/g ] || ip tuntap add dev g mode tap {queues} || exit
             ip address replace {address}/24 dev g; ip link set g up"
        ));
        let job = guest
            .spawn(&format!("echo $$ >/run/driver; exec ringpass fwd {PORT} tap:g --json -v {huge} {options} 2>&1"));
        wait_until("the driver's first line", || {
            assert!(guest.running(&job), "{}", guest.printed(&job));
            guest.printed(&job).contains("\"stats\"")
        });
        job
    }

    /// Ends the driver as Ctrl-C does, and returns its summary.
    pub fn end(self, guest: &Guest, job: &Job) -> Value {
        guest.run("kill -INT $(cat /run/driver)");
        let output = guest.wait(job, Duration::from_secs(60));
        assert_eq!(output.status, 0, "{}", output.text);
        let bus = if self == Self::Vfio { "PCI through VFIO" } else { "PCI through sysfs" };
        assert!(output.text.contains(bus), "{}", output.text);
        assert_eq!(output.text.contains("no interrupts over this bus"), self == Self::Sysfs, "{}", output.text);
        serde_json::from_str(output.text.lines().last().expect("a line")).expect("a summary")
    }
}

/// Returns a script that binds devices to vfio-pci.
fn bind(devices: &[&str]) -> String {
    let each = devices.iter().map(|device| {
        format!(
            "echo vfio-pci >/sys/bus/pci/devices/{device}/driver_override
             echo {device} >/sys/bus/pci/drivers_probe\n"
        )
    });
    format!("modprobe vfio-pci\n{}", each.collect::<String>())
}

/// Sends from the guest a first ping, then a hundred, of which none may be lost.
pub fn pings(guest: &Guest, to: &str) {
    wait_until("the first ping", || guest.output(&format!("ping -c 1 -W 1 {to}"), Duration::from_secs(60)).status == 0);
    let text = guest.run(&format!("ping -c 100 -i 0.01 -s 1400 -M do -w 60 {to}"));
    assert!(answered(&text, 100), "{text}");
}

/// Sends TCP from the guest for a second in each direction to a server that stays up; returns the rates in
/// Mbit/s, at least 1 each.
pub fn tcp(guest: &Guest, to: &str) -> [f64; 2] {
    ["", "-R"].map(|direction| tcp_by(|| guest.run(&format!("iperf3 -c {to} -t 1 -J {direction}"))))
}
