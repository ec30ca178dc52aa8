//! Drivers of PCI cards that run beside the model: the cards are in a command's `/sys` and `/dev`.

use std::fs::File;
use std::time::{Duration, Instant};

use ringpass_lab::Ended;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Program, RINGPASS, folder, ringpass, text, wait_until};

const CARDS: [&str; 2] = ["0000:f0:00.0", "0000:f0:01.0"];

/// Two cards under a driver, a generator at the end of one wire and an echo at that of the other.
struct Lab {
    model: Program,
    generator: Program,
    echo: Program,
    /// Lines that the command has printed before the generator's start.
    said: Vec<String>,
    _folder: TempDir,
}

impl Lab {
    /// Starts a command, and the generator with some options once it has printed `ready`.
    fn start(command: &[&str], ready: &str, options: &[&str]) -> Self {
        let mut started = Self::command(command, ready);
        for _ in 0..10 {
            let Err(model) = started else { break };
            model.signal("INT");
            model.wait(Duration::from_secs(60));
            started = Self::command(command, ready);
        }
        let (model, said, folder) = started.unwrap_or_else(|_| panic!("{command:?} never resets the cards"));
        let socket = |end: &str| format!("{}/{end}", text(folder.path()));
        let echo = Program::spawn(&[RINGPASS, "echo", &format!("virtio-user:{}", socket("far")), "--json"]);
        let port = format!("virtio-user:{}", socket("near"));
        let sending = [RINGPASS, "pktgen", &port, "--json", "--imix", "--rate", "4k"];
        let generator = Program::spawn(&[&sending[..], options].concat());
        Self { model, generator, echo, said, _folder: folder }
    }

    /// Starts a command, and waits until it has printed `ready`. Returns what it has said until then, and the folder of the wires;
    /// an error if DPDK's driver gave up, as the model got no CPU within the 10 µs that it waits for a reset (docs/troubleshooting.md).
    fn command(command: &[&str], ready: &str) -> Result<(Program, Vec<String>, TempDir), Program> {
        let folder = folder();
        let socket = |end: &str| format!("{}/{end}", text(folder.path()));
        let [near, far] = ["near", "far"].map(|end| format!("vhost:{}", socket(end)));
        let model = [RINGPASS, "model", "82599", "--json", "--wire", &near, "--wire", &far, "--"];
        let model = Program::spawn(&[&model, command].concat());
        wait_until("the wires", || ["near", "far"].iter().all(|end| std::fs::exists(socket(end)).unwrap()));
        let mut said = Vec::new();
        let start = Instant::now();
        loop {
            // The model says how it fares every second, so a command that says nothing does not keep this waiting.
            assert!(start.elapsed() < Duration::from_secs(120), "the command never said '{ready}': {said:?}");
            let Some(line) = model.line_or_eof() else { panic!("{said:?} {:?}", model.wait(Duration::from_secs(10))) };
            let is_ready = line.contains(ready);
            said.push(line);
            said.extend(model.said());
            let gave_up = ["Hardware Initialization Failure", "Fail to start port"];
            if said.iter().any(|line| gave_up.iter().any(|words| line.contains(words))) {
                return Err(model);
            }
            if is_ready {
                return Ok((model, said, folder));
            }
        }
    }

    /// Waits for the generator's end, then ends the command. Returns the generator's summary, that of the model, and what the command
    /// and the model have said.
    fn end(self) -> (Value, Value, Vec<String>) {
        let Ended { status, lines, errors } = self.generator.wait(Duration::from_secs(120));
        assert_eq!(status, Some(0), "{errors:?}");
        let generator = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
        self.echo.signal("INT");
        assert_eq!(self.echo.wait(Duration::from_secs(60)).status, Some(0));
        self.model.signal("INT");
        let Ended { status, lines, errors } = self.model.wait(Duration::from_secs(60));
        let said = [self.said, lines, errors].concat();
        assert_eq!(status, Some(0), "{said:?}");
        let mut events = said.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let model = events.rfind(|event| event["cards"].is_array()).expect("the model's summary");
        (generator, model, said)
    }
}

/// Options of a generator whose frames all come back.
const FRAMES: [&str; 4] = ["--count", "4000", "--window", "64"];

/// Returns what is mounted, for the tests' process.
fn mounts() -> String {
    let all = std::fs::read_to_string("/proc/self/mounts").expect("Linux");
    // Other tests make and remove network namespaces.
    all.lines().filter(|line| !line.starts_with("nsfs ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn our_driver_finds_the_cards_in_sysfs() {
    let _pages = HugePages::add(32);
    let before = mounts();
    let forward = [RINGPASS, "fwd", CARDS[0], CARDS[1], "--hugepages", "on", "--json"];
    let (generator, model, said) = Lab::start(&forward, CARDS[0], &FRAMES).end();
    for (what, count) in [("returned", 4000), ("lost", 0), ("reordered", 0), ("duplicate", 0)] {
        assert_eq!(generator[what], count, "{generator} {said:?}");
    }
    for card in model["cards"].as_array().expect("two cards") {
        assert_eq!((&card["rx_packets"], &card["tx_packets"]), (&4000.into(), &4000.into()), "{model}");
        assert_eq!(card["dma_faults"], 0, "{model}");
    }
    assert!(said.iter().any(|line| line.contains("card 1 is the PCI device 0000:f0:01.0")), "{said:?}");
    assert_eq!(mounts(), before, "nothing stays mounted");
    assert!(!std::fs::exists(format!("/sys/bus/pci/devices/{}", CARDS[0])).unwrap(), "others don't see the cards");
}

#[test]
fn a_killed_driver_leaves_a_card_for_the_next_one() {
    let _pages = HugePages::add(32);
    let forward = format!("{RINGPASS} fwd {} {} --hugepages on --json", CARDS[0], CARDS[1]);
    let script = format!("{forward} & sleep 3; kill -9 $!; wait $!; sleep 0.3; exec {forward}");
    let (generator, model, said) = Lab::start(&["sh", "-c", &script], CARDS[0], &["--count", "24000"]).end();
    let returned = generator["returned"].as_u64().expect("a number");
    // Lost are the frames in the rings of the killed driver, and what has no room until there is another one.
    assert!((16_000..24_000).contains(&returned), "{generator} {model} {said:?}");
    assert_eq!((&generator["reordered"], &generator["duplicate"]), (&0.into(), &0.into()), "{generator}");
}

/// Huge pages of 2 MiB for a test, given back when dropped. Tests that count free ones wait meanwhile.
struct HugePages {
    before: String,
    _lock: File,
}

impl HugePages {
    const NUMBER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    fn add(pages: u64) -> Self {
        let lock = File::open(Self::NUMBER).expect("a kernel with huge pages");
        flock(&lock, FlockOperation::LockExclusive).expect("a lock");
        let number = || std::fs::read_to_string(Self::NUMBER).expect("a number").trim().to_owned();
        let before = number();
        let wanted = before.parse::<u64>().expect("a number") + pages;
        std::fs::write(Self::NUMBER, wanted.to_string()).expect("as root");
        let pages = Self { before, _lock: lock };
        assert_eq!(number(), wanted.to_string(), "the kernel has no room for huge pages");
        pages
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::NUMBER, &self.before);
    }
}

#[test]
fn debians_testpmd_forwards() {
    let _pages = HugePages::add(64);
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("CPUs").trim();
    let cores = format!("(0-1)@({cpus})");
    let eal = ["dpdk-testpmd", "--in-memory", "--no-telemetry", "-m", "64", "--lcores", &cores];
    let eal = [&eal[..], &["-a", CARDS[0], "-a", CARDS[1], "--"]].concat();
    let own = ["--no-flush-rx", "--stats-period=1", "--total-num-mbufs=4096", "--forward-mode=io"];
    let (generator, model, said) = Lab::start(&[&eal[..], &own].concat(), "NIC statistics for port 1", &FRAMES).end();
    for (what, count) in [("returned", 4000), ("lost", 0), ("reordered", 0), ("duplicate", 0)] {
        assert_eq!(generator[what], count, "{generator} {said:?}");
    }
    for card in model["cards"].as_array().expect("two cards") {
        assert_eq!((&card["rx_packets"], &card["tx_packets"]), (&4000.into(), &4000.into()), "{model}");
        assert_eq!(card["dma_faults"], 0, "{model}");
    }
    // Its own counts are too high: it adds up counters, which are not cleared when it reads them.
    assert!(said.iter().any(|line| line.contains("for all ports")), "testpmd has ended in order: {said:?}");
}

#[test]
fn a_driver_that_is_left_behind_ends_with_the_command() {
    let _pages = HugePages::add(32);
    let folder = folder();
    let (number, forward) = (folder.path().join("number"), format!("{RINGPASS} fwd {} {}", CARDS[0], CARDS[1]));
    let script = format!("{forward} --hugepages on -q >/dev/null 2>&1 & echo $! >{}; sleep 2", text(&number));
    let model = ["model", "82599", "--wire", "null", "--wire", "null", "-q", "--", "sh", "-c", &script];
    let (status, _, errors) = ringpass(&model);
    assert_eq!(status, Some(0), "{errors}");
    let driver = std::fs::read_to_string(number).expect("the driver's number");
    wait_until("the driver's end", || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", driver.trim()));
        state.is_err() || state.is_ok_and(|state| state.contains(") Z "))
    });
}

#[test]
fn commands_that_fail() {
    let model = |options: &[&str], command: &[&str]| {
        let model = ["model", "82599", "--wire", "null"];
        let (status, out, errors) = ringpass(&[&model, options, &["--"], command].concat());
        assert_eq!((status, out.as_str()), (Some(1), ""), "{errors}");
        errors.lines().filter(|line| line.starts_with("ringpass:")).collect::<Vec<_>>().join("\n")
    };
    assert!(model(&[], &["/no/such/program"]).contains("starting /no/such/program"));
    assert!(model(&["-q"], &["sh", "-c", "exit 3"]).contains("the command failed, with exit status 3"));
    assert!(model(&["-q"], &["sh", "-c", "kill -9 $$"]).contains("the command was ended by signal 9"));
    // A program that maps nothing is none of the model's business.
    let (status, _, errors) = ringpass(&["model", "82599", "--wire", "null", "-q", "--", "true"]);
    assert_eq!(status, Some(0), "{errors}");
    // A driver that dies while the card is in reset.
    let reset =
        "printf '\\000\\000\\000\\004' | dd of=/sys/bus/pci/devices/0000:f0:00.0/resource0 conv=notrunc status=none";
    let (status, _, errors) =
        ringpass(&["model", "82599", "--wire", "null", "-q", "--", "sh", "-c", &format!("{reset}; kill -9 $$")]);
    assert_eq!(status, Some(1), "{errors}");
    let (status, _, errors) = ringpass(&["model", "virtio-net", "--wire", "null", "--", "true"]);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("commands see cards of the 82599"), "{errors}");
    // As another user.
    let (folder, program) = crate::common::for_everybody();
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let nobody =
        Program::spawn(&[&nobody[..], &[text(&program), "model", "82599", "--wire", "null", "--", "true"]].concat());
    let Ended { status, errors, .. } = nobody.wait(Duration::from_secs(60));
    assert_eq!(status, Some(1), "{errors:?}");
    assert!(errors.iter().any(|line| line.contains("run as root")), "{errors:?}");
    drop(folder);
}
