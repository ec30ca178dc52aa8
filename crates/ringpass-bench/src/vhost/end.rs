//! The two ends of a connection, of either implementation.

use core_affinity::CoreId;
use ringpass::Error;

/// Format of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ring {
    Split,
    Packed,
}

impl Ring {
    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        if self == Self::Packed { "packed" } else { "split" }
    }
}

/// Layout of frames in buffers. Both ends of every pairing have the same features: those of the layout,
/// indirect descriptors and VERSION_1; no offloads and no event index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// One buffer per frame, used in the order of posting: the fastest for both implementations.
    InOrder,
    /// One buffer per frame, in any order.
    Plain,
    /// Frames may take several buffers, in any order: the usual case with virtual machines.
    Mergeable,
}

/// Kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Kind {
    pub ring: Ring,
    #[serde(rename = "features")]
    pub layout: Layout,
}

/// Work of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Sends frames of this many bytes; those for which there is no room are lost.
    Generate(usize),
    /// Receives frames and drops them.
    Drop,
}

/// Work done by one end.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkDone {
    pub mpps: f64,
    /// Busy cycles of its thread per packet, counted as testpmd does: all cycles of a generator, and those of a
    /// receiver's rounds that brought packets.
    pub cycles: f64,
}

/// One end of a connection.
pub trait TrafficEnd {
    /// Starts the work.
    fn start(&mut self, job: Workload) -> Result<(), Error>;
    /// Begins a measurement.
    fn begin(&mut self) -> Result<(), Error>;
    /// Ends the measurement, and returns the work done since it began.
    fn end(&mut self) -> Result<WorkDone, Error>;
    /// Stops the work.
    fn stop(&mut self) -> Result<(), Error>;
}

/// Environment of all connections.
pub struct Testbed<'a> {
    /// Cores of the back-end and of the front-end.
    pub cores: [CoreId; 2],
    pub descriptors: usize,
    /// Folder for sockets.
    pub folder: &'a std::path::Path,
}
