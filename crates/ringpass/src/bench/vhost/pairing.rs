//! What is connected with what, and what is measured.

use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass_port::Error;

use super::ours::Ours;
use super::testpmd::Testpmd;
use crate::bench::cores::{distance, go_on, pause};

/// Kind of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ring {
    Split,
    Packed,
}

impl Ring {
    /// In tables and JSON.
    pub fn name(self) -> &'static str {
        if self == Self::Packed { "packed" } else { "split" }
    }
}

/// How frames lie in buffers. Both ends of every pairing have the same features: these, indirect descriptors and the
/// version, no offloads and no event index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Used in the order of posting, a buffer a frame: what both implementations are fastest with.
    InOrder,
    /// A buffer a frame, in any order.
    Plain,
    /// A frame may lie in several buffers, in any order: what virtual machines usually have.
    Mergeable,
}

/// Which way the packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Direction {
    ToGuest,
    FromGuest,
}

/// Who plays which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pair {
    /// DPDK both.
    Peer,
    /// Ringpass the back-end, DPDK the front-end.
    Backend,
    /// DPDK the back-end, Ringpass the front-end.
    Frontend,
    /// Ringpass both.
    Both,
}

/// Kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Kind {
    pub ring: Ring,
    #[serde(rename = "features")]
    pub layout: Layout,
}

/// What an end does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Sends frames of so many bytes; those for which there is no room are lost.
    Generate(usize),
    /// Receives and drops.
    Drop,
}

/// What an end has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub mpps: f64,
    /// Busy cycles of its thread for each packet, as testpmd counts them: all of a generator, and of a receiver those of
    /// the rounds that brought packets.
    pub cycles: f64,
}

/// One end of a connection.
pub trait End {
    /// Starts the job.
    fn start(&mut self, job: Job) -> Result<(), Error>;
    /// From now on it is measured.
    fn begin(&mut self) -> Result<(), Error>;
    /// What it has done since then.
    fn end(&mut self) -> Result<Done, Error>;
    /// Ends the job.
    fn stop(&mut self) -> Result<(), Error>;
}

/// Where and how connections are made.
pub struct Site<'a> {
    /// Of the back-end and of the front-end.
    pub cores: [CoreId; 2],
    pub descriptors: usize,
    /// For sockets.
    pub folder: &'a std::path::Path,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub mpps: f64,
    pub backend_cycles: f64,
    pub frontend_cycles: f64,
    /// Cycles of a cache line from core to core, just before.
    pub distance: f64,
}

/// A connection that stands. The front-end goes first.
pub struct Pairing {
    front: Box<dyn End>,
    back: Box<dyn End>,
    cores: [CoreId; 2],
}

impl Pairing {
    const LIMIT: Duration = Duration::from_secs(20);
    const WARM_UP: Duration = Duration::from_millis(100);

    /// Starts both ends, and returns when packets have come through.
    pub fn connect(pair: Pair, kind: Kind, site: &Site) -> Result<Self, Error> {
        let name = format!("{pair:?}-{:?}-{:?}", kind.ring, kind.layout).to_lowercase();
        let socket = site.folder.join(name);
        let back: Box<dyn End> = match pair {
            Pair::Peer | Pair::Frontend => Box::new(Testpmd::backend(&socket, site)?),
            Pair::Backend | Pair::Both => Box::new(Ours::backend(&socket, kind, site)?),
        };
        let front: Box<dyn End> = match pair {
            Pair::Peer | Pair::Backend => Box::new(Testpmd::frontend(&socket, kind, site)?),
            Pair::Frontend | Pair::Both => Box::new(Ours::frontend(&socket, kind, site)?),
        };
        let mut pairing = Self { front, back, cores: site.cores };
        let start = Instant::now();
        while pairing.measure(Direction::ToGuest, 64, Self::WARM_UP)?.mpps == 0.0 {
            go_on()?;
            if start.elapsed() > Self::LIMIT {
                return Err(Error::Other(format!("{pair:?}: no packet has come through in {:?}", Self::LIMIT)));
            }
        }
        Ok(pairing)
    }

    /// Runs both ends for some time.
    pub fn measure(&mut self, direction: Direction, size: usize, time: Duration) -> Result<Sample, Error> {
        let distance = distance(self.cores);
        let (back, front) = (&mut *self.back, &mut *self.front);
        let (sender, receiver) = if direction == Direction::ToGuest { (back, front) } else { (front, back) };
        receiver.start(Job::Drop)?;
        sender.start(Job::Generate(size))?;
        pause(Self::WARM_UP)?;
        receiver.begin()?;
        sender.begin()?;
        pause(time)?;
        let (received, sent) = (receiver.end()?, sender.end()?);
        sender.stop()?;
        receiver.stop()?;
        let (back, front) = if direction == Direction::ToGuest { (sent, received) } else { (received, sent) };
        Ok(Sample { mpps: received.mpps, backend_cycles: back.cycles, frontend_cycles: front.cycles, distance })
    }
}
