//! Counters of a device.

/// The model's own totals, which a driver cannot clear. Byte counts are without the virtio header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames written to the driver's buffers.
    pub rx_packets: u64,
    /// Bytes of the frames written to the driver's buffers.
    pub rx_bytes: u64,
    /// Received frames that the filters dropped.
    pub rx_filtered: u64,
    /// Received frames that fit no buffer, or need an offload that the driver did not accept.
    pub rx_unfit: u64,
    /// Received frames for a queue that is not enabled.
    pub rx_disabled: u64,
    /// Frames received while the link was down.
    pub rx_no_link: u64,
    /// Frames sent to the wire, after segmentation.
    pub tx_packets: u64,
    /// Bytes of the frames sent to the wire.
    pub tx_bytes: u64,
    /// Frames to be sent that were dropped as malformed.
    pub tx_malformed: u64,
    /// Headers of frames to be sent with fields set that the driver must leave clear. The frames are sent.
    pub tx_odd_headers: u64,
    /// Frames dropped because the device had no buffer of its own left.
    pub tx_no_buffer: u64,
    /// Commands of the control queue.
    pub commands: u64,
    /// Commands that failed.
    pub commands_failed: u64,
    /// Notifications by the driver.
    pub notifications: u64,
    /// Notifications that named no queue, or had not the form that was negotiated.
    pub wrong_notifications: u64,
    /// Accesses to registers in another width than the register's.
    pub wrong_accesses: u64,
    /// Interrupts sent for used buffers.
    pub interrupts: u64,
    /// Accesses to memory that was not mapped.
    pub dma_faults: u64,
    /// Driver errors after which the device needed a reset.
    pub faults: u64,
    /// Lies told.
    pub lies: u64,
}
