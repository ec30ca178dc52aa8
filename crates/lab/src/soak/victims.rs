//! Victims: processes that are killed, stopped and restarted at random moments. Each slot runs one at a time.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::process::{Launcher, NETMAP, SERVE_DESCRIPTORS, lock};
use crate::Program;

/// A pseudo-random number generator (xorshift64*).
struct Random(u64);

impl Random {
    /// Creates a generator. Mixes the seed, so that seeds that differ in one bit give different numbers from
    /// the start.
    fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = random.below(1));
        random
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % end
    }
}

/// Counters of the processes of one slot.
#[derive(Default)]
pub struct Counts {
    pub lane: &'static str,
    /// Processes started.
    pub starts: AtomicU64,
    /// Processes that ran until SIGKILL.
    pub kills: AtomicU64,
    /// Processes stopped by SIGSTOP, and continued or killed afterwards.
    pub stops: AtomicU64,
    /// Processes that ended in order after SIGINT.
    pub ends: AtomicU64,
    /// Processes that ended on their own because their peer was gone.
    pub gave_up: AtomicU64,
}

/// A slot that runs one victim after another.
pub struct VictimSlot<'a> {
    launcher: &'a Launcher,
    /// Commands of its processes; one is chosen at random each time.
    commands: Vec<Vec<String>>,
    /// Name of the socket where their netmap ports are served.
    netmap: &'static str,
    random: Random,
    counts: Arc<Counts>,
}

/// End of a process after its first run time.
#[derive(Clone, Copy)]
enum Fate {
    Kill,
    StopAndKill,
    StopContinueAndKill,
    End,
}

impl VictimSlot<'_> {
    /// Fates with cumulative shares out of 20.
    const FATES: [(u64, Fate); 4] =
        [(13, Fate::Kill), (15, Fate::StopAndKill), (18, Fate::StopContinueAndKill), (20, Fate::End)];
    /// Largest run times in milliseconds, chosen at random: one in four ends while the process starts.
    const LIVES: [u64; 4] = [60, 1200, 1200, 1200];
    /// Longest time for which a process is stopped, in milliseconds.
    const STOP: u64 = 700;
    /// Longest time for a process to end after SIGINT.
    const END: Duration = Duration::from_secs(60);

    /// Runs one process after another until `over` is set.
    fn run(&mut self, over: &AtomicBool, faults: &Mutex<Vec<String>>) {
        while !over.load(Relaxed) {
            // All random numbers of a run are drawn at its start, so that they depend on the seed alone.
            let command = self.commands[self.random.below(self.commands.len() as u64) as usize].clone();
            let fate = self.random.below(Self::FATES[3].0);
            let fate = Self::FATES.iter().find(|(below, _)| fate < *below).expect("below the last").1;
            let longest = Self::LIVES[self.random.below(4) as usize];
            let mut below = |most: u64| Duration::from_micros(self.random.below(most * 1000));
            let moments = [below(longest), below(Self::STOP), below(longest)];
            let before = Instant::now();
            if let Err(why) = self.life(&command, fate, moments, over) {
                let mut faults = lock(faults);
                if faults.len() < 100 {
                    faults.push(format!("{} ({}): {why}", self.counts.lane, command.join(" ")));
                }
            }
            // Processes that end at once because their peer is gone must not use up the CPU.
            std::thread::sleep(Duration::from_millis(20).saturating_sub(before.elapsed()));
        }
    }

    fn life(&self, command: &[String], fate: Fate, moments: [Duration; 3], over: &AtomicBool) -> Result<(), String> {
        let mut program = self.launcher.peer(command, self.netmap).map_err(|error| error.to_string())?;
        self.counts.starts.fetch_add(1, Relaxed);
        if !lives(&mut program, moments[0], over) {
            match fate {
                Fate::Kill => {}
                Fate::StopAndKill | Fate::StopContinueAndKill => {
                    program.signal("STOP");
                    self.counts.stops.fetch_add(1, Relaxed);
                    // A process that was about to end when it was stopped may be gone by now.
                    let gone = lives(&mut program, moments[1], over);
                    if !gone && matches!(fate, Fate::StopContinueAndKill) {
                        program.signal("CONT");
                        lives(&mut program, moments[2], over);
                    }
                }
                Fate::End => {
                    program.signal("INT");
                    let asked = Instant::now();
                    let waits = AtomicBool::new(false);
                    while !lives(&mut program, Duration::from_millis(50), &waits) {
                        if asked.elapsed() > Self::END {
                            program.kill();
                            return Err(format!("has not ended within {:?} when asked to", Self::END));
                        }
                    }
                    // SIGINT kills a process that has not installed its signal handlers yet.
                    let status = program.kill();
                    if status.signal() == Some(2) || matches!(status.code(), Some(0 | 1 | 130)) {
                        self.counts.ends.fetch_add(1, Relaxed);
                        return Ok(());
                    }
                    return Err(crash(&program, status));
                }
            }
        }
        let status = program.kill();
        if status.signal() == Some(9) {
            self.counts.kills.fetch_add(1, Relaxed);
            return Ok(());
        }
        // The process had ended before SIGKILL.
        self.counts.gave_up.fetch_add(1, Relaxed);
        if matches!(status.code(), Some(0 | 1)) { Ok(()) } else { Err(crash(&program, status)) }
    }
}

fn crash(program: &Program, status: ExitStatus) -> String {
    std::thread::sleep(Duration::from_millis(100));
    let said = program.said();
    format!("ended with {status}: {}", said[said.len().saturating_sub(8)..].join(" | "))
}

/// Lets a process run for `time`, or until `over` is set. Returns whether it has ended on its own.
fn lives(program: &mut Program, time: Duration, over: &AtomicBool) -> bool {
    let start = Instant::now();
    loop {
        if program.ended().is_some() {
            return true;
        }
        let left = time.saturating_sub(start.elapsed());
        if left.is_zero() || over.load(Relaxed) {
            return false;
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}

/// Runs all slots, each on a thread of its own, while `meanwhile` runs. No victim is left when this returns.
pub fn live(victims: &mut [VictimSlot<'_>], faults: &Mutex<Vec<String>>, meanwhile: impl FnOnce(&[Arc<Counts>])) {
    /// Tells the threads to end when dropped, even if this thread panics.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let counts: Vec<_> = victims.iter().map(|victim| victim.counts.clone()).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for victim in victims {
            scope.spawn(|| victim.run(&over, faults));
        }
        meanwhile(&counts);
    });
}

/// Kinds of rings, as options of a `virtio-user` address.
const RINGS: [&str; 4] = ["", ",features=-in_order", ",features=-packed", ",features=-packed-in_order-event_idx"];

/// Creates all slots, grouped by name. Most processes of a group are each other's peers.
pub fn all(launcher: &Launcher, seed: u64) -> Vec<VictimSlot<'_>> {
    let at = |name: &str| launcher.socket(name);
    let mut victims: Vec<VictimSlot> = Vec::new();
    let mut add = |lane: &'static str, netmap: &'static str, commands: Vec<Vec<String>>| {
        let random = Random::new(seed ^ (victims.len() as u64 + 1) << 32);
        victims.push(VictimSlot {
            launcher,
            commands,
            netmap,
            random,
            counts: Arc::new(Counts { lane, ..Counts::default() }),
        });
    };
    for pair in 0..2 {
        // Front-ends of the long-lived switch, two in each VLAN.
        let [echo, generator] = [0, 1].map(|end| at(&format!("front{}", 2 * pair + end)));
        let lane = ["vhost front-ends 1", "vhost front-ends 2"][pair];
        add(lane, NETMAP, RINGS.map(|rings| echoes(&format!("virtio-user:{echo}{rings}"))).into());
        add(
            lane,
            NETMAP,
            RINGS.iter().flat_map(|rings| generates(&format!("virtio-user:{generator}{rings}"), 1)).collect(),
        );
    }
    // Back-ends of the long-lived generator.
    add("vhost back-ends", NETMAP, vec![echoes(&format!("vhost:{},client", at("back")))]);
    let both = at("both");
    add("vhost both ends", NETMAP, vec![echoes(&format!("vhost:{both}"))]);
    add(
        "vhost both ends",
        NETMAP,
        RINGS.iter().flat_map(|rings| generates(&format!("virtio-user:{both}{rings}"), 1)).collect(),
    );
    // Drivers of cards of the long-lived card server.
    add("vfio-user drivers", NETMAP, vec![echoes(&format!("vfio-user:{}", at("card2")))]);
    add("vfio-user drivers", NETMAP, generates(&format!("vfio-user:{}", at("card3")), 1));
    let card = at("card");
    let serve = |kind: &str| words(&["model", kind, "--socket", &card, "--wire", "null"]);
    add("vfio-user both ends", NETMAP, vec![serve("82599"), serve("virtio-net")]);
    add("vfio-user both ends", NETMAP, generates(&format!("vfio-user:{card}"), 1));
    // Ports of the VALE switch that a control pair uses.
    add("VALE programs", NETMAP, vec![echoes("vale0:peer1")]);
    add("VALE programs", NETMAP, generates("vale0:peer2", 3));
    add("netmap pipes", NETMAP, vec![echoes("netmap:soak{1")]);
    add("netmap pipes", NETMAP, generates("netmap:soak}1", 1));
    add("servers of descriptors", NETMAP, vec![words(&[SERVE_DESCRIPTORS])]);
    let socket = at("netmap-killed");
    add("netmapd itself", "netmap-killed", vec![words(&["netmapd", "--socket", &socket])]);
    add("netmapd itself", "netmap-killed", vec![echoes("vale0:a"), echoes("netmap:pipe{1")]);
    add("netmapd itself", "netmap-killed", [generates("vale0:b", 1), generates("netmap:pipe}1", 1)].concat());
    victims
}

fn words(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|&argument| argument.to_owned()).collect()
}

fn echoes(port: &str) -> Vec<String> {
    words(&["echo", port, "--hugepages", "off"])
}

/// Returns commands of slow and fast generators. On a switch, each `number` has station addresses of its own.
fn generates(port: &str, number: u8) -> Vec<Vec<String>> {
    let [from, to] = stations(number);
    let rates = ["500", "2k", "20k"];
    let at = |rate: &str| {
        let stations = ["--src-mac", &from, "--dst-mac", &to];
        let rest = ["--rate", rate, "--window", "128", "--hugepages", "off"];
        words(&[&["pktgen", port][..], &stations, &rest].concat())
    };
    rates.map(at).into()
}

/// Returns the MAC addresses of a pair: the generator's and the echo's.
pub fn stations(number: u8) -> [String; 2] {
    [1, 2].map(|end| format!("02:00:00:00:{number:02x}:{end:02x}"))
}
