//! The results of a soak, while it runs and at its end.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::{Value, json};

pub use super::process::ResourceUsage;
use super::victims::Counts;

/// Counters of the processes of one victim group.
#[derive(Clone, Copy, Debug, Default)]
pub struct VictimGroup {
    /// Name of the group.
    pub name: &'static str,
    /// Processes started.
    pub starts: u64,
    /// Processes that ran until SIGKILL.
    pub kills: u64,
    /// Processes stopped by SIGSTOP, and continued or killed afterwards.
    pub stops: u64,
    /// Processes that ended in order after SIGINT.
    pub ends: u64,
    /// Processes that ended on their own because their peer was gone.
    pub gave_up: u64,
}

/// Frame counters of a control pair, which is never killed or stopped.
#[derive(Clone, Debug, Default)]
pub struct ControlPair {
    /// Location of the pair, such as "on the switch".
    pub name: &'static str,
    /// Frames sent.
    pub sent: u64,
    /// Frames returned.
    pub returned: u64,
    /// Frames lost since the pair was known to work.
    pub lost: u64,
    /// Frames lost before that.
    pub before: u64,
    /// Frames that were returned after later ones.
    pub reordered: u64,
    /// Frames that were returned twice.
    pub duplicate: u64,
    /// Longest round trip in milliseconds.
    pub longest_ms: f64,
    /// Time in milliseconds by which a round trip was longer than any of the pair that is alone, at about that moment.
    pub stall_ms: f64,
}

/// Balance of a pool of packet buffers.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Name of the process that owns the pool.
    pub whose: &'static str,
    /// Buffers that were not returned.
    pub missing: u64,
    /// Buffers in the pool.
    pub all: u64,
}

/// Resource usage of a long-lived process after the warm-up and at the end.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Name of the process.
    pub process: &'static str,
    /// Usage after the warm-up.
    pub before: ResourceUsage,
    /// Usage at the end.
    pub after: ResourceUsage,
}

/// Results of a soak.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seed of all delays and choices.
    pub seed: u64,
    /// Makes stalls failures.
    pub judge_stalls: bool,
    /// Time during which peers were killed.
    pub elapsed: Duration,
    /// Counters by victim group.
    pub lanes: Vec<VictimGroup>,
    /// Counters of the control pairs.
    pub innocents: Vec<ControlPair>,
    /// Packet buffers by process; filled in at the end.
    pub buffers: Vec<Buffers>,
    /// Resource usage of the long-lived processes; filled in at the end.
    pub growth: Vec<Growth>,
    /// Crashes, hangs and unexpected ends of processes.
    pub faults: Vec<String>,
    /// Whether the soak has come to its end and everything was measured.
    pub ended: bool,
}

impl ControlPair {
    /// Longest stall, in milliseconds, that peers which come and go may cause.
    pub const MAX_STALL_MS: f64 = 100.0;
}

impl Summary {
    /// Updates the results with the counters of now, those of the control pairs, and the processes that were found dead.
    pub(super) fn look(
        &mut self,
        elapsed: Duration,
        counts: &[Arc<Counts>],
        innocents: Vec<ControlPair>,
        dead: Vec<String>,
    ) {
        self.elapsed = elapsed;
        self.lanes.clear();
        for counts in counts {
            if self.lanes.last().is_none_or(|lane| lane.name != counts.lane) {
                self.lanes.push(VictimGroup { name: counts.lane, ..VictimGroup::default() });
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
        self.innocents = innocents;
        for dead in dead {
            if !self.faults.contains(&dead) {
                self.faults.push(dead);
            }
        }
    }

    /// Returns the sum over all victim groups.
    pub fn total(&self) -> VictimGroup {
        self.lanes.iter().fold(VictimGroup { name: "all", ..VictimGroup::default() }, |sum, lane| VictimGroup {
            name: sum.name,
            starts: sum.starts + lane.starts,
            kills: sum.kills + lane.kills,
            stops: sum.stops + lane.stops,
            ends: sum.ends + lane.ends,
            gave_up: sum.gave_up + lane.gave_up,
        })
    }

    /// Returns the number of frames that the control pairs lost.
    pub fn lost(&self) -> u64 {
        self.innocents.iter().map(|pair| pair.lost).sum()
    }

    /// Returns the number of packet buffers that are missing in all pools.
    pub fn missing(&self) -> u64 {
        self.buffers.iter().map(|buffers| buffers.missing).sum()
    }

    /// Returns a text for each failure; empty if the soak passed.
    pub fn failures(&self) -> Vec<String> {
        let mut wrong = self.faults.clone();
        for pair in &self.innocents {
            let ControlPair { name, sent, returned, lost, duplicate, reordered, stall_ms, .. } = pair;
            if self.judge_stalls && *stall_ms > ControlPair::MAX_STALL_MS {
                wrong.push(format!("the pair {name} has waited {stall_ms:.0} ms longer than the one alone"));
            }
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

    /// Returns a progress line for the terminal.
    pub fn progress(&self) -> String {
        let VictimGroup { kills, stops, ends, .. } = self.total();
        let returned: u64 = self.innocents.iter().map(|pair| pair.returned).sum();
        let seconds = self.elapsed.as_secs();
        let lost = self.lost();
        let faults = self.faults.len();
        format!(
            "{seconds:>5} s  {kills} kills, {stops} stops, {ends} ends in order; innocent: {returned} frames, {lost} lost; \
             {faults} faults"
        )
    }

    /// Returns the summary as a JSON object.
    pub fn json(&self) -> Value {
        let lane = |lane: &VictimGroup| {
            let VictimGroup { name, starts, kills, stops, ends, gave_up } = lane;
            json!({"name": name, "starts": starts, "kills": kills, "stops": stops, "ends": ends, "gave_up": gave_up})
        };
        let pair = |pair: &ControlPair| {
            let ControlPair { name, sent, returned, lost, before, reordered, duplicate, longest_ms, stall_ms } = pair;
            json!({"name": name, "sent": sent, "returned": returned, "lost": lost, "lost_before": before,
                   "reordered": reordered, "duplicate": duplicate, "longest_ms": longest_ms, "stall_ms": stall_ms})
        };
        let held = |held: &ResourceUsage| {
            let ResourceUsage { descriptors, threads, maps, private_kib, resident_kib } = held;
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
            "wrong": if self.ended { self.failures() } else { self.faults.clone() },
        })
    }
}

/// Prints the results as Markdown tables.
impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (seconds, total) = (self.elapsed.as_secs_f64(), self.total());
        let rate = total.kills as f64 / seconds.max(1e-9);
        writeln!(f, "{seconds:.0} s with seed {}: {} kills, {rate:.1} a second\n", self.seed, total.kills)?;
        writeln!(
            f,
            "| lane | started | killed | stopped | ended in order | peer gone |\n|---|---:|---:|---:|---:|---:|"
        )?;
        for VictimGroup { name, starts, kills, stops, ends, gave_up } in self.lanes.iter().chain([&total]) {
            writeln!(f, "| {name} | {starts} | {kills} | {stops} | {ends} | {gave_up} |")?;
        }
        writeln!(
            f,
            "\n| innocent pair | sent | back | lost | twice | late | lost at its start | longest round trip | more than alone |"
        )?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|---:|---:|---:|")?;
        for pair in &self.innocents {
            let ControlPair { name, sent, returned, lost, before, reordered, duplicate, longest_ms, stall_ms } = pair;
            let counts = format!("{sent} | {returned} | {lost} | {duplicate} | {reordered} | {before}");
            writeln!(f, "| {name} | {counts} | {longest_ms:.1} ms | {stall_ms:.1} ms |")?;
        }
        writeln!(f, "\n| packet buffers | missing | of |\n|---|---:|---:|")?;
        for Buffers { whose, missing, all } in &self.buffers {
            writeln!(f, "| {whose} | {missing} | {all} |")?;
        }
        writeln!(f, "\n| process, before → after | descriptors | threads | mappings | private KiB | resident KiB |")?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|")?;
        for Growth { process, before, after } in &self.growth {
            let columns: [fn(&ResourceUsage) -> u64; 5] = [
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
        match &self.failures()[..] {
            [] => write!(f, "passed: nothing lost, nothing missing, nothing grown, nobody dead"),
            wrong => write!(f, "FAILED:\n  {}", wrong.join("\n  ")),
        }
    }
}
