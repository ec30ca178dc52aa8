//! The traits Port, RxQueue and TxQueue.

use std::sync::Arc;

use ringpass_memory::{Burst, Lending};
use serde::Serialize;

use crate::{Error, MacAddress, Offloads, Rule, Spread, Wakeable};

/// How a port is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Pairs of an Rx and a Tx queue.
    pub queues: usize,
    /// Descriptors of each Rx ring, where the port has rings: a power of two, 64 to 4096.
    pub rx_ring: usize,
    /// Descriptors of each Tx ring, likewise.
    pub tx_ring: usize,
    /// Receive frames for any MAC address.
    pub promiscuous: bool,
    /// Largest payload of a frame, in bytes: 68 to 9710.
    pub mtu: usize,
    /// What packets may carry across the port beside their frames.
    pub offloads: Offloads,
    /// Which queue a received frame goes to.
    pub spread: Spread,
    /// Let the card report sent frames by writing its head to memory, where it can, rather than in descriptors.
    pub head_write_back: bool,
    /// When its interface is deleted, wait for one of the same name instead of ending. For TAPs and packet sockets.
    pub rejoin: bool,
    /// Take a card even if its kernel interface carries an address or a default route.
    pub take_over: bool,
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
            rejoin: false,
            take_over: false,
        }
    }
}

/// Counters of a port since it was opened. Bytes are those of the frames, without their checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames that arrived and were lost for want of a descriptor or buffer, or for being faulty.
    pub rx_drops: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames that were taken to be sent and were not.
    pub tx_drops: u64,
}

/// State of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// There is a link.
    pub up: bool,
    /// Its speed in Mbit/s; 0 where that means nothing.
    pub mbps: u32,
}

/// Whether more is to come from a port.
#[derive(Debug)]
pub enum State {
    /// It works.
    Running,
    /// All its input was delivered (a capture file's end).
    Finished,
    /// The card or interface behind it has disappeared or does not answer; the text says what was seen.
    Gone(String),
}

/// Receives packets. Belongs to one thread at a time.
pub trait RxQueue: Wakeable + Send {
    /// Adds received packets to the burst until it has no room or none is left; does not wait. Returns how many.
    fn rx_burst(&mut self, burst: &mut Burst) -> usize;

    /// Whether the port has a link now, if its queue can tell at once; `false` says nothing. The port's control side
    /// ([`Port::link`]) is asked some times a second only.
    fn has_link(&self) -> bool {
        false
    }

    /// When the packets of the last burst were recorded, in nanoseconds since 1970, one for each, where they come from a
    /// file; none where they come as they are sent, or not as they were recorded.
    fn recorded(&self) -> &[u64] {
        &[]
    }

    /// Receives into buffers that a guest lends from now on, where there are some, so that frames for the guest need not be
    /// copied. Before the first burst. Fails where the queue cannot.
    fn borrow_from(&mut self, _lending: &Arc<Lending>) -> Result<(), Error> {
        Err(Error::Other("only queues of Intel's cards and of other guests can be mapped to a guest's".into()))
    }
}

/// Sends packets. Belongs to one thread at a time.
pub trait TxQueue: Send {
    /// Takes packets from the front of the burst and sends them, until it is empty or the queue is full; does not
    /// wait. Returns how many were taken. The rest stays in the burst, for the caller to keep or drop. Frames that the
    /// port can never send (longer than its MTU allows) are taken, dropped and counted.
    fn tx_burst(&mut self, burst: &mut Burst) -> usize;
}

/// A pair of queues, for one thread.
pub struct Queues {
    /// The receiving half.
    pub rx: Box<dyn RxQueue>,
    /// The sending half.
    pub tx: Box<dyn TxQueue>,
}

/// A port: something that frames come from and go to. This is its control side; its queues are taken out once and
/// used on any threads, while statistics and link state are asked for here. What lies behind stops when the port and all
/// its queues are dropped.
///
/// A port or queue that wraps another one must pass on what it does not do itself. A default that it forgot would answer
/// for the inner one, so its implementations deny `clippy::missing_trait_methods`.
pub trait Port: Send {
    /// The address that it was opened by.
    fn name(&self) -> &str;

    /// Its MAC address; zeros where it has none.
    fn mac(&self) -> MacAddress;

    /// The link as it is now.
    fn link(&mut self) -> Link;

    /// Counters since the port was opened.
    fn stats(&mut self) -> Stats;

    /// Further counters that this kind of port has, by name.
    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Whether the port still works. Asked for some times a second.
    fn state(&mut self) -> State;

    /// Takes the queues out, as many as the configuration asked for. Empty the second time.
    fn take_queues(&mut self) -> Vec<Queues>;

    /// Completes what the port writes elsewhere, such as a capture file. To be called at the end, when its queues have been
    /// dropped. The error names what is missing.
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Receives frames for any MAC address, or only the port's own, broadcast and multicast.
    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error>;

    /// Steers received frames to one of the queues. Fails where the port cannot.
    fn steer(&mut self, _rule: &Rule, _queue: usize) -> Result<(), Error> {
        Err(Error::Other(format!("{} cannot steer frames to queues; only network cards can", self.name())))
    }

    /// What a pair's guest lends to a queue of another port; `None` if there is no guest, or pair.
    fn lending(&self, _pair: usize) -> Option<Arc<Lending>> {
        None
    }

    /// Choices that were made when the port was opened (pages, queues, zero-copy or copy), a line each, with what would
    /// give the better one. Printed at start: nothing falls back in silence.
    fn notes(&self) -> Vec<String>;
}
