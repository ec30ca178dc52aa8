//! Sending frames without packets, for those who copy each frame anyway.

use ringpass_memory::FrameBatch;

/// Takes copies of frames. For sending queues that need no packet, and never refuse a frame.
pub trait FrameSink {
    /// Sends all frames of the batch.
    fn send(&mut self, frames: &FrameBatch);
}
