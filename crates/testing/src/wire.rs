//! The wire of a model of a card.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use ringpass_memory::{Burst, Flags, FrameBatch, Mempool, MempoolConfig};
use ringpass_port::{FrameSink, QueuePair, RxQueue, TxQueue, WakeSource, Wakeable, parse_headers};

use crate::bytes_of;

/// Frames that a test puts on the wire, and frames that the card has sent.
pub struct Frames {
    /// Frames on their way to the card.
    pub to_card: VecDeque<Vec<u8>>,
    /// Whether the wire leaves checksums of frames to the card partial.
    pub partial_checksums: bool,
    /// Size of the segments that frames with partial checksums are to be cut into.
    pub segment: Option<u16>,
    /// Frames that the card has sent.
    pub from_card: Vec<Vec<u8>>,
    /// Number of frames that the wire still accepts from the card.
    pub room: usize,
    /// Whether the wire takes copies of frames rather than packets, in whatever number.
    pub takes_frames: bool,
}

/// A wire that a test controls: what the card receives from, and what it sends to.
#[derive(Clone)]
pub struct Wire {
    frames: Arc<Mutex<Frames>>,
    pool: Mempool,
}

impl Wire {
    /// Creates a wire without frames, which accepts any number.
    ///
    /// # Panics
    ///
    /// If there is no memory for the packets, `buffers` buffers of `size` bytes.
    pub fn new(buffers: usize, size: usize) -> Self {
        let frames = Frames {
            to_card: VecDeque::new(),
            partial_checksums: false,
            segment: None,
            from_card: Vec::new(),
            room: usize::MAX,
            takes_frames: false,
        };
        let pool = Mempool::new(&MempoolConfig { buffers, size, ..Default::default() }).expect("buffers");
        Self { frames: Arc::new(Mutex::new(frames)), pool }
    }

    /// Returns the frames, which no card can reach meanwhile.
    ///
    /// # Panics
    ///
    /// If another thread has panicked while it held them.
    pub fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().expect("no thread has panicked")
    }

    /// Returns the card's ends.
    pub fn ends(&self) -> QueuePair {
        QueuePair { rx: Box::new(self.clone()), tx: Box::new(self.clone()) }
    }
}

impl Wakeable for Wire {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Wire {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let mut frames = self.frames.lock().expect("no thread has panicked");
        while burst.room() > 0
            && let Some(frame) = frames.to_card.pop_front()
        {
            let mut packet = self.pool.alloc().expect("a buffer is left");
            assert!(packet.copy_from(&frame));
            match (frames.partial_checksums.then(|| parse_headers(&frame)).flatten(), frames.segment) {
                (Some(headers), Some(segment)) => packet.request_segmentation(segment, headers),
                (Some(headers), None) => packet.request_checksum(headers),
                (None, _) => {}
            }
            burst.push(packet);
        }
        burst.len() - before
    }
}

impl TxQueue for Wire {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut frames = self.frames.lock().expect("no thread has panicked");
        let count = burst.len().min(frames.room);
        frames.room -= count;
        for packet in burst.drain().take(count) {
            assert!(!packet.flags().any(Flags::CHECKSUM | Flags::TSO), "a wire carries frames alone");
            frames.from_card.push(bytes_of(&packet));
        }
        count
    }

    fn frame_sink(&mut self) -> Option<&mut dyn FrameSink> {
        let takes_frames = self.frames().takes_frames;
        takes_frames.then_some(self)
    }
}

impl FrameSink for Wire {
    fn send(&mut self, frames: &FrameBatch) {
        self.frames().from_card.extend(frames.iter().map(<[u8]>::to_vec));
    }
}

/// A queue that drops what is sent.
pub struct Sink;

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let count = burst.len();
        burst.clear();
        count
    }
}
