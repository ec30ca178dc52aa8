//! Rx queue mapping over VFIO, inside a guest with an IOMMU: a card, which `ringpass model` serves from
//! outside, receives into the memory of a process in the guest. That process is killed and restarted, with
//! frames in flight.

use std::path::Path;
use std::time::Duration;

use crate::common::guest::{Guest, Iommu, Job, Wire};
use crate::common::{Program, RINGPASS, wait_until};
use ringpass_lab::Ended;
use serde_json::Value;

const CARD: &str = "0000:00:10.0";
/// Socket of the front-end, in the guest; frames to `MAC` are for the front-end.
const SOCKET: &str = "/tmp/process";
const MAC: &str = "02:00:00:00:00:09";

/// How the forwarder is run: its user, its limit of locked memory in KiB, its command.
struct Kind {
    user: &'static str,
    limit: u32,
    command: &'static str,
    /// Options that the front-end needs for this command.
    front_end: &'static str,
}

impl Kind {
    const fn new(user: &'static str, limit: u32, command: &'static str, front_end: &'static str) -> Self {
        Self { user, limit, command, front_end }
    }
}

/// Root's limit is the kernel's default, which is too small for any guest.
const KINDS: [Kind; 4] = [
    Kind::new("user", 1 << 16, "fwd --map CARD GUEST", ""),
    Kind::new("user", 1 << 16, "fwd --map CARD GUEST --queues 2", "--queues 2"),
    Kind::new("user", 1 << 16, "switch CARD GUEST --map CARD=GUEST@MAC --no-sandbox", ""),
    Kind::new("root", 8192, "fwd --map CARD GUEST", ""),
];

/// A limit that suffices only for the forwarder's own memory.
const TOO_LITTLE: Kind = Kind::new("user", 10240, "fwd --map CARD GUEST", "");

struct Inside<'a> {
    wire: &'a Wire,
    guest: &'a Guest,
    kind: &'a Kind,
}

impl Inside<'_> {
    /// Starts a subcommand in the guest, as the user of this kind, and waits for its first line.
    fn start(&self, name: &str, limit: u32, command: &str) -> Job {
        let user = self.kind.user;
        let job = self.guest.spawn(&format!(
            "echo $$ >/run/{name}; ulimit -l {limit}; exec su {user} -c 'exec ringpass {command} --json --hugepages off 2>&1'"
        ));
        wait_until("its first line", || {
            let text = self.guest.printed(&job);
            assert!(!text.contains("ringpass: "), "{text}");
            text.contains("\"stats\"")
        });
        job
    }

    fn forwarder(&self) -> Job {
        let command = self.kind.command.replace("CARD", CARD).replace("MAC", MAC);
        self.start("forwarder", self.kind.limit, &command.replace("GUEST", &format!("vhost:{SOCKET}")))
    }

    fn front_end(&self) -> Job {
        // The less memory, the sooner it is mapped.
        let options = format!("--rxd 128 --txd 128 {}", self.kind.front_end);
        self.start("front-end", 0, &format!("echo virtio-user:{SOCKET} {options}"))
    }

    /// Returns a field of the forwarder's status in `/proc`.
    fn status(&self, field: &str) -> String {
        let text = self.guest.run(&format!("grep ^{field}: /proc/$(cat /run/forwarder)/status"));
        text.split_whitespace().nth(1).expect("a value").to_owned()
    }

    /// Returns how much memory VFIO has locked for the card, in KiB.
    fn locked(&self) -> u64 {
        self.status("VmLck").parse().expect("a number")
    }

    /// Sends probes from the far end of the wire, which the front-end sends back.
    fn probe(&self, options: &[&str]) -> Program {
        let port = format!("packet:{}", self.wire.tap);
        let ping = [RINGPASS, "ping", &port, "--dst-mac", MAC, "--size", "1000", "--json", "--hugepages", "off"];
        self.wire.host.spawn(&[&ping, options].concat())
    }

    /// Waits until a first probe passes, then sends `count` probes, none of which may be lost.
    fn probes(&self, count: u64, jobs: [&Job; 2]) {
        let answered = |count: u64, interval, patience| {
            let probe = self.probe(&["-c", &count.to_string(), "-i", interval, "-W", patience]);
            let Ended { lines, errors, .. } = probe.wait(Duration::from_secs(60));
            let summary: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
            (summary["answers"].as_u64().unwrap_or_else(|| panic!("{summary} {errors:?}")), lines)
        };
        wait_until("the first probe", || answered(1, "1", "3").0 == 1);
        let (answers, lines) = answered(count, "0.02", "20");
        let texts = || jobs.map(|job| self.guest.printed(job)).join("\n");
        assert_eq!(answers, count, "{}\n{lines:#?}\n{}", self.kind.command, texts());
    }

    fn kill(&self, name: &str, job: &Job) {
        self.guest.run(&format!("kill -KILL $(cat /run/{name})"));
        assert_eq!(self.guest.wait(job, Duration::from_secs(60)).status, 137);
    }

    /// Runs all checks for one kind.
    fn go_through(&self) {
        const ROUNDS: u64 = 3;
        const PROBES: u64 = 100;
        let forwarder = self.forwarder();
        assert_eq!(self.status("Seccomp"), if self.kind.command.contains("--no-sandbox") { "0" } else { "2" });
        let before = self.locked();
        let mut with_process = None;
        for round in 0..ROUNDS {
            let front_end = self.front_end();
            self.probes(PROBES, [&forwarder, &front_end]);
            // The process's memory is mapped for the card as long as the process lives, and the amount is the
            // same each time.
            let locked = self.locked();
            assert!(locked > before + 1024 && locked == *with_process.get_or_insert(locked), "{locked} KiB, {before}");
            let _others = self.probe(&["-i", "0.02"]);
            std::thread::sleep(Duration::from_millis(50 * round));
            self.kill("front-end", &front_end);
            wait_until("the memory's return", || self.locked() == before);
        }
        let (text, port) = self.end(&forwarder);
        eprintln!("{}: {before} KiB, with the process {with_process:?}; {port}", self.kind.command);
        let extended = |name: &str| port["extended"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {port}"));
        assert!(text.contains(" mapped: what is received") && !text.contains("is not mapped"), "{text}");
        assert_eq!((extended("sessions"), extended("guest_faults")), (ROUNDS, 0), "{port}");
        let sent = port["tx_packets"].as_u64().expect("a count");
        // Before the process makes buffers available, the card uses some of the host's.
        assert!(sent >= ROUNDS * PROBES && extended("mapped_packets") + ROUNDS * 64 >= sent, "{port}");
        assert!(extended("mapped_host_buffers") < ROUNDS * 400, "{port}");
    }

    /// A process whose memory cannot be locked does no harm: its frames are copied, and the reason is printed.
    fn copies(&self) {
        let forwarder = self.forwarder();
        let front_end = self.front_end();
        self.probes(100, [&forwarder, &front_end]);
        self.kill("front-end", &front_end);
        let (text, port) = self.end(&forwarder);
        assert!(text.contains("is not mapped, frames are copied") && text.contains("ulimit -l"), "{text}");
        assert_eq!(port["extended"]["mapped_packets"], 0, "{port}");
    }

    /// Ends the forwarder as Ctrl-C does; returns its output, and the front-end's port from its summary.
    fn end(&self, job: &Job) -> (String, Value) {
        self.guest.run("kill -INT $(cat /run/forwarder)");
        let output = self.guest.wait(job, Duration::from_secs(60));
        assert_eq!(output.status, 0, "{}", output.text);
        let mut summary: Value = serde_json::from_str(output.text.lines().last().expect("a summary")).expect("JSON");
        (output.text, summary["ports"][1].take())
    }
}

#[test]
fn a_card_behind_an_iommu_receives_into_another_processs_memory() {
    let wire = Wire::new(1, &[]);
    let guest = Guest::new().memory(768).cpus(2).iommu(Iommu::Translated).program(Path::new(RINGPASS));
    let guest = guest.card(&wire.socket()).boot();
    // With large pages there are fewer entries to map: in the emulated IOMMU each costs some 100 us, several times
    // that beside other tests, and the front-end gives the back-end 10 s.
    guest.run(&format!(
        "echo always >/sys/kernel/mm/transparent_hugepage/shmem_enabled
         modprobe vfio-pci
         echo vfio-pci >/sys/bus/pci/devices/{CARD}/driver_override; echo {CARD} >/sys/bus/pci/drivers_probe
         chown user /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{CARD}/iommu_group))"
    ));
    let inside = |kind| Inside { wire: &wire, guest: &guest, kind };
    inside(&TOO_LITTLE).copies();
    KINDS.iter().for_each(|kind| inside(kind).go_through());
    // Neither the guest's IOMMU nor the card has seen an access to unmapped memory.
    assert_eq!(guest.run("dmesg | grep -i 'DMAR.*fault addr' || true"), "");
    let counters = wire.counters();
    assert_eq!(counters["dma_faults"], 0, "{counters}");
}
