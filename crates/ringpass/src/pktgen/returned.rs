//! What has come back of what was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use ringpass_memory::Burst;
use serde_json::Value;

use super::frame::Endpoints;
use super::track::{Arrival, Track};
use crate::stats::{Fields, fields};

/// Counters of all workers.
#[derive(Default)]
pub struct Returned {
    sent: AtomicU64,
    /// Frames that came back, each once.
    unique: AtomicU64,
    /// Frames that must have been sent before the last of each flow that came back.
    expected: AtomicU64,
    reordered: AtomicU64,
    duplicate: AtomicU64,
    round_trip_sum: AtomicU64,
    round_trip_max: AtomicU64,
    /// No more is waited for: what has not come back is lost.
    ended: AtomicBool,
}

impl Returned {
    /// Sent and lost frames and the like. Without any that came back nothing is known of the rest.
    pub fn report(&self) -> Fields {
        let [sent, unique, expected] = [&self.sent, &self.unique, &self.expected].map(|counter| counter.load(Relaxed));
        if unique == 0 {
            return fields([("sent", sent.into()), ("returned", Value::from(0))]);
        }
        let lost = if self.ended.load(Relaxed) { sent } else { expected }.saturating_sub(unique);
        let micros = |nanos: u64| (nanos as f64 / 100.0).round() / 10.0;
        fields([
            ("sent", sent.into()),
            ("returned", unique.into()),
            ("lost", lost.into()),
            ("reordered", self.reordered.load(Relaxed).into()),
            ("duplicate", self.duplicate.load(Relaxed).into()),
            ("round_trip_avg_us", micros(self.round_trip_sum.load(Relaxed) / unique).into()),
            ("round_trip_max_us", micros(self.round_trip_max.load(Relaxed)).into()),
        ])
    }
}

/// One worker's look at what comes back. A flow comes back to one worker: cards spread frames by flow.
pub struct Watch {
    ends: Endpoints,
    tracks: Vec<Track>,
    epoch: Instant,
    returned: Arc<Returned>,
}

impl Watch {
    /// Looks for frames of so many flows.
    pub fn new(ends: &Endpoints, flows: usize, epoch: Instant, returned: &Arc<Returned>) -> Self {
        Self { ends: *ends, tracks: vec![Track::default(); flows], epoch, returned: returned.clone() }
    }

    /// Counts frames as sent.
    pub fn sent(&mut self, frames: usize) {
        if frames > 0 {
            self.returned.sent.fetch_add(frames as u64, Relaxed);
        }
    }

    /// Looks at frames that arrived. Returns how many of them had not arrived before.
    pub fn arrived(&mut self, burst: &Burst) -> u64 {
        if burst.is_empty() {
            return 0;
        }
        let sent = self.returned.sent.load(Relaxed);
        let now = self.epoch.elapsed().as_nanos() as u64;
        let [mut unique, mut expected, mut reordered, mut duplicate, mut sum, mut max] = [0; 6];
        for packet in burst.iter() {
            let Some(mark) = self.ends.read(packet, self.tracks.len() as u32) else { continue };
            // A number that was never sent is a frame spoilt under way; so is a time in the future.
            if mark.sequence >= sent || mark.time > now {
                continue;
            }
            let track = &mut self.tracks[mark.flow as usize];
            let before = track.next();
            match track.arrive(mark.sequence) {
                Arrival::Duplicate => {
                    duplicate += 1;
                    continue;
                }
                Arrival::Reordered => reordered += 1,
                Arrival::InOrder => expected += track.next() - before,
            }
            unique += 1;
            sum += now - mark.time;
            max = max.max(now - mark.time);
        }
        let counters = &*self.returned;
        for (counter, n) in [
            (&counters.unique, unique),
            (&counters.expected, expected),
            (&counters.reordered, reordered),
            (&counters.duplicate, duplicate),
            (&counters.round_trip_sum, sum),
        ] {
            if n > 0 {
                counter.fetch_add(n, Relaxed);
            }
        }
        counters.round_trip_max.fetch_max(max, Relaxed);
        unique
    }

    /// Whether frames have come back, and the last ones have not.
    pub fn misses_the_last(&self) -> bool {
        let (sent, expected) = (self.returned.sent.load(Relaxed), self.returned.expected.load(Relaxed));
        0 < expected && expected < sent
    }

    /// Nothing more is waited for.
    pub fn end(self) {
        self.returned.ended.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ringpass_memory::{Mempool, MempoolConfig};
    use ringpass_port::MacAddress;

    use super::super::frame::{Mark, Template};
    use super::*;

    #[test]
    fn what_is_missing_is_lost_once_nothing_more_is_waited_for() {
        let mac = MacAddress([2; 6]);
        let ends = Endpoints { mac: (mac, mac), ip: (Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST), port: 9, run: 7 };
        let (template, pool) = (Template::new(&ends, 60), Mempool::new(&MempoolConfig::default()).unwrap());
        let returned: Arc<Returned> = Arc::default();
        let mut watch = Watch::new(&ends, 2, Instant::now(), &returned);
        watch.sent(10);
        let mut burst = Burst::new(32);
        // Flow 0: 0, 2, 1, 1. Flow 1: 3. One frame of a number that was never sent.
        for (flow, sequence) in [(0, 0), (0, 2), (0, 1), (0, 1), (1, 3), (1, 1 << 40)] {
            let mut packet = pool.alloc().unwrap();
            packet.set_len(60);
            template.write(&mut packet, &Mark { flow, sequence, time: 0 });
            burst.push(packet);
        }
        watch.arrived(&burst);
        let of = |name: &str| returned.report()[name].as_u64().unwrap();
        assert_eq!(["sent", "returned", "lost", "reordered", "duplicate"].map(of), [10, 4, 3, 1, 1]);
        watch.end();
        assert_eq!(returned.report()["lost"], 6);
    }
}
