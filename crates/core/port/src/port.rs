//! The traits `Port`, `RxQueue` and `TxQueue`.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use ringpass_memory::{Access, Avx2, Burst, FrameBatch, prefetch};
use serde::{Deserialize, Serialize};

use crate::lending::Lending;
use crate::{Error, FrameSink, MacAddress, Offloads, Rule, Spread, Wakeable};

/// Configuration of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Number of pairs of an Rx and a Tx queue.
    pub queues: usize,
    /// Descriptors of each Rx ring, where the port has rings: a power of two, 64 to 4096.
    pub rx_ring: usize,
    /// Descriptors of each Tx ring, where the port has rings: a power of two, 64 to 4096.
    pub tx_ring: usize,
    /// Receive frames for any MAC address.
    pub promiscuous: bool,
    /// Largest payload of a frame, in bytes: 68 to 9710.
    pub mtu: usize,
    /// Offloads to enable.
    pub offloads: Offloads,
    /// Distribution of received frames over the queues.
    pub spread: Spread,
    /// Let the card, if it can, report sent frames by writing its head to memory rather than in descriptors.
    pub head_write_back: bool,
    /// Let the driver handle several descriptors at a time with AVX2, if it can and the processor has it. What it sends and
    /// receives is the same without.
    pub vector: bool,
    /// When the port's interface is deleted, wait for one of the same name instead of ending. For TAPs and
    /// packet sockets.
    pub rejoin: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            queues: 1,
            rx_ring: 512,
            tx_ring: 512,
            promiscuous: true,
            mtu: 1500,
            offloads: Offloads::default(),
            spread: Spread::default(),
            head_write_back: false,
            vector: true,
            rejoin: false,
        }
    }
}

impl PortConfig {
    /// Returns the proof of AVX2 if the driver may use it and the processor has it.
    pub fn avx2(&self) -> Option<Avx2> {
        self.vector.then(Avx2::detect).flatten()
    }
}

/// Counters of a port since it was opened. Bytes are those of the frames, without CRC.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames that arrived and were lost: no descriptor or buffer was free, or the frame was faulty.
    pub rx_drops: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames that were taken for sending and not sent.
    pub tx_drops: u64,
}

/// A ring of descriptors, as its registers or indices show it at the moment.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingStatus {
    /// Queue of the port that the ring belongs to.
    pub queue: usize,
    /// Direction of its frames.
    pub direction: Direction,
    /// Number of its descriptors.
    pub descriptors: usize,
    /// Descriptor that the device uses next.
    pub head: usize,
    /// Number of descriptors, from the head on, that the driver has posted and the device has not used yet; of a virtqueue, chains of them.
    pub posted: usize,
    /// Content of these descriptors.
    pub holds: Holds,
}

/// Writes a line such as `rx ring 0: 480 of 512 descriptors free, head 5`.
impl Display for RingStatus {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { queue, direction, descriptors, head, posted, holds } = self;
        let direction = if *direction == Direction::Rx { "rx" } else { "tx" };
        let what = if *holds == Holds::Buffers { "free" } else { "waiting" };
        write!(f, "{direction} ring {queue}: {posted} of {descriptors} descriptors {what}, head {head}")
    }
}

/// Content of the posted descriptors of a ring.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// Free buffers.
    #[default]
    Buffers,
    /// Frames.
    Frames,
}

impl RingStatus {
    /// Describes the ring of an Intel card, whose descriptors from `head` up to `tail` belong to the card. `None` unless both lie in it.
    pub fn of_card(queue: usize, direction: Direction, descriptors: usize, head: usize, tail: usize) -> Option<Self> {
        let posted = (head.max(tail) < descriptors).then(|| (tail + descriptors - head) % descriptors)?;
        let holds = if direction == Direction::Rx { Holds::Buffers } else { Holds::Frames };
        Some(Self { queue, direction, descriptors, head, posted, holds })
    }
}

/// Direction of a ring's frames, seen from its port.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Receiving.
    #[default]
    Rx,
    /// Sending.
    Tx,
}

/// State of a port's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Whether there is a link.
    pub up: bool,
    /// Speed of the link in Mbit/s; 0 where that is meaningless.
    pub mbps: u32,
}

/// Whether a port still works.
#[derive(Debug)]
pub enum State {
    /// The port works.
    Running,
    /// All input has been delivered (the end of a capture file).
    Finished,
    /// The card or interface behind the port has disappeared or does not answer. The text gives the symptom.
    Gone(String),
}

/// The receiving queue of a port. Belongs to one thread at a time.
pub trait RxQueue: Wakeable + Send {
    // ANCHOR: rx_burst
    /// Adds received packets to the burst until it is full or none is left, and returns their number. Does not wait.
    fn rx_burst(&mut self, burst: &mut Burst) -> usize;
    // ANCHOR_END: rx_burst

    /// Adds copies of received frames to the batch until it is full or none is left, and returns their number. Does not
    /// wait. Queues that make their frames themselves do so without packets.
    fn rx_frames(&mut self, frames: &mut FrameBatch) -> usize {
        copy_packets(self, frames)
    }

    /// Returns whether the queue knows that the port has a link now; `false` if there is none or the queue cannot tell. The
    /// port's control side ([`Port::link`]) is queried only a few times a second.
    fn has_link(&self) -> bool {
        false
    }

    /// Returns the times at which the packets of the last burst arrived or were recorded, in nanoseconds since 1970, one for each. Empty where they are
    /// not known.
    fn rx_timestamps(&self) -> &[u64] {
        &[]
    }

    /// From now on receives into buffers that a guest lends, where available, so that frames for the guest need not be copied.
    /// Must be called before the first burst.
    ///
    /// # Errors
    /// If the queue cannot do this: most kinds cannot.
    fn borrow_from(&mut self, _lending: &Arc<Lending>) -> Result<(), Error> {
        Err(Error::Unsupported("only queues of Intel's cards and of other guests can be mapped to a guest's".into()))
    }
}

/// Receives packets, adds copies of their frames to the batch until it is full or none is left, and returns their number:
/// what [`RxQueue::rx_frames`] does in queues that have packets.
pub fn copy_packets<Q: RxQueue + ?Sized>(queue: &mut Q, frames: &mut FrameBatch) -> usize {
    if frames.room() == 0 {
        return 0;
    }
    let mut burst = Burst::new(frames.room());
    let received = queue.rx_burst(&mut burst);
    // Another core may have written the frames.
    burst.iter().for_each(|packet| prefetch(packet.as_ptr(), Access::Read));
    burst.iter().for_each(|packet| frames.push_packet(packet));
    received
}

/// The sending queue of a port. Belongs to one thread at a time.
pub trait TxQueue: Send {
    // ANCHOR: tx_burst
    /// Takes packets from the front of the burst and sends them, until it is empty or the queue is full, and
    /// returns the number of packets taken. Does not wait.
    ///
    /// The rest stays in the burst, for the caller to keep or drop. Frames that the port can never send (longer
    /// than its MTU allows) are taken, dropped and counted.
    fn tx_burst(&mut self, burst: &mut Burst) -> usize;
    // ANCHOR_END: tx_burst

    /// Returns the way to send copies of frames without packets, if the queue has one. Frames sent either way keep their
    /// order.
    fn frame_sink(&mut self) -> Option<&mut dyn FrameSink> {
        None
    }
}

/// A pair of queues, for one thread.
pub struct QueuePair {
    /// The receiving queue.
    pub rx: Box<dyn RxQueue>,
    /// The sending queue.
    pub tx: Box<dyn TxQueue>,
}

/// A port: a source and destination of frames.
///
/// This is its control side, for statistics and link state. Its queues are taken once and may then be used on
/// any threads. The device or interface behind it is stopped when the port and all its queues have been dropped.
///
/// A port or queue that wraps another one implements [`PortDecorator`](crate::PortDecorator) or
/// [`RxDecorator`](crate::RxDecorator) instead, because a default method left in place by mistake would answer for the
/// inner one.
pub trait Port: Send {
    /// Returns the address that the port was opened by.
    fn name(&self) -> &str;

    /// Returns the port's MAC address; zeros where it has none.
    fn mac(&self) -> MacAddress {
        MacAddress::default()
    }

    /// Returns the present state of the link; up where there is nothing that could be down.
    fn link(&mut self) -> Link {
        Link { up: true, mbps: 0 }
    }

    /// Returns the counters since the port was opened; zeros where nothing is counted.
    fn stats(&mut self) -> Stats {
        Stats::default()
    }

    /// Returns the counters of each queue pair, in the order of the queues; none where the port does not count by queue. Their
    /// sums may be less than [`stats`](Self::stats): some frames are lost before a queue is chosen for them.
    fn queue_stats(&mut self) -> Vec<Stats> {
        Vec::new()
    }

    /// Returns the rings of descriptors of all queues, as they are at the moment; none where the port has no rings, or cannot look at them without
    /// its queues. To be called some 20 times a second at most, as queues may wait for it for a moment.
    fn rings(&mut self) -> Vec<RingStatus> {
        Vec::new()
    }

    /// Returns further counters of this kind of port, by name.
    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns whether the port still works. Called a few times a second.
    fn state(&mut self) -> State {
        State::Running
    }

    /// Takes the queues, as many as configured. Returns none the second time.
    fn take_queues(&mut self) -> Vec<QueuePair>;

    /// Completes what the port writes elsewhere, such as a capture file. To be called at the end, after its
    /// queues have been dropped.
    ///
    /// # Errors
    /// If something could not be written; the text says what is missing.
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Sets whether the port receives frames for any MAC address, or only those for its own, broadcast and multicast. A port without
    /// a MAC address receives all frames either way.
    fn set_promiscuous(&mut self, _on: bool) -> Result<(), Error> {
        Ok(())
    }

    /// Steers received frames that match `rule` to one of the queues. Fails where the port cannot.
    fn steer(&mut self, _rule: &Rule, _queue: usize) -> Result<(), Error> {
        Err(Error::Unsupported(format!("{} cannot steer frames to queues; only network cards can", self.name())))
    }

    /// Returns the lending of a queue pair's guest, for a queue of another port; `None` if there is no guest or no such pair.
    fn lending(&mut self, _pair: usize) -> Option<Arc<Lending>> {
        None
    }

    /// Returns the choices that were made when the port was opened (pages, queues, zero-copy or copy), one per
    /// line, each with what would give the better one. They are printed at start, so that no fallback is silent.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}
