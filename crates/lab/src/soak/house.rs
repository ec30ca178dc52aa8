//! The processes that live on: a switch, a server of cards, a server of netmap ports, a generator, and the innocent pairs.

use std::fs::{Permissions, set_permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::process::{Holding, Launcher, NETMAP, Resident};
use super::seats::stations;
use super::summary::{Buffers, Growth, Innocent, Summary};

/// Two processes, of which one sends frames with numbers and the other sends them back.
struct Pair {
    name: &'static str,
    generator: Resident,
    echo: Resident,
    /// Frames that were lost before both were known to work.
    before: u64,
}

/// See the module.
pub struct House {
    pairs: Vec<Pair>,
    /// In the order in which they are ended: peers before those that they are peers of.
    servers: Vec<Resident>,
}

/// VLANs of the switch: of an innocent pair, of the wires of cards under an innocent pair and under killed drivers, of
/// killed front-ends.
const PORTS: [(&str, &str, u16); 10] = [
    ("vhost", "pair0", 1),
    ("vhost", "pair1", 1),
    ("virtio-user", "wire0", 2),
    ("virtio-user", "wire1", 2),
    ("virtio-user", "wire2", 3),
    ("virtio-user", "wire3", 3),
    ("vhost", "front0", 4),
    ("vhost", "front1", 4),
    ("vhost", "front2", 5),
    ("vhost", "front3", 5),
];

/// Frames a second of each pair, and how many may be under way: few enough for every queue, so that none is dropped for
/// want of room, however long somebody has to wait for a processor.
const RATE: &str = "2k";
const WINDOW: &str = "64";

impl House {
    pub fn start(launcher: &Launcher) -> io::Result<Self> {
        let at = |name: &str| launcher.socket(name);
        let mut command = vec!["model".to_owned(), "82599".into()];
        for card in 0..4 {
            let wire = format!("vhost:{}", at(&format!("wire{card}")));
            command.extend(["--socket".into(), at(&format!("card{card}")), "--wire".into(), wire]);
        }
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let model = launcher.resident("model", &command)?;
        let ports = PORTS.map(|(kind, name, vlan)| format!("{kind}:{}@{vlan}", at(name)));
        let mut command = vec!["switch", "--flood", "0", "--hugepages", "off"];
        command.extend(ports.iter().map(String::as_str));
        let switch = launcher.resident("switch", &command)?;
        let netmapd = launcher.resident("netmapd", &["netmapd", "--socket", &at(NETMAP), "--hugepages", "off"])?;
        let generator = generator(launcher)?;
        let ends = [
            ("on the switch", ["pair0", "pair1"].map(|end| format!("virtio-user:{}", at(end)))),
            ("on cards", ["card0", "card1"].map(|card| format!("vfio-user:{}", at(card)))),
            ("on VALE", ["vale0:pair0".into(), "vale0:pair1".into()]),
        ];
        let mut pairs = Vec::new();
        for (name, [near, far]) in ends {
            let names: [&'static str; 2] = match name {
                "on the switch" => ["pktgen on the switch", "echo on the switch"],
                "on cards" => ["pktgen on cards", "echo on cards"],
                _ => ["pktgen on VALE", "echo on VALE"],
            };
            let echo = launcher.resident(names[1], &["echo", &far, "--hugepages", "off"])?;
            let [from, to] = stations(2);
            let options = ["--src-mac", &from, "--dst-mac", &to, "--rate", RATE, "--window", WINDOW];
            let command = [&["pktgen", &near, "--hugepages", "off"][..], &options].concat();
            let mut pair = Pair { name, generator: launcher.resident(names[0], &command)?, echo, before: 0 };
            pair.works()?;
            pairs.push(pair);
        }
        Ok(Self { pairs, servers: vec![generator, switch, model, netmapd] })
    }

    fn residents(&mut self) -> impl Iterator<Item = &mut Resident> {
        let pairs = self.pairs.iter_mut().flat_map(|pair| [&mut pair.generator, &mut pair.echo]);
        pairs.chain(&mut self.servers)
    }

    /// Takes what they have printed since; what the pairs have counted, and who has ended.
    pub fn look(&mut self) -> (Vec<Innocent>, Vec<String>) {
        self.residents().for_each(Resident::listen);
        let dead = self.residents().filter_map(|resident| {
            let status = resident.program.ended()?;
            Some(resident.report(&format!("has ended, with {status}")))
        });
        let dead = dead.collect();
        (self.pairs.iter().map(Pair::counts).collect(), dead)
    }

    fn holdings(&mut self) -> Vec<Holding> {
        self.residents().map(|resident| resident.holds()).collect()
    }

    /// What they hold when their peers are gone and nothing has changed for a second; half a minute at most. And how many
    /// buffers are free in the memory of pipes.
    pub fn settled(&mut self, launcher: &Launcher) -> (Vec<Holding>, Option<u64>) {
        let start = Instant::now();
        let (mut same, mut last) = (Instant::now(), Vec::new());
        while same.elapsed() < Duration::from_secs(1) && start.elapsed() < Duration::from_secs(30) {
            let now: Vec<_> = self.holdings().iter().map(|held| (held.descriptors, held.threads, held.maps)).collect();
            if now != last {
                (same, last) = (Instant::now(), now);
            }
            std::thread::sleep(Duration::from_millis(50));
            self.residents().for_each(Resident::listen);
        }
        (self.holdings(), free(launcher))
    }

    /// Compares what they hold with what they held before, for which they are given half a minute.
    pub fn grown(&mut self, launcher: &Launcher, before: (Vec<Holding>, Option<u64>), summary: &mut Summary) {
        let start = Instant::now();
        let (mut now, mut left) = self.settled(launcher);
        while (left != before.1 || now.iter().zip(&before.0).any(|(now, before)| now.exceeds(before)))
            && start.elapsed() < Duration::from_secs(30)
        {
            (now, left) = self.settled(launcher);
        }
        let compared = self.residents().zip(before.0.into_iter().zip(now));
        summary.growth =
            compared.map(|(resident, (before, after))| Growth { process: resident.name, before, after }).collect();
        match (before.1, left) {
            (Some(before), Some(after)) => summary.buffers.push(Buffers {
                whose: "pipes of netmapd",
                missing: before.saturating_sub(after),
                all: before,
            }),
            _ => summary.faults.push("'ringpass vale' has not said how many buffers are free".into()),
        }
    }

    /// Ends all, and notes what the pairs and the pools have counted.
    pub fn end(mut self, summary: &mut Summary) {
        let mut ends = Vec::new();
        // Generators first, that wait for what is under way.
        self.pairs.iter_mut().for_each(|pair| ends.push(pair.generator.end()));
        self.pairs.iter_mut().for_each(|pair| ends.push(pair.echo.end()));
        self.servers.iter_mut().for_each(|server| ends.push(server.end()));
        summary.innocents = self.pairs.iter().map(Pair::counts).collect();
        for resident in self.residents() {
            match resident.buffers() {
                Some((missing, all)) => summary.buffers.push(Buffers { whose: resident.name, missing, all }),
                None => ends.push(Err(format!("{} has not said whether buffers are missing", resident.name))),
            }
        }
        summary.faults.extend(ends.into_iter().filter_map(Result::err));
        summary.ended = true;
    }
}

/// Free buffers of the memory that pipes lie in.
fn free(launcher: &Launcher) -> Option<u64> {
    launcher.netmap_status()?["common"]["free"].as_u64()
}

/// A generator that makes the socket which its back-ends connect to.
fn generator(launcher: &Launcher) -> io::Result<Resident> {
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
    // It asks the first one what back-ends can do.
    let first = ["echo".to_owned(), format!("vhost:{socket},client"), "--hugepages".into(), "off".into()];
    let _first = launcher.peer(&first, NETMAP)?;
    generator.started()
}

/// Lets back-ends connect when they are in their sandbox, as another user if this is root.
fn for_everybody(socket: &Path) -> io::Result<()> {
    set_permissions(socket.parent().expect("the soak's folder"), Permissions::from_mode(0o755))?;
    set_permissions(socket, Permissions::from_mode(0o666))
}

impl Pair {
    /// Waits until frames come back, and for two seconds more.
    fn works(&mut self) -> io::Result<()> {
        let start = Instant::now();
        let mut since = None;
        loop {
            std::thread::sleep(Duration::from_millis(50));
            [&mut self.generator, &mut self.echo].into_iter().for_each(Resident::listen);
            let counts = self.counts();
            if counts.returned > 0 && *since.get_or_insert_with(Instant::now) + Duration::from_secs(2) < Instant::now()
            {
                self.before = counts.lost;
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(60) || self.generator.program.ended().is_some() {
                let said = [self.generator.said(), self.echo.said()].join(" | ");
                return Err(io::Error::other(format!("no frame comes back {}: {said}", self.name)));
            }
        }
    }

    fn counts(&self) -> Innocent {
        let of = |name: &str| self.generator.event[name].as_u64().unwrap_or(0);
        Innocent {
            name: self.name,
            sent: of("sent"),
            returned: of("returned"),
            lost: of("lost").saturating_sub(self.before),
            before: self.before,
            reordered: of("reordered"),
            duplicate: of("duplicate"),
            longest_ms: self.generator.event["round_trip_max_us"].as_f64().unwrap_or(0.0) / 1000.0,
        }
    }
}
