//! Queues that hand over frames without packets, to those who copy each frame anyway.

use ringpass_memory::{Access, Burst, FrameBatch, prefetch};

use crate::RxQueue;

/// Takes copies of frames. For sending queues that need no packet, and never refuse a frame.
pub trait FrameSink {
    /// Sends all frames of the batch.
    fn send(&mut self, frames: &FrameBatch);
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
