//! A scripted wire.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use ringpass_memory::{Burst, Flags, FrameBatch, Mempool, MempoolConfig};
use ringpass_port::{FrameSink, QueuePair, RxQueue, TxQueue, WakeSource, Wakeable, parse_headers};

/// Frames that a test puts on the wire, and frames that the device has sent.
#[derive(Default)]
pub struct Wire {
    pub to_card: VecDeque<Vec<u8>>,
    /// The wire leaves checksums partial, and segments of this size uncut.
    pub open: bool,
    pub segment: Option<u16>,
    pub from_card: Vec<Vec<u8>>,
    /// Number of frames that the wire still accepts from the device.
    pub room: usize,
    /// The wire takes copies of frames rather than packets, in whatever number.
    pub takes_frames: bool,
}

struct ToCard(Arc<Mutex<Wire>>, Mempool);
struct FromCard(Arc<Mutex<Wire>>);

impl Wakeable for ToCard {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for ToCard {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut wire = self.0.lock().unwrap();
        let mut count = 0;
        while burst.room() > 0
            && let Some(frame) = wire.to_card.pop_front()
        {
            let mut packet = self.1.alloc().expect("a packet");
            assert!(packet.copy_from(&frame));
            match (wire.open.then(|| parse_headers(&frame)).flatten(), wire.segment) {
                (Some(headers), Some(segment)) => packet.request_segmentation(segment, headers),
                (Some(headers), None) => packet.request_checksum(headers),
                (None, _) => {}
            }
            burst.push(packet);
            count += 1;
        }
        count
    }
}

impl TxQueue for FromCard {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut wire = self.0.lock().unwrap();
        let count = burst.len().min(wire.room);
        wire.room -= count;
        for packet in burst.drain().take(count) {
            assert!(!packet.flags().any(Flags::CHECKSUM | Flags::TSO), "a wire carries frames alone");
            wire.from_card.push(packet.segments().flat_map(|segment| segment.to_vec()).collect());
        }
        count
    }

    fn frame_sink(&mut self) -> Option<&mut dyn FrameSink> {
        let takes_frames = self.0.lock().unwrap().takes_frames;
        takes_frames.then_some(self)
    }
}

impl FrameSink for FromCard {
    fn send(&mut self, frames: &FrameBatch) {
        self.0.lock().unwrap().from_card.extend(frames.iter().map(<[u8]>::to_vec));
    }
}

/// Creates a scripted wire; returns its queues and the script.
pub fn scripted() -> (QueuePair, Arc<Mutex<Wire>>) {
    let wire = Arc::new(Mutex::new(Wire { room: usize::MAX, ..Wire::default() }));
    let pool = Mempool::new(&MempoolConfig { buffers: 256, size: 17_000, ..Default::default() }).unwrap();
    (QueuePair { rx: Box::new(ToCard(wire.clone(), pool)), tx: Box::new(FromCard(wire.clone())) }, wire)
}

/// Makes a frame of `len` bytes to an address, with recognisable content.
pub fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
    let header = [&to[..], &[0x02, 0, 0, 0, 0, 0xee], &[0x88, 0xb5]].concat();
    header.into_iter().chain((0..).map(|i: u32| (i * 7 + len as u32) as u8)).take(len).collect()
}
