//! The frames of one stream, made one after the other.

use std::time::Instant;

use ringpass::{Burst, Packet};
use ringpass_memory::{Cache, MAGAZINE};
use ringpass_port::chain;

use super::frame::{Endpoints, Mark};
use super::rate::Pacer;
use super::template::{Checksums, Template};
use super::vary::{Field, Values, Variation};

/// Frame sizes of 60, 590 and 1514 bytes in the ratio 7:4:1, interleaved.
pub const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 1514, 590, 60, 60, 590, 60];

/// Flows of one worker: every `step`th from `first`, below `end`.
#[derive(Clone, Copy, Debug)]
pub struct Flows {
    /// First flow.
    pub first: u32,
    /// Distance between two flows, which is the number of workers.
    pub step: u32,
    /// Number of flows of all workers.
    pub end: u32,
}

/// What a stream consists of.
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
    /// Start of the times in frames.
    pub epoch: Instant,
    /// Side that computes checksums.
    pub checksums: Checksums,
}

/// One worker's frames of a stream.
pub struct Stream {
    templates: Vec<Template>,
    /// Values of the fields that vary.
    values: Values,
    next_template: usize,
    flows: Flows,
    next: Mark,
    epoch: Instant,
    checksums: Checksums,
}

impl Stream {
    /// Creates the frames of a plan.
    pub fn new(plan: &Plan) -> Self {
        let &Plan { flows, epoch, checksums, .. } = plan;
        let varied: Vec<Field> = plan.vary.iter().map(|variation| variation.field).collect();
        Self {
            templates: plan.sizes.iter().map(|&size| Template::varied(&plan.ends, size, &varied)).collect(),
            values: Values::new(&plan.vary, flows.first as usize, flows.step as usize),
            next_template: 0,
            flows,
            next: Mark { flow: flows.first, sequence: 0, time: 0 },
            epoch,
            checksums,
        }
    }

    /// Returns the length of the next frame in bytes.
    pub fn next_len(&self) -> usize {
        self.templates[self.next_template].len()
    }

    /// Sets the time that the next frames carry.
    pub fn set_time(&mut self, now: Instant) {
        self.next.time = now.duration_since(self.epoch).as_nanos() as u64;
    }

    /// Adds the frames that are due to the burst, `most` or as many as it has room for, in buffers from `cache`.
    pub fn generate(&mut self, most: usize, pacer: &mut Pacer, cache: &mut Cache, burst: &mut Burst) {
        let most = most.min(burst.room());
        let long = self.templates.iter().any(|template| template.len() > cache.pool().buffer_size());
        if long || self.checksums == Checksums::Port {
            self.generate_chained(self.due(most, pacer), cache, burst);
        } else if self.templates.iter().all(Template::is_plain) {
            let write = |template: &Template, packet: &mut Packet, mark: &Mark, _: &mut Values| {
                template.write_plain(packet, mark);
            };
            self.generate_single(most, pacer, cache, burst, write);
        } else {
            let write = |template: &Template, packet: &mut Packet, mark: &Mark, values: &mut Values| {
                template.write(packet, mark, values.next());
            };
            self.generate_single(most, pacer, cache, burst, write);
        }
    }

    /// Returns how many frames are due, up to `most`, and takes their credit.
    fn due(&self, most: usize, pacer: &mut Pacer) -> usize {
        let sizes = self.templates.iter().cycle().skip(self.next_template).map(Template::len);
        sizes.take(most).take_while(|&len| pacer.due(len)).count()
    }

    /// Generates frames that take one buffer each. Compiled for each `write`, as a choice for each frame takes time.
    #[inline]
    fn generate_single(
        &mut self,
        most: usize,
        pacer: &mut Pacer,
        cache: &mut Cache,
        burst: &mut Burst,
        write: impl Fn(&Template, &mut Packet, &Mark, &mut Values),
    ) {
        let mut left = most;
        loop {
            let due = self.due(left.min(MAGAZINE), pacer);
            let packets = cache.take(due);
            let more = packets.len() == MAGAZINE;
            left -= packets.len();
            for mut packet in packets {
                let template = &self.templates[self.next_template];
                packet.set_len(template.len());
                write(template, &mut packet, &self.next, &mut self.values);
                burst.push(packet);
                self.advance();
            }
            if !more {
                break;
            }
        }
    }

    /// Generates frames that take several buffers, or whose checksums the port fills in.
    fn generate_chained(&mut self, frames: usize, cache: &mut Cache, burst: &mut Burst) {
        for _ in 0..frames {
            let template = &self.templates[self.next_template];
            let Some(mut packet) = chain([template.bytes()], || cache.take(1).next()) else { break };
            match self.checksums {
                Checksums::Generator => template.write(&mut packet, &self.next, self.values.next()),
                Checksums::Port => template.write_with_offload(&mut packet, &self.next, self.values.next()),
            }
            burst.push(packet);
            self.advance();
        }
    }

    /// Advances to the next flow and the next size.
    #[inline]
    fn advance(&mut self) {
        let next = self.next_template + 1;
        self.next_template = if next == self.templates.len() { 0 } else { next };
        self.next.flow += self.flows.step;
        if self.next.flow >= self.flows.end {
            (self.next.flow, self.next.sequence) = (self.flows.first, self.next.sequence + 1);
        }
    }
}
