//! Offloads: work that the hardware of a port may take over.

use std::fmt;
use std::str::FromStr;

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

/// Parses `all`, `none`, or a list of `checksum`, `hash`, `vlan` and `tso`.
impl FromStr for Offloads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut offloads = Self::default();
        for name in text.split(',') {
            match name {
                "checksum" => offloads.checksum = true,
                "hash" => offloads.hash = true,
                "vlan" => offloads.vlan = true,
                "tso" => (offloads.tso, offloads.checksum) = (true, true),
                "all" if text == "all" => offloads = Self { checksum: true, hash: true, vlan: true, tso: true },
                "none" if text == "none" => {}
                _ => return Err("write all, none, or a list of checksum, hash, vlan, tso".into()),
            }
        }
        Ok(offloads)
    }
}

/// Prints them as they are parsed.
impl fmt::Display for Offloads {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checksum, hash, vlan, tso } = *self;
        let names = [(checksum, "checksum"), (hash, "hash"), (vlan, "vlan"), (tso, "tso")];
        let names: Vec<_> = names.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
        to.write_str(&if names.is_empty() { "none".into() } else { names.join(",") })
    }
}

impl Offloads {
    /// Whether any offload is enabled.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}
