//! Numbers of queues, and sizes of bursts and frames.

/// Rx queues of the NIC, and as many Tx queues.
pub(super) const QUEUES: usize = 128;
/// Packets that a ring sends in one step.
pub(super) const BURST: usize = 64;
/// Longest frame that the NIC sends in bytes, with CRC (7.2.1.1).
pub(super) const MAX_FRAME_LEN: usize = 15_872;
/// Minimum length of a frame in bytes, without CRC.
pub(super) const MIN_FRAME_LEN: usize = 60;
