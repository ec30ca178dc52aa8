//! Negotiated virtio features and their meaning for frames (VIRTIO 1.3, 5.1).

use ringpass_memory::Flags;
use ringpass_port::Offloads;
use ringpass_virtio::features::*;
use ringpass_virtio::net_header;

/// Length of the shortest frame, an Ethernet header.
pub(crate) const MIN_FRAME_LEN: usize = 14;
/// Length of a VLAN tag.
pub(crate) const VLAN_TAG_LEN: usize = 4;
/// Length of the longest frame: the longest IP packet behind an Ethernet header and two VLAN tags.
pub(crate) const MAX_FRAME_LEN: usize = MIN_FRAME_LEN + 8 + 65_535;

/// Features offered to guests by default. [`Vhost::new`](crate::Vhost::new) removes those that need an
/// offload the port lacks.
pub const DEFAULT_FEATURES: u64 = VERSION_1
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

/// Returns those of the `wanted` features that a port with these offloads can offer.
pub(crate) fn offered(wanted: u64, offloads: Offloads) -> u64 {
    let checksum = if offloads.checksum || offloads.tso { 0 } else { CSUM | GUEST_CSUM };
    let tso = if offloads.tso { 0 } else { TSO_FROM_GUEST | TSO_TO_GUEST | HOST_ECN | GUEST_ECN };
    wanted & !checksum & !tso
}

/// Properties that follow from the features of a session.
#[derive(Clone, Copy)]
pub(crate) struct Negotiated {
    /// Length of the virtio-net header in front of each frame.
    pub(crate) header: usize,
    /// Whether a frame to the guest may take several chains (MRG_RXBUF).
    pub(crate) merge: bool,
    /// Offloads that the guest's headers may request; `None` if its headers are ignored.
    pub(crate) host_offloads: Option<Offloads>,
    /// Offloads that the guest accepts in place of finished frames.
    pub(crate) guest_offloads: GuestOffloads,
    /// Whether the guest wants to be told of segments that carry CWR (GUEST_ECN).
    pub(crate) ecn: bool,
}

/// Offloads that a guest accepts in received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum GuestOffloads {
    /// No offload.
    Plain,
    /// Frames with a partial checksum.
    Checksums,
    /// Frames with a partial checksum, and TCP segments larger than the MTU.
    Segments,
}

impl GuestOffloads {
    /// Returns the corresponding request flags of packets.
    pub(crate) fn requests(self) -> Flags {
        match self {
            Self::Plain => Flags::default(),
            Self::Checksums => Flags::CHECKSUM,
            Self::Segments => Flags::CHECKSUM | Flags::TSO,
        }
    }
}

impl From<u8> for GuestOffloads {
    fn from(number: u8) -> Self {
        [Self::Plain, Self::Checksums, Self::Segments][usize::from(number.min(2))]
    }
}

impl Negotiated {
    pub(crate) fn new(features: u64) -> Self {
        let has = |feature| features & feature != 0;
        // Without either feature the header has no `num_buffers` field (5.1.6.1).
        let header = net_header::LEN + if has(VERSION_1 | MRG_RXBUF) { 2 } else { 0 };
        let offloads = Offloads { checksum: true, tso: has(TSO_FROM_GUEST), ..Offloads::default() };
        let guest_offloads = match (has(GUEST_CSUM), features & TSO_TO_GUEST == TSO_TO_GUEST) {
            (false, _) => GuestOffloads::Plain,
            (true, false) => GuestOffloads::Checksums,
            (true, true) => GuestOffloads::Segments,
        };
        let host_offloads = has(CSUM).then_some(offloads);
        Self { header, merge: has(MRG_RXBUF), host_offloads, guest_offloads, ecn: has(GUEST_ECN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_offers_what_it_can() {
        let none = offered(DEFAULT_FEATURES, Offloads::default());
        assert_eq!(none & (CSUM | GUEST_CSUM | HOST_TSO4 | GUEST_TSO6 | HOST_ECN), 0);
        assert_ne!(none & MRG_RXBUF, 0);
        let checksum = offered(DEFAULT_FEATURES, Offloads { checksum: true, ..Default::default() });
        assert_eq!(checksum & (CSUM | GUEST_CSUM | HOST_TSO4 | GUEST_TSO6), CSUM | GUEST_CSUM);
        assert_eq!(
            offered(DEFAULT_FEATURES, Offloads { checksum: true, tso: true, ..Default::default() }),
            DEFAULT_FEATURES
        );
    }

    #[test]
    fn headers_and_offloads_follow_the_features() {
        let legacy = Negotiated::new(0);
        assert_eq!((legacy.header, legacy.merge, legacy.guest_offloads), (10, false, GuestOffloads::Plain));
        assert!(legacy.host_offloads.is_none());
        assert_eq!(Negotiated::new(MRG_RXBUF).header, 12);
        assert_eq!(Negotiated::new(VERSION_1 | GUEST_CSUM | GUEST_TSO4).guest_offloads, GuestOffloads::Checksums);
        let all = Negotiated::new(DEFAULT_FEATURES);
        assert_eq!((all.header, all.merge, all.guest_offloads), (12, true, GuestOffloads::Segments));
        assert!(all.host_offloads.is_some_and(|host_offloads| host_offloads.tso));
        for guest_offloads in [GuestOffloads::Plain, GuestOffloads::Checksums, GuestOffloads::Segments] {
            assert_eq!(GuestOffloads::from(guest_offloads as u8), guest_offloads);
        }
    }
}
