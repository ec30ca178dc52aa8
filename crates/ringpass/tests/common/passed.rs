//! netmap ports passed into guests by `ringpass passthrough`, and what is behind them there: our driver, with the guest's
//! kernel behind a TAP.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringpass_lab::{Builder, Guest, Iommu, Job, Program, until};
use serde_json::Value;

use super::guest::{answered, tcp_by};
use super::netmap::Netmapd;
use super::{RINGPASS, text, unique};

/// Where a guest finds its port, and the port's memory.
pub const PORT: &str = "0000:00:10.0";
pub const MEMORY: &str = "0000:00:11.0";

/// A port that a guest may have. It is killed when dropped.
pub struct Passed {
    pub program: Program,
    socket: PathBuf,
}

impl Netmapd {
    /// Passes a port, as `options` of `ringpass passthrough` want it.
    pub fn pass(&self, port: &str, options: &[&str]) -> Passed {
        let socket = self.folder.path().join(unique("port"));
        let command = ["passthrough", port, "--socket", text(&socket), "--json"];
        let program = self.spawn(&[&command, options].concat());
        until("the port's sockets", || program.line().contains("\"start\""));
        Passed { program, socket }
    }
}

impl Passed {
    /// A guest with this port and the program under test.
    pub fn guest(&self, iommu: Iommu) -> Builder {
        let guest = Guest::new().memory(384).iommu(iommu).program(Path::new(RINGPASS));
        guest.card(&self.socket).card(&self.socket.with_extension("mem"))
    }

    /// Ends it, when its guest has started the port so often: what it has counted. No guest has said what cannot be.
    pub fn end(self, starts: u64) -> Value {
        self.program.signal("TERM");
        let (status, lines, errors) = self.program.wait(Duration::from_secs(60));
        assert_eq!(status, Some(0), "{errors:?}");
        let total: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
        let expected = [("creates", starts), ("wild", 0), ("peer_faults", 0)];
        assert!(expected.iter().all(|(name, count)| total[name] == *count), "{total}");
        total
    }
}

/// Our driver in a guest, between its port and a TAP named `g`.
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

    /// Starts it in a guest, whose kernel has `address` behind it.
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
        let job =
            guest.spawn(&format!("echo $$ >/run/driver; exec ringpass fwd {PORT} tap:g --json {huge} {options} 2>&1"));
        until("the driver's first line", || {
            assert!(guest.running(&job), "{}", guest.printed(&job));
            guest.printed(&job).contains("\"stats\"")
        });
        job
    }

    /// Ends it as Ctrl-C does: its summary.
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

/// A script that gives devices to vfio-pci.
fn bind(devices: &[&str]) -> String {
    let each = devices.iter().map(|device| {
        format!(
            "echo vfio-pci >/sys/bus/pci/devices/{device}/driver_override
             echo {device} >/sys/bus/pci/drivers_probe\n"
        )
    });
    format!("modprobe vfio-pci\n{}", each.collect::<String>())
}

/// From a guest: the first ping, then a hundred, of which none may be lost.
pub fn pings(guest: &Guest, to: &str) {
    until("the first ping", || guest.output(&format!("ping -c 1 -W 1 {to}"), Duration::from_secs(60)).status == 0);
    let text = guest.run(&format!("ping -c 100 -i 0.01 -s 1400 -M do -w 60 {to}"));
    assert!(answered(&text, 100), "{text}");
}

/// From a guest: TCP for a second each way to a server that stays, in Mbit/s; 1 must arrive.
pub fn tcp(guest: &Guest, to: &str) -> [f64; 2] {
    ["", "-R"].map(|direction| tcp_by(|| guest.run(&format!("iperf3 -c {to} -t 1 -J {direction}"))))
}
