//! Generated frames of one or several streams, as an Rx queue.

use std::time::Instant;

use ringpass::{Burst, RxQueue, WakeSource, Wakeable};
use ringpass_memory::Cache;

use super::rate::{Pace, Paced, Pacer, Rate};
use super::stream::Stream;

/// What a stream has of the frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// Frames of each round, in which streams without a rate of their own take turns.
    Weight(u32),
    /// A rate of its own.
    Rate(Rate),
}

/// A stream and its share.
pub struct PacedStream {
    /// The frames.
    pub stream: Stream,
    /// How many of them are sent.
    pub share: Share,
}

/// A source of frames, which may be of several streams.
pub trait FrameSource: RxQueue {
    /// Returns the number of the stream of each frame of the last burst; nothing if there is one stream.
    fn streams(&self) -> &[u8] {
        &[]
    }
}

/// Yields frames as they become due.
pub struct Generator {
    cache: Cache,
    streams: Vec<Stream>,
    /// Streams with rates of their own.
    rated: Vec<Rated>,
    /// Streams that take turns, in the order of one round.
    round: Vec<u8>,
    /// Next one in the round.
    next: usize,
    /// Pace of the rounds.
    pacer: Pacer,
    /// Stream of each frame of the last burst, if there are several streams.
    last: Vec<u8>,
}

struct Rated {
    stream: u8,
    pacer: Pacer,
}

impl Generator {
    /// Creates a generator of at most 256 streams with buffers from `cache`. Those without a rate share that of
    /// `pace`. Their time begins at `start`.
    pub fn new(streams: Vec<PacedStream>, pace: Pace, cache: Cache, start: Instant) -> Self {
        let (mut rated, mut weights) = (Vec::new(), Vec::new());
        let is_alone = streams.len() == 1;
        for (number, stream) in (0..).zip(&streams) {
            match stream.share {
                // Faster than turns.
                Share::Weight(_) if is_alone => rated.push(Rated { stream: number, pacer: Pacer::new(pace, start) }),
                Share::Weight(weight) => weights.push((number, weight)),
                Share::Rate(rate) => {
                    rated.push(Rated { stream: number, pacer: Pacer::new(Pace { rate, ..pace }, start) })
                }
            }
        }
        Self {
            cache,
            streams: streams.into_iter().map(|paced| paced.stream).collect(),
            rated,
            round: round(&weights),
            next: 0,
            pacer: Pacer::new(pace, start),
            last: Vec::new(),
        }
    }

    /// Notes that the last frames of the burst are of a stream.
    fn note(&mut self, stream: u8, burst: &Burst) {
        if self.streams.len() > 1 {
            self.last.resize(burst.len(), stream);
        }
    }
}

/// Returns a round of streams, in which each has as many turns as its weight, spread evenly.
fn round(weights: &[(u8, u32)]) -> Vec<u8> {
    let total: i64 = weights.iter().map(|&(_, weight)| i64::from(weight)).sum();
    let mut credit = vec![0; weights.len()];
    let mut turn = || {
        credit.iter_mut().zip(weights).for_each(|(credit, &(_, weight))| *credit += i64::from(weight));
        // The first one with the most.
        let at = (0..credit.len()).rev().max_by_key(|&at| credit[at]).expect("a round has streams");
        credit[at] -= total;
        weights[at].0
    };
    (0..total).map(|_| turn()).collect()
}

impl Wakeable for Generator {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        for rated in &self.rated {
            each(rated.pacer.wake(self.streams[usize::from(rated.stream)].next_len()));
        }
        if let Some(&stream) = self.round.get(self.next) {
            each(self.pacer.wake(self.streams[usize::from(stream)].next_len()));
        }
    }
}

impl RxQueue for Generator {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let now = Instant::now();
        self.last.clear();
        self.last.resize(if self.streams.len() > 1 { before } else { 0 }, 0);
        self.streams.iter_mut().for_each(|stream| stream.set_time(now));
        for at in 0..self.rated.len() {
            let Rated { stream, pacer } = &mut self.rated[at];
            let stream = *stream;
            pacer.advance(now);
            self.streams[usize::from(stream)].generate(usize::MAX, pacer, &mut self.cache, burst);
            self.note(stream, burst);
        }
        // None is the first in each burst: all get their rates if the port has no room for all.
        if self.rated.len() > 1 {
            self.rated.rotate_left(1);
        }
        if !self.round.is_empty() {
            self.take_turns(now, burst);
        }
        burst.len() - before
    }
}

impl Generator {
    /// Adds the frames of streams that take turns.
    fn take_turns(&mut self, now: Instant, burst: &mut Burst) {
        self.pacer.advance(now);
        while let Some(&stream) = self.round.get(self.next).filter(|_| burst.room() > 0) {
            let had = burst.len();
            self.streams[usize::from(stream)].generate(1, &mut self.pacer, &mut self.cache, burst);
            if burst.len() == had {
                break;
            }
            self.note(stream, burst);
            self.next = if self.next + 1 == self.round.len() { 0 } else { self.next + 1 };
        }
    }
}

impl FrameSource for Paced {}

impl FrameSource for Generator {
    fn streams(&self) -> &[u8] {
        &self.last
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use ringpass_memory::{L4, Mempool, MempoolConfig};
    use ringpass_port::MacAddress;

    use super::super::frame::{Addresses, Endpoints};
    use super::super::stream::{Flows, IMIX, Plan};
    use super::super::template::Checksums;
    use super::*;

    #[test]
    fn each_flow_counts_from_zero_and_sizes_are_mixed() {
        let mac = MacAddress([2; 6]);
        let ip = Addresses::V4 { source: Ipv4Addr::LOCALHOST, destination: Ipv4Addr::LOCALHOST };
        let ends = Endpoints { mac: (mac, mac), vlan: None, ip, transport: L4::Udp, port: 9, run: 7 };
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let (mut next, mut sizes) = (HashMap::new(), HashMap::new());
        for first in 0..2 {
            let flows = Flows { first, step: 2, end: 7 };
            let checksums = if first == 0 { Checksums::Generator } else { Checksums::Port };
            let (pace, epoch) = (Pace { rate: Rate::Max, burst: 1 }, Instant::now());
            let plan = Plan { ends, sizes: IMIX.to_vec(), vary: Vec::new(), flows, epoch, checksums };
            let paced = PacedStream { stream: Stream::new(&plan), share: Share::Rate(pace.rate) };
            let mut generator = Generator::new(vec![paced], pace, pool.cache(), epoch);
            for _ in 0..4 {
                let mut burst = Burst::new(30);
                assert_eq!(generator.rx_burst(&mut burst), 30);
                for packet in burst.iter() {
                    let mark = ends.read(packet, 7).unwrap();
                    let expected = next.entry(mark.flow).or_insert(0);
                    assert_eq!((mark.sequence, mark.flow % 2), (*expected, first));
                    *expected += 1;
                    *sizes.entry(packet.len()).or_insert(0) += 1;
                }
            }
        }
        assert_eq!(next.len(), 7);
        assert_eq!(sizes, HashMap::from([(60, 140), (590, 80), (1514, 20)]));
    }

    #[test]
    fn streams_are_interleaved_by_weight_or_have_a_rate() {
        let mac = MacAddress([2; 6]);
        let ip = Addresses::V4 { source: Ipv4Addr::LOCALHOST, destination: Ipv4Addr::LOCALHOST };
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let start = Instant::now();
        let epoch = start.checked_sub(Duration::from_secs(1)).expect("the machine has run for a second");
        let streams = |shares: &[Share]| {
            let stream = |(run, &share)| {
                let ends = Endpoints { mac: (mac, mac), vlan: None, ip, transport: L4::Udp, port: 9, run };
                let flows = Flows { first: 0, step: 1, end: 1 };
                let checksums = Checksums::Generator;
                let plan = Plan { ends, sizes: vec![60], vary: Vec::new(), flows, epoch, checksums };
                PacedStream { stream: Stream::new(&plan), share }
            };
            (0..).zip(shares).map(stream).collect()
        };
        let max = Pace { rate: Rate::Max, burst: 1 };
        let mut generator = Generator::new(streams(&[1, 3, 2].map(Share::Weight)), max, pool.cache(), epoch);
        let mut burst = Burst::new(12);
        assert_eq!(generator.rx_burst(&mut burst), 12);
        assert_eq!(generator.streams(), [1, 2, 0, 1, 2, 1, 1, 2, 0, 1, 2, 1]);
        for (packet, &stream) in burst.iter().zip(generator.streams()) {
            assert_eq!(packet.to_vec()[42..44], [0, stream]);
        }
        // Ten frames in the second that has passed, of which a tenth is caught up with; the rest is of the other stream.
        let shares = [Share::Weight(1), Share::Rate(Rate::Packets(100.0))];
        let mut generator = Generator::new(streams(&shares), max, pool.cache(), epoch);
        let mut burst = Burst::new(16);
        assert_eq!(generator.rx_burst(&mut burst), 16);
        assert_eq!(generator.streams(), [[1; 10].as_slice(), &[0; 6]].concat());
        let shares = [Share::Rate(Rate::Packets(30.0)), Share::Rate(Rate::Packets(20.0))];
        let mut generator = Generator::new(streams(&shares), max, pool.cache(), epoch);
        let mut burst = Burst::new(16);
        assert_eq!(generator.rx_burst(&mut burst), 5);
        assert_eq!(generator.streams(), [0, 0, 0, 1, 1]);
        let mut times = 0;
        generator.wake_sources(&mut |source| times += usize::from(matches!(source, WakeSource::At(_))));
        assert_eq!(times, 2);
    }
}
