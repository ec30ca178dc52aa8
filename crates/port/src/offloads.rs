//! Which work the hardware of a port may take over.

/// What packets may carry across a port beside their frames, as [flags](ringpass_memory::Flags) with the same meaning on
/// every port. What a port's hardware cannot do for a packet to be sent, the port does in software; what it does not
/// know of a received one, it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Verdicts on checksums of received frames; checksums to be filled in of those to be sent.
    pub checksum: bool,
    /// The RSS hash of received frames.
    pub hash: bool,
    /// The outer VLAN tag lies beside the frame.
    pub vlan: bool,
    /// Segments that are to be cut into frames (TSO). Implies `checksum`.
    pub tso: bool,
}

impl Offloads {
    /// Whether there are any.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}
