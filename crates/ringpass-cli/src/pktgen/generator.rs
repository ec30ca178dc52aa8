//! Generated frames, as an Rx queue.

use std::time::Instant;

use ringpass::{Burst, Packet, RxQueue, WakeSource, Wakeable};
use ringpass_memory::{Cache, MAGAZINE};
use ringpass_port::chain;

use super::frame::{Endpoints, Mark};
use super::rate::{Pace, Pacer};
use super::template::{Checksums, Template};
use super::vary::{Field, Values, Variation};

/// Frame sizes of 60, 590 and 1514 bytes in the ratio 7:4:1, interleaved.
pub const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 1514, 590, 60, 60, 590, 60];

/// Flows of one generator: every `step`th from `first`, below `end`.
#[derive(Clone, Copy, Debug)]
pub struct Flows {
    /// First flow.
    pub first: u32,
    /// Distance between two flows, which is the number of generators.
    pub step: u32,
    /// Number of flows of all generators.
    pub end: u32,
}

/// Yields frames as they become due.
pub struct Generator {
    cache: Cache,
    templates: Vec<Template>,
    /// Values of the fields that vary.
    values: Values,
    next_template: usize,
    flows: Flows,
    next: Mark,
    pacer: Pacer,
    epoch: Instant,
    checksums: Checksums,
}

/// What a generator sends, and how fast.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sender, receiver and headers.
    pub ends: Endpoints,
    /// Sizes of the frames in bytes, which take turns.
    pub sizes: Vec<usize>,
    /// Fields that vary.
    pub vary: Vec<Variation>,
    /// Flows, which take turns.
    pub flows: Flows,
    /// Pace of this generator.
    pub pace: Pace,
    /// Start of the times in frames.
    pub epoch: Instant,
    /// Side that computes checksums.
    pub checksums: Checksums,
}

impl Generator {
    /// Creates a generator with buffers from `cache`.
    pub fn new(plan: &Plan, cache: Cache) -> Self {
        let &Plan { flows, epoch, checksums, .. } = plan;
        let varied: Vec<Field> = plan.vary.iter().map(|variation| variation.field).collect();
        Self {
            cache,
            templates: plan.sizes.iter().map(|&size| Template::varied(&plan.ends, size, &varied)).collect(),
            values: Values::new(&plan.vary, flows.first as usize, flows.step as usize),
            next_template: 0,
            flows,
            next: Mark { flow: flows.first, sequence: 0, time: 0 },
            pacer: Pacer::new(plan.pace, epoch),
            epoch,
            checksums,
        }
    }
}

impl Generator {
    /// Returns how many frames are due, up to `most`, and takes their credit.
    fn due(&mut self, most: usize) -> usize {
        let sizes = self.templates.iter().cycle().skip(self.next_template).map(Template::len);
        sizes.take(most).take_while(|&len| self.pacer.due(len)).count()
    }
}

impl Wakeable for Generator {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(self.pacer.wake(self.templates[self.next_template].len()));
    }
}

impl RxQueue for Generator {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let now = Instant::now();
        self.pacer.advance(now);
        self.next.time = now.duration_since(self.epoch).as_nanos() as u64;
        let long = self.templates.iter().any(|template| template.len() > self.cache.pool().buffer_size());
        if long || self.checksums == Checksums::Port {
            self.generate_chained(burst);
        } else if self.templates.iter().all(Template::is_plain) {
            self.generate(burst, |template, packet, mark, _| template.write_plain(packet, mark));
        } else {
            self.generate(burst, |template, packet, mark, values| template.write(packet, mark, values.next()));
        }
        burst.len() - before
    }
}

/// Advances to the next flow and the next size.
#[inline]
fn advance(next: &mut Mark, template: &mut usize, flows: &Flows, templates: usize) {
    *template = if *template + 1 == templates { 0 } else { *template + 1 };
    next.flow += flows.step;
    if next.flow >= flows.end {
        (next.flow, next.sequence) = (flows.first, next.sequence + 1);
    }
}

impl Generator {
    /// Generates frames that take one buffer each. Compiled for each `write`, as a choice for each frame takes time.
    #[inline]
    fn generate(&mut self, burst: &mut Burst, write: impl Fn(&Template, &mut Packet, &Mark, &mut Values)) {
        loop {
            let due = self.due(burst.room().min(MAGAZINE));
            let packets = self.cache.take(due);
            let more = packets.len() == MAGAZINE;
            for mut packet in packets {
                let template = &self.templates[self.next_template];
                packet.set_len(template.len());
                write(template, &mut packet, &self.next, &mut self.values);
                burst.push(packet);
                advance(&mut self.next, &mut self.next_template, &self.flows, self.templates.len());
            }
            if !more {
                break;
            }
        }
    }

    /// Generates frames that take several buffers, or whose checksums the port fills in.
    fn generate_chained(&mut self, burst: &mut Burst) {
        for _ in 0..self.due(burst.room()) {
            let template = &self.templates[self.next_template];
            let Some(mut packet) = chain([template.bytes()], || self.cache.take(1).next()) else { break };
            match self.checksums {
                Checksums::Generator => template.write(&mut packet, &self.next, self.values.next()),
                Checksums::Port => template.write_with_offload(&mut packet, &self.next, self.values.next()),
            }
            burst.push(packet);
            advance(&mut self.next, &mut self.next_template, &self.flows, self.templates.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;

    use ringpass_memory::{L4, Mempool, MempoolConfig};
    use ringpass_port::MacAddress;

    use super::super::frame::Addresses;
    use super::super::rate::Rate;
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
            let plan = Plan { ends, sizes: IMIX.to_vec(), vary: Vec::new(), flows, pace, epoch, checksums };
            let mut generator = Generator::new(&plan, pool.cache());
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
}
