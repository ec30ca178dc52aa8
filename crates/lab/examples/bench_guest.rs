//! Measures virtio packet rates inside a guest; run by `scripts/bench-guest`.
//!
//! Linux's bridge, DPDK's testpmd and `ringpass fwd` forward between the same two virtio cards of one guest,
//! one after the other. `ringpass pktgen` is compared with Linux's pktgen. Prints a table, and a line of JSON
//! for each row.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ringpass_lab::{Guest, Job, Namespace, Program, Tap, nic_address, wait_until};
use serde_json::{Value, json};

/// Time over which packets are counted.
const MEASURE: Duration = Duration::from_secs(4);

/// Quantity measured in a guest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    /// Packets a second, as fast as QEMU runs the guest and its cards.
    Packets,
    /// Instructions and doorbells per packet. The guest's clock counts instructions (`-icount`), and QEMU runs
    /// them one by one, so the guest is the bottleneck and its bursts are full. `ioeventfd` is off, so that
    /// QEMU's trace sees every doorbell.
    Instructions,
}

struct Rig {
    guest: Guest,
    monitor: UnixStream,
    count: Count,
    a: Namespace,
    b: Namespace,
    taps: [Tap; 2],
    program: String,
    folder: tempfile::TempDir,
}

/// One row of the table.
struct Row {
    cards: String,
    work: &'static str,
    who: &'static str,
    packets_per_second: f64,
    /// Packets a second in the guest whose instructions are counted.
    counted_packets_per_second: f64,
    instructions: Option<f64>,
    doorbells: f64,
}

/// Counts of one run.
struct Run {
    packets_per_second: f64,
    doorbells_per_million: f64,
    /// Guest instructions per packet, if they are counted.
    instructions: Option<f64>,
}

impl Rig {
    fn boot(program: &str, card: &str, count: Count) -> Result<Self, Box<dyn Error>> {
        let (a, b) = (Namespace::new(), Namespace::new());
        let taps = [Tap::new(&a, "198.18.0.1/24"), Tap::new(&b, "198.18.0.2/24")];
        let folder = tempfile::tempdir()?;
        let (socket, trace) = (folder.path().join("monitor"), folder.path().join("trace"));
        let (socket, trace) = (socket.to_str().expect("a path in UTF-8"), trace.to_str().expect("a path in UTF-8"));
        let monitor = format!("unix:{socket},server=on,wait=off");
        let mut arguments = vec!["-monitor", &monitor];
        let mut card = format!("virtio-net-pci,{card}");
        if count == Count::Instructions {
            arguments.extend(["-icount", "shift=0", "-D", trace]);
            card += ",ioeventfd=off";
        }
        let guest = Guest::new().memory(512).cpus(1).dpdk().program(Path::new(program)).arguments(&arguments);
        let guest = guest.nic(&card, &taps[0]).nic(&card, &taps[1]).boot();
        let monitor = UnixStream::connect(socket)?;
        monitor.set_read_timeout(Some(Duration::from_millis(200)))?;
        let program = program.to_owned();
        Ok(Self { guest, monitor, count, a, b, taps, program, folder })
    }

    /// Sends a command to QEMU's monitor and discards the answer.
    fn monitor(&self, command: &str) {
        (&self.monitor).write_all(format!("{command}\n").as_bytes()).expect("QEMU's monitor");
        // Reads the answer until the monitor is silent for the read timeout (200 ms).
        let mut answer = [0; 4096];
        while (&self.monitor).read(&mut answer).is_ok_and(|len| len > 0) {}
    }

    /// Returns the number of doorbells in QEMU's trace.
    fn doorbells(&self) -> usize {
        let trace = std::fs::read_to_string(self.folder.path().join("trace")).unwrap_or_default();
        trace.lines().filter(|line| line.contains("virtio_queue_notify")).count()
    }

    /// Counts doorbells, and the packets that arrive in a namespace, over `MEASURE`.
    fn count(&self, namespace: &Namespace, tap: &Tap) -> Run {
        let slow = self.count == Count::Instructions;
        let before = namespace.counter(&tap.name, "rx_packets");
        // Programs take time to start, and some send their first packets only after they report that they run.
        let end = Instant::now() + Duration::from_secs(60);
        while namespace.counter(&tap.name, "rx_packets") < before + 100 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        if slow {
            self.monitor("one-insn-per-tb on");
            self.monitor("trace-event virtio_queue_notify on");
        }
        std::thread::sleep(Duration::from_secs(1));
        let now = || (namespace.counter(&tap.name, "rx_packets"), self.doorbells(), Instant::now());
        let (packets, doorbells, start) = now();
        std::thread::sleep(MEASURE);
        let (packets, doorbells) = (namespace.counter(&tap.name, "rx_packets") - packets, self.doorbells() - doorbells);
        let seconds = start.elapsed().as_secs_f64();
        if slow {
            self.monitor("trace-event virtio_queue_notify off");
            self.monitor("one-insn-per-tb off");
        }
        Run {
            packets_per_second: packets as f64 / seconds,
            doorbells_per_million: doorbells as f64 * 1e6 / (packets as f64).max(1.0),
            instructions: None,
        }
    }

    /// Sends 60-byte frames from one namespace, more than can be forwarded, and counts those that arrive in the
    /// other; then calls `more` while frames are still being sent.
    fn offer(&self, more: impl FnOnce()) -> Run {
        let port = format!("packet:{}", self.taps[0].name);
        let sender: Program = self.a.spawn(&[&self.program, "pktgen", &port, "--rate", "400k", "--json"]);
        wait_until("the sender", || sender.line().contains("stats"));
        let run = self.count(&self.b, &self.taps[1]);
        more();
        run
    }

    /// Adds the instructions per packet, `clock`, to a run if the guest counts instructions.
    fn with(&self, run: Run, clock: Option<f64>) -> Run {
        Run { instructions: clock.filter(|_| self.count == Count::Instructions), ..run }
    }

    fn bridge(&self) -> Run {
        self.guest.run(
            "modprobe -a virtio_net bridge
             until [ -e /sys/class/net/eth1 ]; do sleep 0.1; done
             ip link add br0 type bridge; ip link set br0 up
             for i in eth0 eth1; do ip link set $i master br0; ip link set $i up; done
             for i in eth0 eth1; do
                 until [ \"$(cat /sys/class/net/$i/brport/state)\" = 3 ]; do sleep 0.1; done
             done",
        );
        // Takes the instructions of the whole guest, which does nothing else, over 0.3 s of its clock.
        let mut instructions = None;
        let run = self.offer(|| {
            let text = self.guest.run_within(
                Duration::from_secs(60),
                "now() {
                     while read -r a b at c; do [ \"$a $b\" != 'now at' ] || break; done </proc/timer_list
                     read -r sent </sys/class/net/eth1/statistics/tx_packets
                     read -r a b c d idle e </proc/stat
                 }
                 now; first=$at before=$sent rest=$idle; sleep 0.3; now
                 echo $((at - first)) $((sent - before)) $((idle - rest))",
            );
            let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [nanoseconds, packets, idle] = numbers[..] else { panic!("{text}") };
            // `idle` is in ticks of 4 ms. With more than two of them the guest was not the bottleneck.
            instructions = (packets > 0.0 && idle <= 2.0).then_some(nanoseconds / packets);
        });
        self.guest.run("ip link delete br0; ip link set eth0 down; ip link set eth1 down");
        self.with(run, instructions)
    }

    fn testpmd(&self) -> Run {
        let [one, other] = [0, 1].map(nic_address);
        self.guest.run(&format!(
            "modprobe uio_pci_generic; rmmod virtio_net || true
             echo 128 >/proc/sys/vm/nr_hugepages
             for card in {one} {other}; do
                 [ ! -e /sys/bus/pci/devices/$card/driver ] || echo $card >/sys/bus/pci/devices/$card/driver/unbind
                 echo uio_pci_generic >/sys/bus/pci/devices/$card/driver_override; echo $card >/sys/bus/pci/drivers_probe
             done
             rm -f /run/stop"
        ));
        let job = self.guest.spawn(&format!(
            "(until [ -e /run/stop ]; do sleep 0.1; done; echo) | testpmd --lcores '(0,1)@0' -n 1 --in-memory \
             --no-telemetry -m 64 -a {one} -a {other} -- --total-num-mbufs=4096 --rxd=256 --txd=256 --burst=32 \
             --forward-mode=io --record-core-cycles --auto-start"
        ));
        self.wait_for(&job, "Checking link");
        let run = self.offer(|| {});
        self.guest.run("touch /run/stop");
        let text = self.guest.wait(&job, Duration::from_secs(60)).text;
        self.guest.run(&format!(
            "for card in {one} {other}; do
                 echo $card >/sys/bus/pci/devices/$card/driver/unbind
                 echo >/sys/bus/pci/devices/$card/driver_override; echo $card >/sys/bus/pci/drivers_probe
             done"
        ));
        let cycles = text.split_once("CPU cycles/packet=").and_then(|(_, rest)| rest.split_whitespace().next());
        self.with(run, cycles.and_then(|cycles| cycles.parse().ok()))
    }

    fn wait_for(&self, job: &Job, what: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.guest.printed(job).contains(what) {
            assert!(self.guest.running(job) && Instant::now() < end, "{}", self.guest.printed(job));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Runs a subcommand of Ringpass while `count` counts. With `-icount`, the summary's cycles per packet are
    /// instructions.
    fn ringpass(&self, arguments: &str, count: impl FnOnce() -> Run) -> Run {
        self.guest.run("echo 128 >/proc/sys/vm/nr_hugepages");
        let job = self.guest.spawn(&format!("echo $$ >/run/ringpass; exec ringpass {arguments} --json 2>&1"));
        self.wait_for(&job, "\"stats\"");
        let run = count();
        self.guest.run("kill -INT $(cat /run/ringpass)");
        let text = self.guest.wait(&job, Duration::from_secs(60)).text;
        let summary: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_default();
        self.with(run, summary["cycles_per_packet"].as_f64())
    }

    /// Runs Linux's pktgen, which reuses one buffer and rings the doorbell once per 32 packets.
    fn kernel_pktgen(&self) -> Run {
        self.guest.run("modprobe -a virtio_net pktgen; until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done
             ip link set eth0 up; sleep 0.2
             cd /proc/net/pktgen; echo 'add_device eth0' >kpktgend_0
             for word in 'count 0' 'clone_skb 100000' 'burst 32' 'pkt_size 60' 'dst 198.19.0.1' 'dst_mac 02:00:00:00:00:ff'; do
                 echo \"$word\" >eth0
             done");
        let job = self.guest.spawn("echo start >/proc/net/pktgen/pgctrl");
        let run = self.count(&self.a, &self.taps[0]);
        self.guest.run("echo stop >/proc/net/pktgen/pgctrl");
        let _ = self.guest.wait(&job, Duration::from_secs(30));
        self.guest.run("echo reset >/proc/net/pktgen/pgctrl; ip link set eth0 down");
        run
    }
}

/// Measures every program with one kind of card: packets in one guest, instructions in another.
fn compare(program: &str, card: &str) -> Result<Vec<Row>, Box<dyn Error>> {
    let [one, other] = [0, 1].map(nic_address);
    let measure = |count| -> Result<[Run; 5], Box<dyn Error>> {
        let rig = Rig::boot(program, card, count)?;
        Ok([
            rig.bridge(),
            rig.kernel_pktgen(),
            rig.testpmd(),
            rig.ringpass(&format!("fwd {one} {other} --rxd 256 --txd 256"), || rig.offer(|| {})),
            rig.ringpass(&format!("pktgen {one} --txd 256"), || rig.count(&rig.a, &rig.taps[0])),
        ])
    };
    let (packets, instructions) = (measure(Count::Packets)?, measure(Count::Instructions)?);
    let names = [
        ("forward", "Linux, bridge"),
        ("generate", "Linux, pktgen"),
        ("forward", "DPDK, testpmd io"),
        ("forward", "ringpass fwd"),
        ("generate", "ringpass pktgen"),
    ];
    let rows = names.into_iter().zip(packets.into_iter().zip(instructions)).map(|((work, who), (fast, counted))| Row {
        cards: card.to_owned(),
        work,
        who,
        packets_per_second: fast.packets_per_second,
        counted_packets_per_second: counted.packets_per_second,
        instructions: counted.instructions,
        doorbells: counted.doorbells_per_million,
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by_key(|row| row.work);
    Ok(rows)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let program = arguments.next().ok_or("the program's path; start it by scripts/bench-guest")?;
    let mut cards: Vec<String> = arguments.collect();
    if cards.is_empty() {
        cards = ["packed=off", "packed=on", "packed=on,in_order=on"].map(str::to_owned).to_vec();
    }
    let mut rows = Vec::new();
    for card in cards {
        rows.extend(compare(&program, &card)?);
    }
    println!(
        "| `-device virtio-net-pci,…` | work | by | packets a second | one instruction at a time | guest instructions a packet | doorbells a million packets |"
    );
    println!("|---|---|---|---:|---:|---:|---:|");
    for Row { cards, work, who, packets_per_second, counted_packets_per_second, instructions, doorbells } in &rows {
        let instructions = instructions.map_or("–".to_owned(), |count| format!("{count:.0}"));
        println!(
            "| {cards} | {work} | {who} | {packets_per_second:.0} | {counted_packets_per_second:.0} | {instructions} | {doorbells:.0} |"
        );
    }
    for Row { cards, work, who, packets_per_second, counted_packets_per_second, instructions, doorbells } in &rows {
        let row = json!({"event": "guest", "cards": cards, "work": work, "who": who, "packets_per_second": packets_per_second, "counted_packets_per_second": counted_packets_per_second,
            "instructions_per_packet": instructions, "doorbells_per_million": doorbells});
        println!("{row}");
    }
    Ok(())
}
