//! Offloads: work that the hardware of a port may take over.

/// Metadata that packets may carry across a port, as [flags](ringpass_memory::Flags) with the same meaning on
/// every port.
///
/// ```
/// use ringpass_port::{Offloads, PortConfig};
///
/// let config = PortConfig { offloads: Offloads { checksum: true, ..Offloads::default() }, ..PortConfig::default() };
/// assert!(config.offloads.any());
/// ```
///
/// If the hardware cannot fulfil a request of a packet to be sent, the port does so in software. If it cannot
/// tell something about a received packet, the packet carries no flag for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Received frames carry checksum results; checksums of sent frames are filled in on request.
    pub checksum: bool,
    /// Received frames carry an RSS hash.
    pub hash: bool,
    /// The outer VLAN tag is kept outside of the frame.
    pub vlan: bool,
    /// Sent packets may request TCP segmentation (TSO). Implies `checksum`.
    pub tso: bool,
}

impl Offloads {
    /// Whether any offload is enabled.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}
