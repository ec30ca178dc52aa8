//! What a card counts.

/// The model's own totals, which no driver can clear. Bytes are those of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames written to the driver's buffers.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that the filters let go by.
    pub rx_filtered: u64,
    /// Frames that fit no buffer, or that the driver cannot take as they are.
    pub rx_unfit: u64,
    /// Frames for a queue that is not there.
    pub rx_disabled: u64,
    /// Frames that came while there was no link.
    pub rx_no_link: u64,
    /// Frames put on the wire: segments count.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// What was to be sent and makes no sense.
    pub tx_malformed: u64,
    /// Headers of frames to be sent with fields set that are not the driver's to set. The frames are sent.
    pub tx_odd_headers: u64,
    /// Frames lost for want of memory of the card's own.
    pub tx_no_buffer: u64,
    /// Commands of the control queue.
    pub commands: u64,
    /// Those of them that failed.
    pub commands_failed: u64,
    /// Notifications by the driver.
    pub notifications: u64,
    /// Those of them that name no queue, or not as was negotiated.
    pub wrong_notifications: u64,
    /// Registers accessed in another width than theirs.
    pub wrong_accesses: u64,
    /// Interrupts sent for used buffers.
    pub interrupts: u64,
    /// Accesses to memory that was not mapped.
    pub dma_faults: u64,
    /// How often the card needed a reset.
    pub faults: u64,
    /// Lies told.
    pub lies: u64,
}
