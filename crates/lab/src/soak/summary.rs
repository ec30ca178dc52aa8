//! The results of a soak, while it runs and at its end.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::{Value, json};

use super::house::House;
pub use super::process::Holding;
use super::seats::Counts;

/// Counters of the processes of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lane {
    /// Its name.
    pub name: &'static str,
    /// Processes that were started.
    pub starts: u64,
    /// Those that ran until SIGKILL.
    pub kills: u64,
    /// Those that were stopped by SIGSTOP, and continued or killed afterwards.
    pub stops: u64,
    /// Those that ended in order, when asked to.
    pub ends: u64,
    /// Those that ended by themselves, as their peer was gone.
    pub gave_up: u64,
}

/// Frame counters of an innocent pair, which nobody kills or stops.
#[derive(Clone, Debug, Default)]
pub struct Innocent {
    /// Where the pair is.
    pub name: &'static str,
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that came back.
    pub returned: u64,
    /// Frames that did not, since both were known to work.
    pub lost: u64,
    /// Frames that were lost before.
    pub before: u64,
    /// Frames that came back after later ones.
    pub reordered: u64,
    /// Frames that came back twice.
    pub duplicate: u64,
    /// The longest round trip in milliseconds.
    pub longest_ms: f64,
}

/// The balance of a pool of packet buffers.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// The process that owns the pool.
    pub whose: &'static str,
    /// Buffers that did not come back.
    pub missing: u64,
    /// Buffers that there are.
    pub all: u64,
}

/// Resources of a long-lived process after the first peers, and at the end.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Which process.
    pub process: &'static str,
    /// After the first peers.
    pub before: Holding,
    /// After the last ones.
    pub after: Holding,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Where delays and choices came from.
    pub seed: u64,
    /// How long peers were killed.
    pub elapsed: Duration,
    /// By lane.
    pub lanes: Vec<Lane>,
    /// Pairs that nobody touched.
    pub innocents: Vec<Innocent>,
    /// At the end: packet buffers by process.
    pub buffers: Vec<Buffers>,
    /// At the end: what long-lived processes held.
    pub growth: Vec<Growth>,
    /// Processes that crashed or hung, and others that ended though they should not.
    pub faults: Vec<String>,
    /// Returns whether everything was measured.
    pub ended: bool,
}

impl Summary {
    /// Takes what is known by now.
    pub(super) fn look(&mut self, elapsed: Duration, counts: &[Arc<Counts>], house: &mut House) {
        self.elapsed = elapsed;
        self.lanes.clear();
        for counts in counts {
            if self.lanes.last().is_none_or(|lane| lane.name != counts.lane) {
                self.lanes.push(Lane { name: counts.lane, ..Lane::default() });
            }
            let lane = self.lanes.last_mut().expect("pushed just now");
            for (sum, count) in [
                (&mut lane.starts, &counts.starts),
                (&mut lane.kills, &counts.kills),
                (&mut lane.stops, &counts.stops),
                (&mut lane.ends, &counts.ends),
                (&mut lane.gave_up, &counts.gave_up),
            ] {
                *sum += count.load(Relaxed);
            }
        }
        let (innocents, dead) = house.look();
        self.innocents = innocents;
        for dead in dead {
            if !self.faults.contains(&dead) {
                self.faults.push(dead);
            }
        }
    }

    /// All lanes together.
    pub fn total(&self) -> Lane {
        self.lanes.iter().fold(Lane { name: "all", ..Lane::default() }, |sum, lane| Lane {
            name: sum.name,
            starts: sum.starts + lane.starts,
            kills: sum.kills + lane.kills,
            stops: sum.stops + lane.stops,
            ends: sum.ends + lane.ends,
            gave_up: sum.gave_up + lane.gave_up,
        })
    }

    /// Frames that all innocent pairs lost.
    pub fn lost(&self) -> u64 {
        self.innocents.iter().map(|pair| pair.lost).sum()
    }

    /// Packet buffers that are missing in all pools.
    pub fn missing(&self) -> u64 {
        self.buffers.iter().map(|buffers| buffers.missing).sum()
    }

    /// Returns the failures in words; empty if the soak passed.
    pub fn verdict(&self) -> Vec<String> {
        let mut wrong = self.faults.clone();
        for pair in &self.innocents {
            let Innocent { name, sent, returned, lost, duplicate, reordered, .. } = pair;
            if *lost > 0 || *duplicate > 0 || *reordered > 0 || *returned == 0 {
                wrong.push(format!(
                    "the pair {name}: {sent} frames sent, {returned} back, {lost} lost, {duplicate} twice, {reordered} late"
                ));
            }
        }
        for Buffers { whose, missing, all } in self.buffers.iter().filter(|buffers| buffers.missing > 0) {
            wrong.push(format!("{whose}: {missing} of {all} packet buffers are missing"));
        }
        for Growth { process, before, after } in &self.growth {
            if after.exceeds(before) {
                wrong.push(format!("{process} has grown: {before:?} before, {after:?} after"));
            }
        }
        if !self.ended {
            wrong.push("the soak has not come to its end".into());
        }
        wrong
    }

    /// One line for the terminal.
    pub fn progress(&self) -> String {
        let Lane { kills, stops, ends, .. } = self.total();
        let returned: u64 = self.innocents.iter().map(|pair| pair.returned).sum();
        let (seconds, lost, faults) = (self.elapsed.as_secs(), self.lost(), self.faults.len());
        format!(
            "{seconds:>5} s  {kills} kills, {stops} stops, {ends} ends in order; innocent: {returned} frames, {lost} lost; \
             {faults} faults"
        )
    }

    /// The summary as one object.
    pub fn json(&self) -> Value {
        let lane = |lane: &Lane| {
            let Lane { name, starts, kills, stops, ends, gave_up } = lane;
            json!({"name": name, "starts": starts, "kills": kills, "stops": stops, "ends": ends, "gave_up": gave_up})
        };
        let pair = |pair: &Innocent| {
            let Innocent { name, sent, returned, lost, before, reordered, duplicate, longest_ms } = pair;
            json!({"name": name, "sent": sent, "returned": returned, "lost": lost, "lost_before": before,
                   "reordered": reordered, "duplicate": duplicate, "longest_ms": longest_ms})
        };
        let held = |held: &Holding| {
            let Holding { descriptors, threads, maps, private_kib, resident_kib } = held;
            json!({"descriptors": descriptors, "threads": threads, "maps": maps, "private_kib": private_kib,
                   "resident_kib": resident_kib})
        };
        let growth = |growth: &Growth| json!({"process": growth.process, "before": held(&growth.before), "after": held(&growth.after)});
        let buffers =
            |Buffers { whose, missing, all }: &Buffers| json!({"process": whose, "missing": missing, "all": all});
        json!({
            "event": if self.ended { "summary" } else { "progress" },
            "seed": self.seed,
            "seconds": self.elapsed.as_secs_f64(),
            "total": lane(&self.total()),
            "lanes": self.lanes.iter().map(lane).collect::<Vec<_>>(),
            "innocents": self.innocents.iter().map(pair).collect::<Vec<_>>(),
            "lost": self.lost(),
            "buffers": self.buffers.iter().map(buffers).collect::<Vec<_>>(),
            "buffers_missing": self.missing(),
            "processes": self.growth.iter().map(growth).collect::<Vec<_>>(),
            "wrong": if self.ended { self.verdict() } else { self.faults.clone() },
        })
    }
}

/// Tables, in Markdown.
impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (seconds, total) = (self.elapsed.as_secs_f64(), self.total());
        let rate = total.kills as f64 / seconds.max(1e-9);
        writeln!(f, "{seconds:.0} s with seed {}: {} kills, {rate:.1} a second\n", self.seed, total.kills)?;
        writeln!(
            f,
            "| lane | started | killed | stopped | ended in order | peer gone |\n|---|---:|---:|---:|---:|---:|"
        )?;
        for Lane { name, starts, kills, stops, ends, gave_up } in self.lanes.iter().chain([&total]) {
            writeln!(f, "| {name} | {starts} | {kills} | {stops} | {ends} | {gave_up} |")?;
        }
        writeln!(
            f,
            "\n| innocent pair | sent | back | lost | twice | late | lost at its start | longest round trip |"
        )?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|---:|---:|")?;
        for Innocent { name, sent, returned, lost, before, reordered, duplicate, longest_ms } in &self.innocents {
            let counts = format!("{sent} | {returned} | {lost} | {duplicate} | {reordered} | {before}");
            writeln!(f, "| {name} | {counts} | {longest_ms:.1} ms |")?;
        }
        writeln!(f, "\n| packet buffers | missing | of |\n|---|---:|---:|")?;
        for Buffers { whose, missing, all } in &self.buffers {
            writeln!(f, "| {whose} | {missing} | {all} |")?;
        }
        writeln!(f, "\n| process, before → after | descriptors | threads | mappings | private KiB | resident KiB |")?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|")?;
        for Growth { process, before, after } in &self.growth {
            let columns: [fn(&Holding) -> u64; 5] = [
                |held| held.descriptors,
                |held| held.threads,
                |held| held.maps,
                |held| held.private_kib,
                |held| held.resident_kib,
            ];
            let columns = columns.map(|of| format!("{} → {}", of(before), of(after)));
            writeln!(f, "| {process} | {} |", columns.join(" | "))?;
        }
        writeln!(f)?;
        match &self.verdict()[..] {
            [] => write!(f, "passed: nothing lost, nothing missing, nothing grown, nobody dead"),
            wrong => write!(f, "FAILED:\n  {}", wrong.join("\n  ")),
        }
    }
}
