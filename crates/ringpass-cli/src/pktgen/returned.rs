//! Evaluation of the frames that come back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringpass::Burst;

use super::frame::Endpoints;
use super::track::{Arrival, SequenceTracker};
use crate::stats::{Fields, fields};

/// Counters shared by all workers.
pub struct ReturnStats {
    /// Start of the times in frames.
    epoch: Instant,
    /// Frames that may have been sent; counted before they are, where another worker may receive them at once.
    announced: AtomicU64,
    sent: AtomicU64,
    /// Distinct frames that came back.
    unique: AtomicU64,
    /// Frames sent up to the last one that came back, summed over all flows.
    expected: AtomicU64,
    reordered: AtomicU64,
    duplicate: AtomicU64,
    round_trip_sum: AtomicU64,
    /// Sum of the differences between the round trips of one frame and the next.
    round_trip_change_sum: AtomicU64,
    round_trip_max: AtomicU64,
    /// Since the last report.
    round_trip_max_recent: AtomicU64,
    /// Round trips in nanoseconds, of each worker.
    round_trips: Vec<Mutex<Histogram<u64>>>,
    /// Nanoseconds after the start at which the last worker stopped sending; 0 while none has.
    sent_until: AtomicU64,
    /// Calls in which the port had no room for a frame that was due.
    refused: AtomicU64,
    /// Whether frames of a flow may return to several workers, because fields vary by which cards select the Rx
    /// queue. Frames that are missing are then known at the end only.
    spread: bool,
    /// Set when nobody waits for frames any more: those that are missing then are lost.
    ended: AtomicBool,
}

/// Creates a histogram of round trips up to 100 s, with two digits; longer ones are recorded as 100 s.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 2).expect("bounds in order")
}

fn lock(histogram: &Mutex<Histogram<u64>>) -> MutexGuard<'_, Histogram<u64>> {
    histogram.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReturnStats {
    /// Creates the counters of a number of workers. Times in frames are since `epoch`, and fields of frames of a flow
    /// may vary.
    pub fn new(epoch: Instant, workers: usize, vary: bool) -> Self {
        Self {
            epoch,
            announced: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            unique: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            reordered: AtomicU64::new(0),
            duplicate: AtomicU64::new(0),
            round_trip_sum: AtomicU64::new(0),
            round_trip_change_sum: AtomicU64::new(0),
            round_trip_max: AtomicU64::new(0),
            round_trip_max_recent: AtomicU64::new(0),
            round_trips: (0..workers).map(|_| Mutex::new(histogram())).collect(),
            sent_until: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            spread: vary && workers > 1,
            ended: AtomicBool::new(false),
        }
    }

    /// Returns whether all frames that were sent have come back.
    pub fn is_complete(&self) -> bool {
        self.unique.load(Relaxed) >= self.sent.load(Relaxed)
    }

    /// Ends the wait for frames: those that are missing now count as lost.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// Returns the numbers up to now, and begins anew with those since the last report.
    pub fn numbers(&self) -> Numbers {
        let [sent, returned, expected] =
            [&self.sent, &self.unique, &self.expected].map(|counter| counter.load(Relaxed));
        let ended = self.ended.load(Relaxed);
        let mut numbers = Numbers {
            sent,
            returned,
            lost: (ended || !self.spread).then(|| if ended { sent } else { expected }.saturating_sub(returned)),
            reordered: self.reordered.load(Relaxed),
            duplicate: self.duplicate.load(Relaxed),
            round_trip_sum: self.round_trip_sum.load(Relaxed),
            round_trip_change_sum: self.round_trip_change_sum.load(Relaxed),
            round_trip_max: self.round_trip_max.load(Relaxed),
            round_trip_max_recent: self.round_trip_max_recent.swap(0, Relaxed),
            round_trips: ended.then(histogram),
        };
        if let Some(all) = &mut numbers.round_trips {
            self.round_trips.iter().for_each(|one| all.add(&*lock(one)).expect("the same bounds"));
        }
        numbers
    }
}

/// Returns how many frames of a rate, in frames a second, were not sent in all streams, and why. Late frames of the last
/// moment do not count.
pub fn missed(streams: &[Arc<ReturnStats>], rate: f64) -> Option<Fields> {
    const LAST_MOMENT: f64 = 0.02;
    let due = rate * (sending_time(streams)?.as_secs_f64() - LAST_MOMENT);
    let sum = |counter: fn(&ReturnStats) -> &AtomicU64| -> u64 {
        streams.iter().map(|stream| counter(stream).load(Relaxed)).sum()
    };
    let missed = (due as u64).saturating_sub(sum(|stream| &stream.sent));
    let why = match sum(|stream| &stream.refused) {
        0 => "this machine held the workers up",
        _ => "the port had no room",
    };
    (missed > 0).then(|| fields([("missed", missed.into()), ("missed_because", why.into())]))
}

/// Returns for how long frames were sent; `None` while no worker has ended.
pub fn sending_time(streams: &[Arc<ReturnStats>]) -> Option<Duration> {
    let nanos = streams.iter().map(|stream| stream.sent_until.load(Relaxed)).max();
    nanos.filter(|&nanos| nanos > 0).map(Duration::from_nanos)
}

/// Returns counters of sent, returned, lost, reordered and duplicate frames, and round trips: also the longest since
/// the last report, and at the end percentiles and, of several streams, the same of each. Until a frame has come back,
/// only `sent` and `returned` are known.
pub fn report(streams: &[Arc<ReturnStats>]) -> Fields {
    let each: Vec<Numbers> = streams.iter().map(|stream| stream.numbers()).collect();
    let total = each.iter().cloned().reduce(Numbers::plus).expect("there is a stream");
    let mut report = total.fields();
    if total.returned > 0 {
        report.insert("round_trip_max_recent_us".into(), micros(total.round_trip_max_recent).into());
    }
    if each.len() > 1 && total.round_trips.is_some() {
        report.insert("streams".into(), each.iter().map(Numbers::fields).collect());
    }
    report
}

/// What is known of one stream, or of all.
#[derive(Clone)]
pub struct Numbers {
    /// Frames that were sent.
    pub sent: u64,
    /// Distinct frames that came back.
    pub returned: u64,
    /// `None` while it is not known.
    pub lost: Option<u64>,
    /// Frames that came back after a later one.
    pub reordered: u64,
    /// Frames that had come back before.
    pub duplicate: u64,
    /// Nanoseconds of all round trips.
    pub round_trip_sum: u64,
    /// Nanoseconds by which round trips differed from the one before.
    pub round_trip_change_sum: u64,
    /// Nanoseconds of the longest round trip.
    pub round_trip_max: u64,
    round_trip_max_recent: u64,
    /// Round trips in nanoseconds; `None` before the end.
    pub round_trips: Option<Histogram<u64>>,
}

impl Numbers {
    /// Returns those of two streams together.
    pub fn plus(self, other: Self) -> Self {
        let mut round_trips = self.round_trips;
        if let (Some(all), Some(more)) = (&mut round_trips, &other.round_trips) {
            all.add(more).expect("the same bounds");
        }
        Self {
            sent: self.sent + other.sent,
            returned: self.returned + other.returned,
            lost: self.lost.zip(other.lost).map(|(one, two)| one + two),
            reordered: self.reordered + other.reordered,
            duplicate: self.duplicate + other.duplicate,
            round_trip_sum: self.round_trip_sum + other.round_trip_sum,
            round_trip_change_sum: self.round_trip_change_sum + other.round_trip_change_sum,
            round_trip_max: self.round_trip_max.max(other.round_trip_max),
            round_trip_max_recent: self.round_trip_max_recent.max(other.round_trip_max_recent),
            round_trips,
        }
    }

    fn fields(&self) -> Fields {
        let mut report = fields([("sent", self.sent.into()), ("returned", self.returned.into())]);
        if self.returned == 0 {
            return report;
        }
        if let Some(lost) = self.lost {
            report.insert("lost".into(), lost.into());
        }
        report.extend(fields([
            ("reordered", self.reordered.into()),
            ("duplicate", self.duplicate.into()),
            ("round_trip_avg_us", micros(self.round_trip_sum / self.returned).into()),
        ]));
        if let Some(round_trips) = &self.round_trips {
            // The histogram rounds up.
            let at = |quantile| micros(round_trips.value_at_quantile(quantile).min(self.round_trip_max)).into();
            report.extend(fields([
                ("round_trip_p50_us", at(0.5)),
                ("round_trip_p90_us", at(0.9)),
                ("round_trip_p99_us", at(0.99)),
                ("round_trip_p99.9_us", at(0.999)),
            ]));
        }
        report.insert("round_trip_max_us".into(), micros(self.round_trip_max).into());
        report
    }
}

/// Converts nanoseconds to microseconds with one decimal.
pub fn micros(nanos: u64) -> f64 {
    (nanos as f64 / 100.0).round() / 10.0
}

/// One worker's evaluation of returned frames. All frames of a flow return to the same worker, because cards
/// select the Rx queue by flow, unless fields vary. Even then all copies of a frame return to the same one.
pub struct ReturnTracker {
    ends: Endpoints,
    tracks: Vec<SequenceTracker>,
    returned: Arc<ReturnStats>,
    worker: usize,
    /// The last round trip in nanoseconds.
    last: Option<u64>,
}

impl ReturnTracker {
    /// Creates the tracker of a worker, by its number, for frames of `flows` flows.
    pub fn new(ends: &Endpoints, flows: usize, returned: &Arc<ReturnStats>, worker: usize) -> Self {
        Self {
            ends: *ends,
            tracks: vec![SequenceTracker::default(); flows],
            returned: returned.clone(),
            worker,
            last: None,
        }
    }

    /// Announces frames that will be sent, if another worker receives them: it may do so before they are counted as sent.
    pub fn announce(&self, frames: usize) {
        self.returned.announced.fetch_add(frames as u64, Relaxed);
    }

    /// Counts frames as sent.
    pub fn sent(&self, frames: usize) {
        if frames > 0 {
            self.returned.sent.fetch_add(frames as u64, Relaxed);
        }
    }

    /// Counts a call in which the port had no room for all frames that were due.
    fn refused(&self) {
        self.returned.refused.fetch_add(1, Relaxed);
    }

    /// Notes that the worker sends no more.
    pub fn finish_sending(&self) {
        self.returned.sent_until.fetch_max(self.returned.epoch.elapsed().as_nanos() as u64, Relaxed);
    }

    /// Evaluates frames that arrived. Returns how many of them had not arrived before.
    pub fn record_returned(&mut self, burst: &Burst) -> u64 {
        if burst.is_empty() {
            return 0;
        }
        let sent = self.returned.sent.load(Relaxed).max(self.returned.announced.load(Relaxed));
        let now = self.returned.epoch.elapsed().as_nanos() as u64;
        let [mut unique, mut expected, mut reordered, mut duplicate, mut sum, mut changes, mut max] = [0; 7];
        let mut round_trips = lock(&self.returned.round_trips[self.worker]);
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
            let round_trip = now - mark.time;
            round_trips.saturating_record(round_trip);
            sum += round_trip;
            changes += self.last.replace(round_trip).map_or(0, |last| last.abs_diff(round_trip));
            max = max.max(round_trip);
        }
        drop(round_trips);
        let counters = &*self.returned;
        for (counter, n) in [
            (&counters.unique, unique),
            (&counters.expected, expected),
            (&counters.reordered, reordered),
            (&counters.duplicate, duplicate),
            (&counters.round_trip_sum, sum),
            (&counters.round_trip_change_sum, changes),
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
        let counters = &*self.returned;
        let back = if counters.spread { &counters.unique } else { &counters.expected }.load(Relaxed);
        0 < back && back < counters.sent.load(Relaxed)
    }

    /// Ends the run for this worker: frames that are missing now count as lost.
    pub fn end(self) {
        self.returned.end();
    }
}

/// One worker's evaluation of all streams.
pub struct ReturnTrackers {
    each: Vec<ReturnTracker>,
    /// Frames of the present burst that were sent.
    at: usize,
    /// Of each stream, the frames that were sent by one call.
    counts: Vec<usize>,
}

impl ReturnTrackers {
    /// Creates the evaluation of the streams, of which there is at least one.
    pub fn new(each: Vec<ReturnTracker>) -> Self {
        Self { at: 0, counts: vec![0; each.len()], each }
    }

    /// Notes that a burst was generated. The one before was sent.
    pub fn generated(&mut self) {
        self.at = 0;
    }

    /// Counts the next `frames` of the burst as sent. `streams` has the stream of each of its frames, if there are
    /// several.
    pub fn sent(&mut self, frames: usize, streams: &[u8]) {
        match streams.get(self.at..self.at + frames) {
            Some(streams) => {
                streams.iter().for_each(|&stream| self.counts[usize::from(stream)] += 1);
                self.each.iter().zip(&mut self.counts).for_each(|(tracker, count)| tracker.sent(std::mem::take(count)));
            }
            None => self.each[0].sent(frames),
        }
        self.at += frames;
    }

    /// Counts a call in which the port had no room for all frames that were due.
    pub fn refused(&mut self) {
        self.each[0].refused();
    }

    /// Notes that the worker sends no more.
    pub fn finish_sending(&mut self) {
        self.each[0].finish_sending();
    }

    /// Evaluates frames that arrived. Returns how many of them had not arrived before.
    pub fn record_returned(&mut self, burst: &Burst) -> u64 {
        self.each.iter_mut().map(|tracker| tracker.record_returned(burst)).sum()
    }

    /// Returns whether frames of a stream have come back, but not the last ones.
    pub fn is_missing_tail(&self) -> bool {
        self.each.iter().any(ReturnTracker::is_missing_tail)
    }

    /// Ends the run for this worker: frames that are missing now count as lost.
    pub fn end(self) {
        self.each.into_iter().for_each(ReturnTracker::end);
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

    fn report_of(stream: &Arc<ReturnStats>) -> Fields {
        report(std::slice::from_ref(stream))
    }

    #[test]
    fn a_rate_that_was_missed_is_said() {
        let stats = Arc::new(ReturnStats::new(Instant::now(), 1, false));
        let missed = |rate| missed(std::slice::from_ref(&stats), rate);
        assert!(missed(1000.0).is_none(), "while it sends");
        stats.sent_until.store(2_000_000_000, Relaxed);
        stats.sent.store(1990, Relaxed);
        assert!(missed(1000.0).is_none(), "but for the last moment");
        stats.sent.store(1000, Relaxed);
        let fields = missed(1000.0).unwrap();
        assert_eq!(
            (fields["missed"].as_u64(), fields["missed_because"].as_str()),
            (Some(980), Some("this machine held the workers up"))
        );
        stats.refused.store(1, Relaxed);
        assert_eq!(missed(1000.0).unwrap()["missed_because"], "the port had no room");
    }

    #[test]
    fn a_flow_that_returns_to_two_workers_has_lost_nothing() {
        let mac = MacAddress([2; 6]);
        let ip = Addresses::V4 { source: Ipv4Addr::LOCALHOST, destination: Ipv4Addr::LOCALHOST };
        let ends = Endpoints { mac: (mac, mac), vlan: None, ip, transport: L4::Udp, port: 9, run: 7 };
        let (template, pool) = (Template::new(&ends, 60), Mempool::new(&MempoolConfig::default()).unwrap());
        let returned = Arc::new(ReturnStats::new(Instant::now(), 2, true));
        let mut trackers = [0, 1].map(|worker| ReturnTracker::new(&ends, 2, &returned, worker));
        trackers[0].sent(12);
        // One of 12 is late, and one comes twice.
        for sequence in [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 7] {
            let (mut burst, mut packet) = (Burst::new(1), pool.alloc().unwrap());
            packet.set_len(60);
            template.write(&mut packet, &Mark { flow: 0, sequence, time: 0 }, &[]);
            burst.push(packet);
            trackers[sequence as usize % 3 % 2].record_returned(&burst);
        }
        let report = report_of(&returned);
        assert!(report["returned"] == 11 && !report.contains_key("lost"), "{report:?}");
        assert!(trackers[0].is_missing_tail());
        trackers.into_iter().for_each(ReturnTracker::end);
        let report = report_of(&returned);
        assert_eq!(["lost", "reordered", "duplicate"].map(|name| report[name].as_u64()), [1, 0, 1].map(Some));
    }

    #[test]
    fn what_is_missing_is_lost_once_nothing_more_is_waited_for() {
        let mac = MacAddress([2; 6]);
        let ip = Addresses::V4 { source: Ipv4Addr::LOCALHOST, destination: Ipv4Addr::LOCALHOST };
        let ends = Endpoints { mac: (mac, mac), vlan: None, ip, transport: L4::Udp, port: 9, run: 7 };
        let (template, pool) = (Template::new(&ends, 60), Mempool::new(&MempoolConfig::default()).unwrap());
        let epoch = Instant::now().checked_sub(Duration::from_secs(1)).expect("the machine has run for a second");
        let returned = Arc::new(ReturnStats::new(epoch, 2, false));
        let mut tracker = ReturnTracker::new(&ends, 2, &returned, 1);
        tracker.sent(10);
        let mut burst = Burst::new(32);
        // Flow 0 has 0, 2, 1, 1 and flow 1 has 3; the last frame has a number that was never sent.
        for (flow, sequence) in [(0, 0), (0, 2), (0, 1), (0, 1), (1, 3), (1, 1 << 40)] {
            // All but the last one came back at once.
            let time = if (flow, sequence) == (1, 3) { 0 } else { epoch.elapsed().as_nanos() as u64 };
            let mut packet = pool.alloc().unwrap();
            packet.set_len(60);
            template.write(&mut packet, &Mark { flow, sequence, time }, &[]);
            burst.push(packet);
        }
        tracker.record_returned(&burst);
        let of = |name: &str| report_of(&returned)[name].as_u64().unwrap();
        assert_eq!(["sent", "returned", "lost", "reordered", "duplicate"].map(of), [10, 4, 3, 1, 1]);
        assert!(!report_of(&returned).contains_key("round_trip_p50_us"), "percentiles are of the whole run");
        tracker.end();
        let report = report_of(&returned);
        assert_eq!(report["lost"], 6);
        let of = |name: &str| report[name].as_f64().unwrap();
        assert!(of("round_trip_p50_us") < 1e6 && of("round_trip_p90_us") >= 0.99e6);
        assert!((of("round_trip_p99.9_us"), of("round_trip_p99_us")) <= (of("round_trip_max_us"), 1.1e6));
    }
}
