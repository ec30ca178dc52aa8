//! Evaluation of the frames that come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ringpass::Burst;
use serde_json::Value;

use super::frame::Endpoints;
use super::track::{Arrival, SequenceTracker};
use crate::stats::{Fields, fields};

/// Counters shared by all workers.
#[derive(Default)]
pub struct ReturnStats {
    sent: AtomicU64,
    /// Distinct frames that came back.
    unique: AtomicU64,
    /// Frames sent up to the last one that came back, summed over all flows.
    expected: AtomicU64,
    reordered: AtomicU64,
    duplicate: AtomicU64,
    round_trip_sum: AtomicU64,
    round_trip_max: AtomicU64,
    /// Since the last report.
    round_trip_max_recent: AtomicU64,
    /// Nanoseconds after the start at which the last worker stopped sending; 0 while none has.
    sent_until: AtomicU64,
    /// Calls in which the port had no room for a frame that was due.
    refused: AtomicU64,
    /// Set when nobody waits for frames any more: those that are missing then are lost.
    ended: AtomicBool,
}

impl ReturnStats {
    /// Returns for how long frames were sent; `None` while no worker has ended.
    pub fn sending_time(&self) -> Option<Duration> {
        Some(self.sent_until.load(Relaxed)).filter(|&nanos| nanos > 0).map(Duration::from_nanos)
    }

    /// Returns how many frames of a rate, in frames a second, were not sent, and why. Late frames of the last
    /// moment do not count.
    pub fn missed(&self, rate: f64) -> Option<Fields> {
        const LAST_MOMENT: f64 = 0.02;
        let due = rate * (self.sending_time()?.as_secs_f64() - LAST_MOMENT);
        let missed = (due as u64).saturating_sub(self.sent.load(Relaxed));
        let why = match self.refused.load(Relaxed) {
            0 => "this machine held the workers up",
            _ => "the port had no room",
        };
        (missed > 0).then(|| fields([("missed", missed.into()), ("missed_because", why.into())]))
    }

    /// Returns counters of sent, returned, lost, reordered and duplicate frames, and round trips: also the longest
    /// since the last report. Until a frame has come back, only `sent` and `returned` are known.
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
            ("round_trip_max_recent_us", micros(self.round_trip_max_recent.swap(0, Relaxed)).into()),
        ])
    }
}

/// One worker's evaluation of returned frames. All frames of a flow return to the same worker, because cards
/// select the Rx queue by flow.
pub struct ReturnTracker {
    ends: Endpoints,
    tracks: Vec<SequenceTracker>,
    epoch: Instant,
    returned: Arc<ReturnStats>,
}

impl ReturnTracker {
    /// Creates a tracker for frames of `flows` flows.
    pub fn new(ends: &Endpoints, flows: usize, epoch: Instant, returned: &Arc<ReturnStats>) -> Self {
        Self { ends: *ends, tracks: vec![SequenceTracker::default(); flows], epoch, returned: returned.clone() }
    }

    /// Counts frames as sent.
    pub fn sent(&mut self, frames: usize) {
        if frames > 0 {
            self.returned.sent.fetch_add(frames as u64, Relaxed);
        }
    }

    /// Counts a call in which the port had no room for all frames that were due.
    pub fn refused(&mut self) {
        self.returned.refused.fetch_add(1, Relaxed);
    }

    /// Notes that the worker sends no more.
    pub fn finish_sending(&mut self) {
        self.returned.sent_until.fetch_max(self.epoch.elapsed().as_nanos() as u64, Relaxed);
    }

    /// Evaluates frames that arrived. Returns how many of them had not arrived before.
    pub fn record_returned(&mut self, burst: &Burst) -> u64 {
        if burst.is_empty() {
            return 0;
        }
        let sent = self.returned.sent.load(Relaxed);
        let now = self.epoch.elapsed().as_nanos() as u64;
        let [mut unique, mut expected, mut reordered, mut duplicate, mut sum, mut max] = [0; 6];
        for packet in burst.iter() {
            let Some(mark) = self.ends.read(packet, self.tracks.len() as u32) else { continue };
            // A sequence number that was never sent, or a time in the future, means that the frame was
            // corrupted in transit.
            if mark.sequence >= sent || mark.time > now {
                continue;
            }
            let track = &mut self.tracks[mark.flow as usize];
            let before = track.next();
            match track.record(mark.sequence) {
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
        counters.round_trip_max_recent.fetch_max(max, Relaxed);
        unique
    }

    /// Returns whether frames have come back, but not the last ones.
    pub fn is_missing_tail(&self) -> bool {
        let (sent, expected) = (self.returned.sent.load(Relaxed), self.returned.expected.load(Relaxed));
        0 < expected && expected < sent
    }

    /// Ends the run for this worker: frames that are missing now count as lost.
    pub fn end(self) {
        self.returned.ended.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ringpass_memory::{L4, Mempool, MempoolConfig};
    use ringpass_port::MacAddress;

    use super::super::frame::{Addresses, Mark};
    use super::super::template::Template;
    use super::*;

    #[test]
    fn a_rate_that_was_missed_is_said() {
        let stats = ReturnStats::default();
        assert!(stats.missed(1000.0).is_none(), "while it sends");
        stats.sent_until.store(2_000_000_000, Relaxed);
        stats.sent.store(1990, Relaxed);
        assert!(stats.missed(1000.0).is_none(), "but for the last moment");
        stats.sent.store(1000, Relaxed);
        let missed = stats.missed(1000.0).unwrap();
        assert_eq!(
            (missed["missed"].as_u64(), missed["missed_because"].as_str()),
            (Some(980), Some("this machine held the workers up"))
        );
        stats.refused.store(1, Relaxed);
        assert_eq!(stats.missed(1000.0).unwrap()["missed_because"], "the port had no room");
    }

    #[test]
    fn what_is_missing_is_lost_once_nothing_more_is_waited_for() {
        let mac = MacAddress([2; 6]);
        let ip = Addresses::V4 { source: Ipv4Addr::LOCALHOST, destination: Ipv4Addr::LOCALHOST };
        let ends = Endpoints { mac: (mac, mac), vlan: None, ip, transport: L4::Udp, port: 9, run: 7 };
        let (template, pool) = (Template::new(&ends, 60), Mempool::new(&MempoolConfig::default()).unwrap());
        let returned: Arc<ReturnStats> = Arc::default();
        let mut tracker = ReturnTracker::new(&ends, 2, Instant::now(), &returned);
        tracker.sent(10);
        let mut burst = Burst::new(32);
        // Flow 0 has 0, 2, 1, 1 and flow 1 has 3; the last frame has a number that was never sent.
        for (flow, sequence) in [(0, 0), (0, 2), (0, 1), (0, 1), (1, 3), (1, 1 << 40)] {
            let mut packet = pool.alloc().unwrap();
            packet.set_len(60);
            template.write(&mut packet, &Mark { flow, sequence, time: 0 });
            burst.push(packet);
        }
        tracker.record_returned(&burst);
        let of = |name: &str| returned.report()[name].as_u64().unwrap();
        assert_eq!(["sent", "returned", "lost", "reordered", "duplicate"].map(of), [10, 4, 3, 1, 1]);
        tracker.end();
        assert_eq!(returned.report()["lost"], 6);
    }
}
