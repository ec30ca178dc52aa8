//! What a guest and this port have agreed on, and what that means for frames (VIRTIO 1.3, 5.1).

use ringpass_memory::Flags;
use ringpass_port::Offloads;
use ringpass_virtio::features::*;
use ringpass_virtio::net_header;

/// Shortest frame: an Ethernet header.
pub(crate) const SHORTEST: usize = 14;
/// Bytes of a VLAN tag.
pub(crate) const TAG: usize = 4;
/// The longest that IP has, behind an Ethernet header and two tags.
pub(crate) const LONGEST: usize = SHORTEST + 8 + 65_535;

/// What is offered to guests. What a port without offloads leaves out is among it.
pub const USUAL: u64 = VERSION_1
    | MRG_RXBUF
    | CSUM
    | GUEST_CSUM
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | MTU
    | STATUS
    | GUEST_ANNOUNCE
    | CTRL_VQ
    | CTRL_RX
    | CTRL_VLAN
    | CTRL_RX_EXTRA
    | CTRL_MAC_ADDR
    | MQ
    | EVENT_IDX
    | INDIRECT_DESC
    | RING_PACKED
    | IN_ORDER
    | ANY_LAYOUT;

const TSO_FROM_GUEST: u64 = HOST_TSO4 | HOST_TSO6;
const TSO_TO_GUEST: u64 = GUEST_TSO4 | GUEST_TSO6;

/// Of these features, what a port with such offloads can offer.
pub(crate) fn offered(wanted: u64, offloads: Offloads) -> u64 {
    let checksum = if offloads.checksum || offloads.tso { 0 } else { CSUM | GUEST_CSUM };
    let tso = if offloads.tso { 0 } else { TSO_FROM_GUEST | TSO_TO_GUEST | HOST_ECN | GUEST_ECN };
    wanted & !checksum & !tso
}

/// What follows from the features of a session.
#[derive(Clone, Copy)]
pub(crate) struct Agreed {
    /// Bytes in front of each frame.
    pub(crate) header: usize,
    /// Frames to the guest may lie in several chains.
    pub(crate) merge: bool,
    /// What the guest's headers may tell; `None` if nothing.
    pub(crate) tells: Option<Offloads>,
    /// What the guest takes over of what packets ask for.
    pub(crate) takes: Takes,
    /// The guest wants to know of segments that carry CWR.
    pub(crate) ecn: bool,
}

/// What a guest takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Takes {
    /// Nothing.
    Plain,
    /// Checksums that are not filled in.
    Checksums,
    /// And segments.
    Segments,
}

impl Takes {
    /// The same as requests of packets.
    pub(crate) fn requests(self) -> Flags {
        match self {
            Self::Plain => Flags::default(),
            Self::Checksums => Flags::CHECKSUM,
            Self::Segments => Flags::CHECKSUM | Flags::TSO,
        }
    }
}

impl From<u8> for Takes {
    fn from(number: u8) -> Self {
        [Self::Plain, Self::Checksums, Self::Segments][usize::from(number.min(2))]
    }
}

impl Agreed {
    pub(crate) fn new(features: u64) -> Self {
        let has = |feature| features & feature != 0;
        // Without either, the header ends before the number of buffers (5.1.6.1).
        let header = net_header::LEN + if has(VERSION_1 | MRG_RXBUF) { 2 } else { 0 };
        let offloads = Offloads { checksum: true, tso: has(TSO_FROM_GUEST), ..Offloads::default() };
        let takes = match (has(GUEST_CSUM), features & TSO_TO_GUEST == TSO_TO_GUEST) {
            (false, _) => Takes::Plain,
            (true, false) => Takes::Checksums,
            (true, true) => Takes::Segments,
        };
        let tells = has(CSUM).then_some(offloads);
        Self { header, merge: has(MRG_RXBUF), tells, takes, ecn: has(GUEST_ECN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_offers_what_it_can() {
        let none = offered(USUAL, Offloads::default());
        assert_eq!(none & (CSUM | GUEST_CSUM | HOST_TSO4 | GUEST_TSO6 | HOST_ECN), 0);
        assert_ne!(none & MRG_RXBUF, 0);
        let checksum = offered(USUAL, Offloads { checksum: true, ..Default::default() });
        assert_eq!(checksum & (CSUM | GUEST_CSUM | HOST_TSO4 | GUEST_TSO6), CSUM | GUEST_CSUM);
        assert_eq!(offered(USUAL, Offloads { checksum: true, tso: true, ..Default::default() }), USUAL);
    }

    #[test]
    fn headers_and_offloads_follow_the_features() {
        let legacy = Agreed::new(0);
        assert_eq!((legacy.header, legacy.merge, legacy.takes), (10, false, Takes::Plain));
        assert!(legacy.tells.is_none());
        assert_eq!(Agreed::new(MRG_RXBUF).header, 12);
        assert_eq!(Agreed::new(VERSION_1 | GUEST_CSUM | GUEST_TSO4).takes, Takes::Checksums);
        let all = Agreed::new(USUAL);
        assert_eq!((all.header, all.merge, all.takes), (12, true, Takes::Segments));
        assert!(all.tells.is_some_and(|tells| tells.tso));
        for takes in [Takes::Plain, Takes::Checksums, Takes::Segments] {
            assert_eq!(Takes::from(takes as u8), takes);
        }
    }
}
