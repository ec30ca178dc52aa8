//! The long-lived processes of the soak: a switch, a server of cards, a server of netmap ports, a generator,
//! and the control pairs, one of which has a switch of its own.

use std::fs::{Permissions, set_permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::process::{Launcher, LongLived, NETMAP, ResourceUsage};
use super::summary::{Buffers, ControlPair, Growth, Summary};
use super::victims::stations;

/// A generator that sends numbered frames and an echo that returns them.
struct Pair {
    name: &'static str,
    generator: LongLived,
    echo: LongLived,
    /// Longest round trips in the last intervals of [`LOOK`], in milliseconds.
    longest_ms: [f64; 3],
    /// Longest stall, in milliseconds.
    stall_ms: f64,
    /// Frames lost before the pair was known to work.
    before: u64,
}

/// The long-lived processes.
pub struct Survivors {
    pairs: Vec<Pair>,
    /// In the order in which they are ended: a process comes before its back-ends and servers.
    servers: Vec<LongLived>,
}

/// Name of the pair on cards and a switch of its own, without peers that come and go. What its frames wait is what any
/// wait for a CPU on this machine: no other pair's frames pass more processes.
const ALONE: &str = "alone";

/// Time between two looks for stalls, which is that between a generator's reports.
pub const LOOK: Duration = Duration::from_secs(1);

/// Ports of the switch: kind, socket, VLAN. VLAN 1 is for a control pair, 2 for the wires of the cards under a
/// control pair, 3 for the wires of the cards under killed drivers, 4 and 5 for killed front-ends.
const PORTS: [(&str, &str, u16); 10] = [
    ("vhost", "pair0", 1),
    ("vhost", "pair1", 1),
    ("virtio-user", "wire-card0", 2),
    ("virtio-user", "wire-card1", 2),
    ("virtio-user", "wire-card2", 3),
    ("virtio-user", "wire-card3", 3),
    ("vhost", "front0", 4),
    ("vhost", "front1", 4),
    ("vhost", "front2", 5),
    ("vhost", "front3", 5),
];

/// Frames a second of each pair, and the largest number of frames in flight: few enough to fit into every
/// queue, so that none is dropped for lack of room, even if a process waits long for a CPU.
const RATE: &str = "2k";
const WINDOW: &str = "64";

impl Survivors {
    pub fn start(launcher: &Launcher) -> io::Result<Self> {
        let at = |name: &str| launcher.socket(name);
        let start_model = |name, cards: &[&str]| {
            let mut command = vec!["model".to_owned(), "82599".into()];
            for card in cards {
                let wire = format!("vhost:{}", at(&format!("wire-{card}")));
                command.extend(["--socket".into(), at(card), "--wire".into(), wire]);
            }
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            launcher.long_lived(name, &command)
        };
        let model = start_model("model", &["card0", "card1", "card2", "card3"])?;
        let other_model = start_model("other model", &["alone0", "alone1"])?;
        let ports = PORTS.map(|(kind, name, vlan)| format!("{kind}:{}@{vlan}", at(name)));
        let of_switch = ["switch", "--flood", "0", "--hugepages", "off"];
        let command: Vec<&str> = of_switch.into_iter().chain(ports.iter().map(String::as_str)).collect();
        let switch = launcher.long_lived("switch", &command)?;
        let ports = ["wire-alone0", "wire-alone1"].map(|wire| format!("virtio-user:{}", at(wire)));
        let command: Vec<&str> = of_switch.into_iter().chain(ports.iter().map(String::as_str)).collect();
        let other_switch = launcher.long_lived("other switch", &command)?;
        let netmapd = launcher.long_lived("netmapd", &["netmapd", "--socket", &at(NETMAP), "--hugepages", "off"])?;
        let generator = generator(launcher)?;
        let ends = [
            (ALONE, ["alone0", "alone1"].map(|card| format!("vfio-user:{}", at(card)))),
            ("on the switch", ["pair0", "pair1"].map(|end| format!("virtio-user:{}", at(end)))),
            ("on cards", ["card0", "card1"].map(|card| format!("vfio-user:{}", at(card)))),
            ("on VALE", ["vale0:pair0".into(), "vale0:pair1".into()]),
        ];
        let mut pairs = Vec::new();
        for (name, [near, far]) in ends {
            let names: [&'static str; 2] = match name {
                ALONE => ["pktgen alone", "echo alone"],
                "on the switch" => ["pktgen on the switch", "echo on the switch"],
                "on cards" => ["pktgen on cards", "echo on cards"],
                _ => ["pktgen on VALE", "echo on VALE"],
            };
            let echo = launcher.long_lived(names[1], &["echo", &far, "--hugepages", "off"])?;
            let [from, to] = stations(2);
            let options = ["--src-mac", &from, "--dst-mac", &to, "--rate", RATE, "--window", WINDOW];
            let command = [&["pktgen", &near, "--hugepages", "off"][..], &options].concat();
            let generator = launcher.long_lived(names[0], &command)?;
            let mut pair = Pair { name, generator, echo, longest_ms: [0.0; 3], stall_ms: 0.0, before: 0 };
            pair.wait_until_forwarding()?;
            pairs.push(pair);
        }
        Ok(Self { pairs, servers: vec![generator, switch, other_switch, model, other_model, netmapd] })
    }

    fn long_lived_processes(&mut self) -> impl Iterator<Item = &mut LongLived> {
        let pairs = self.pairs.iter_mut().flat_map(|pair| [&mut pair.generator, &mut pair.echo]);
        pairs.chain(&mut self.servers)
    }

    /// Looks for round trips that take longer than those of the pair that nobody disturbs. To be called in intervals of
    /// [`LOOK`].
    pub fn look_for_stalls(&mut self) {
        for pair in &mut self.pairs {
            pair.generator.listen();
            pair.longest_ms.rotate_left(1);
            pair.longest_ms[2] = std::mem::take(&mut pair.generator.longest_ms);
        }
        let alone = self.pairs.iter().find(|pair| pair.name == ALONE).expect("it is one of them");
        // Generators do not report at the same moment: neighbouring intervals count as well.
        let usual = alone.longest_ms.into_iter().fold(0.0, f64::max);
        for pair in &mut self.pairs {
            pair.stall_ms = pair.stall_ms.max(pair.longest_ms[1] - usual);
        }
    }

    /// Reads the output since the last call. Returns the pairs' counters, and a text for each process that has
    /// ended.
    pub fn look(&mut self) -> (Vec<ControlPair>, Vec<String>) {
        self.long_lived_processes().for_each(LongLived::listen);
        let dead = self.long_lived_processes().filter_map(|long_lived| {
            let status = long_lived.program.ended()?;
            Some(long_lived.report(&format!("has ended, with {status}")))
        });
        let dead = dead.collect();
        (self.pairs.iter().map(Pair::counts).collect(), dead)
    }

    fn resource_usages(&mut self) -> Vec<ResourceUsage> {
        self.long_lived_processes().map(|long_lived| long_lived.resource_usage()).collect()
    }

    /// Waits until descriptors, threads and mappings have not changed for a second, at most half a minute.
    /// Returns the resource usages, and the number of free buffers for ports and pipes.
    pub fn wait_until_stable(&mut self, launcher: &Launcher) -> (Vec<ResourceUsage>, Option<u64>) {
        let start = Instant::now();
        let (mut same, mut last) = (Instant::now(), Vec::new());
        while same.elapsed() < Duration::from_secs(1) && start.elapsed() < Duration::from_secs(30) {
            let now: Vec<_> =
                self.resource_usages().iter().map(|held| (held.descriptors, held.threads, held.maps)).collect();
            if now != last {
                (same, last) = (Instant::now(), now);
            }
            std::thread::sleep(Duration::from_millis(50));
            self.long_lived_processes().for_each(LongLived::listen);
        }
        (self.resource_usages(), free_buffers(launcher))
    }

    /// Compares the resource usage with `before` and records it. Usage that is still above `before` has half a
    /// minute to fall.
    pub fn check_growth(
        &mut self,
        launcher: &Launcher,
        before: (Vec<ResourceUsage>, Option<u64>),
        summary: &mut Summary,
    ) {
        let start = Instant::now();
        let (mut now, mut left) = self.wait_until_stable(launcher);
        while (left != before.1 || now.iter().zip(&before.0).any(|(now, before)| now.exceeds(before)))
            && start.elapsed() < Duration::from_secs(30)
        {
            (now, left) = self.wait_until_stable(launcher);
        }
        let compared = self.long_lived_processes().zip(before.0.into_iter().zip(now));
        summary.growth =
            compared.map(|(long_lived, (before, after))| Growth { process: long_lived.name, before, after }).collect();
        match (before.1, left) {
            (Some(before), Some(after)) => summary.buffers.push(Buffers {
                whose: "ports and pipes of netmapd",
                missing: before.saturating_sub(after),
                all: before,
            }),
            _ => summary.faults.push("'ringpass vale' has not said how many buffers are free".into()),
        }
    }

    /// Ends all processes, and records the counters of pairs and pools.
    pub fn end(mut self, summary: &mut Summary) {
        let mut ends = Vec::new();
        // Generators end first: they wait for frames in flight, which the echoes return.
        self.pairs.iter_mut().for_each(|pair| ends.push(pair.generator.end()));
        self.pairs.iter_mut().for_each(|pair| ends.push(pair.echo.end()));
        self.servers.iter_mut().for_each(|server| ends.push(server.end()));
        summary.innocents = self.pairs.iter().map(Pair::counts).collect();
        for long_lived in self.long_lived_processes() {
            match long_lived.buffers() {
                Some((missing, all)) => summary.buffers.push(Buffers { whose: long_lived.name, missing, all }),
                None => ends.push(Err(format!("{} has not said whether buffers are missing", long_lived.name))),
            }
        }
        summary.faults.extend(ends.into_iter().filter_map(Result::err));
        summary.ended = true;
    }
}

/// Returns the number of free buffers in the common memory and in what is left for other memory of ports and pipes.
fn free_buffers(launcher: &Launcher) -> Option<u64> {
    let status = launcher.netmap_status()?;
    let number = |of: &str, what: &str| status[of][what].as_u64();
    let left = number("memory", "total")?.saturating_sub(number("memory", "used")?);
    Some(number("common", "free")? + left / number("common", "buffer_size")?)
}

/// Starts a generator that creates the socket to which its back-ends connect.
fn generator(launcher: &Launcher) -> io::Result<LongLived> {
    let socket = launcher.socket("back");
    let address = format!("virtio-user:{socket},server");
    let command = ["pktgen", &address, "--rate", RATE, "--window", WINDOW, "--hugepages", "off"];
    let mut generator = launcher.starting("generator of back-ends", &command)?;
    let start = Instant::now();
    while !Path::new(&socket).exists() {
        if start.elapsed() > Duration::from_secs(30) || generator.program.ended().is_some() {
            return Err(io::Error::other(generator.report("has made no socket")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for_everybody(Path::new(&socket))?;
    // The first back-end that connects tells the generator which features back-ends have.
    let first = ["echo".to_owned(), format!("vhost:{socket},client"), "--hugepages".into(), "off".into()];
    let _first = launcher.peer(&first, NETMAP)?;
    generator.started()
}

/// Opens the socket's permissions for back-ends in their sandbox, which runs as another user if this is root.
fn for_everybody(socket: &Path) -> io::Result<()> {
    set_permissions(socket.parent().expect("the soak's folder"), Permissions::from_mode(0o755))?;
    set_permissions(socket, Permissions::from_mode(0o666))
}

impl Pair {
    /// Waits until frames come back, then two seconds more.
    fn wait_until_forwarding(&mut self) -> io::Result<()> {
        let start = Instant::now();
        let mut since = None;
        loop {
            std::thread::sleep(Duration::from_millis(50));
            [&mut self.generator, &mut self.echo].into_iter().for_each(LongLived::listen);
            let counts = self.counts();
            if counts.returned > 0 && *since.get_or_insert_with(Instant::now) + Duration::from_secs(2) < Instant::now()
            {
                (self.before, self.generator.longest_ms) = (counts.lost, 0.0);
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(60) || self.generator.program.ended().is_some() {
                let said = [self.generator.said(), self.echo.said()].join(" | ");
                return Err(io::Error::other(format!("no frame comes back {}: {said}", self.name)));
            }
        }
    }

    fn counts(&self) -> ControlPair {
        let of = |name: &str| self.generator.event[name].as_u64().unwrap_or(0);
        ControlPair {
            name: self.name,
            sent: of("sent"),
            returned: of("returned"),
            lost: of("lost").saturating_sub(self.before),
            before: self.before,
            reordered: of("reordered"),
            duplicate: of("duplicate"),
            longest_ms: self.generator.event["round_trip_max_us"].as_f64().unwrap_or(0.0) / 1000.0,
            stall_ms: self.stall_ms,
        }
    }
}
