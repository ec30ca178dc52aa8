//! Pairings of back-ends and front-ends, and their measurement.

use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass::Error;

use super::end::{Kind, Testbed, TrafficEnd, Workload};
use super::ringpass_end::RingpassEnd;
use super::testpmd::Testpmd;
use crate::cores::{check_interrupted, core_to_core_cycles, pause};

/// Direction of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Direction {
    ToGuest,
    FromGuest,
}

/// Implementations of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pair {
    /// DPDK at both ends.
    Peer,
    /// Ringpass as back-end, DPDK as front-end.
    Backend,
    /// DPDK as back-end, Ringpass as front-end.
    Frontend,
    /// Ringpass at both ends.
    Both,
}

/// Results of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub mpps: f64,
    pub backend_cycles: f64,
    pub frontend_cycles: f64,
    /// Cycles for a cache line to move from core to core, measured just before and just after.
    pub core_to_core_cycles: [f64; 2],
}

/// An established connection. The front-end is the first field, so that it is dropped first.
pub struct Pairing {
    front: Box<dyn TrafficEnd>,
    back: Box<dyn TrafficEnd>,
    cores: [CoreId; 2],
}

impl Pairing {
    const LIMIT: Duration = Duration::from_secs(20);
    const WARM_UP: Duration = Duration::from_millis(100);

    /// Starts both ends, and waits until packets have come through.
    pub fn connect(pair: Pair, kind: Kind, site: &Testbed) -> Result<Self, Error> {
        let name = format!("{pair:?}-{:?}-{:?}", kind.ring, kind.layout).to_lowercase();
        let socket = site.folder.join(name);
        let back: Box<dyn TrafficEnd> = match pair {
            Pair::Peer | Pair::Frontend => Box::new(Testpmd::backend(&socket, site)?),
            Pair::Backend | Pair::Both => Box::new(RingpassEnd::backend(&socket, kind, site)?),
        };
        let front: Box<dyn TrafficEnd> = match pair {
            Pair::Peer | Pair::Backend => Box::new(Testpmd::frontend(&socket, kind, site)?),
            Pair::Frontend | Pair::Both => Box::new(RingpassEnd::frontend(&socket, kind, site)?),
        };
        let mut pairing = Self { front, back, cores: site.cores };
        let start = Instant::now();
        while pairing.measure(Direction::ToGuest, 64, Self::WARM_UP)?.mpps == 0.0 {
            check_interrupted()?;
            if start.elapsed() > Self::LIMIT {
                return Err(Error::Gone(format!("{pair:?}: no packet has come through in {:?}", Self::LIMIT)));
            }
        }
        Ok(pairing)
    }

    /// Runs traffic in one direction for some time.
    pub fn measure(&mut self, direction: Direction, size: usize, time: Duration) -> Result<Sample, Error> {
        let before = core_to_core_cycles(self.cores);
        let (back, front) = (&mut *self.back, &mut *self.front);
        let (sender, receiver) = if direction == Direction::ToGuest { (back, front) } else { (front, back) };
        receiver.start(Workload::Drop)?;
        sender.start(Workload::Generate(size))?;
        pause(Self::WARM_UP)?;
        receiver.begin()?;
        sender.begin()?;
        pause(time)?;
        let (received, sent) = (receiver.end()?, sender.end()?);
        sender.stop()?;
        receiver.stop()?;
        let (back, front) = if direction == Direction::ToGuest { (sent, received) } else { (received, sent) };
        Ok(Sample {
            mpps: received.mpps,
            backend_cycles: back.cycles,
            frontend_cycles: front.cycles,
            core_to_core_cycles: [before, core_to_core_cycles(self.cores)],
        })
    }
}
