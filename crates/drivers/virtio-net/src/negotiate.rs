//! Feature negotiation (VIRTIO 1.3, 2.2 and 5.1.3): which features are accepted, and why.

use ringpass_memory::Flags;
use ringpass_port::{Error, PortConfig};
use ringpass_virtio::features::*;
use ringpass_virtio::net_header;

use crate::transport::Pairs;

/// Bytes of a frame beyond its payload: Ethernet header and one VLAN tag.
const OVERHEAD: usize = 18;
/// Shortest valid frame in bytes: an Ethernet header. Shorter frames have no EtherType.
pub(crate) const MIN_FRAME_LEN: usize = 14;
/// Longest TCP segment (TSO) in bytes: the longest IP packet, with its Ethernet header.
const MAX_TSO_LEN: usize = 65_535 + OVERHEAD;
/// Largest number of buffers per frame to be sent, the same as in the other drivers.
pub(crate) const MAX_SEGMENTS: usize = 40;
/// Largest size of a queue's indirect tables in bytes.
const MAX_TABLE_BYTES: usize = 1 << 20;

/// Features accepted whenever they are offered.
const ALWAYS: u64 = VERSION_1
    | MAC
    | STATUS
    | MTU
    | EVENT_IDX
    | RING_PACKED
    | ACCESS_PLATFORM
    | ORDER_PLATFORM
    | NOTIFICATION_DATA
    | RING_RESET;

/// The conditions that feature selection depends on, besides the offered features.
pub(crate) struct NegotiationContext<'a> {
    pub(crate) config: &'a PortConfig,
    /// Size of a buffer in bytes.
    pub(crate) buffer: usize,
    /// Whether the legacy interface is used.
    pub(crate) legacy: bool,
    /// Whether an IOMMU restricts the device to memory mapped for it.
    pub(crate) iommu: bool,
    /// How the device is told to use several queue pairs.
    pub(crate) pairs: Pairs,
}

/// How received frames are laid out in buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RxLayout {
    /// One buffer per frame.
    Single,
    /// As many buffers as the device needs, one after the other (MRG_RXBUF).
    Merged,
    /// Chains of this many buffers, whether a frame fills them or not.
    Chained(usize),
}

/// The negotiated features, and what follows from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated {
    pub(crate) features: u64,
    pub(crate) layout: RxLayout,
    /// Length in bytes of the header in front of each frame.
    pub(crate) header: usize,
    /// Whether the header needs a descriptor of its own.
    pub(crate) separate_header: bool,
    /// Longest frame in bytes: received, and sent without segmentation.
    pub(crate) max_rx_len: usize,
    pub(crate) max_tx_len: usize,
    /// Whether packets to be sent may lie in several buffers.
    pub(crate) chains: bool,
    /// Whether received frames may lack checksums that the device vouches for.
    ///
    /// This is so if the device does not offer GUEST_CSUM, because then it cannot be told to fill in checksums.
    /// passt leaves them out of such frames.
    pub(crate) may_omit_checksum: bool,
}

impl Negotiated {
    /// Selects the useful ones of the offered features; an error if the device cannot be used with them.
    pub(crate) fn new(offered: u64, circumstances: &NegotiationContext) -> Result<Self, Error> {
        let &NegotiationContext { config, buffer, legacy, .. } = circumstances;
        let offered = if legacy { offered & u64::from(u32::MAX) & !VERSION_1 } else { offered & !ANY_LAYOUT };
        check(offered, circumstances)?;
        let offloads = config.offloads;
        let frame = config.mtu + OVERHEAD;
        let mut features = offered & ALWAYS;

        if offloads.checksum || offloads.tso {
            features |= offered & (CSUM | GUEST_CSUM);
        }
        // Segmentation is accepted for IPv4 and IPv6 together or not at all, because packets do not distinguish
        // the two.
        const HOST_TSO: u64 = HOST_TSO4 | HOST_TSO6;
        if offloads.tso && features & CSUM != 0 && offered & HOST_TSO == HOST_TSO {
            features |= offered & (HOST_TSO | HOST_ECN);
        }
        if offloads.tso && features & GUEST_CSUM != 0 && offered & MRG_RXBUF != 0 {
            features |= offered & (GUEST_TSO4 | GUEST_TSO6);
        }
        let segments = features & (GUEST_TSO4 | GUEST_TSO6) != 0;
        if segments {
            features |= offered & GUEST_ECN;
        }

        let header = net_header::LEN + 2;
        let long = frame + header > buffer;
        if long || segments {
            features |= offered & MRG_RXBUF;
        }
        let header = if features & (VERSION_1 | MRG_RXBUF) != 0 { header } else { net_header::LEN };
        let layout = match features & MRG_RXBUF != 0 {
            true => RxLayout::Merged,
            false if long => RxLayout::Chained((frame + header).div_ceil(buffer)),
            false => RxLayout::Single,
        };

        features |= offered & ANY_LAYOUT;
        let any_layout = features & (ANY_LAYOUT | VERSION_1) != 0;
        // Commands are sent with their header in the same descriptor, which needs ANY_LAYOUT too.
        if any_layout && offered & CTRL_VQ != 0 {
            features |= offered & (CTRL_VQ | CTRL_RX | CTRL_MAC_ADDR);
        }
        if config.queues > 1 && (features & CTRL_VQ != 0 || circumstances.pairs == Pairs::ByTransport) {
            features |= offered & MQ;
        }
        let chains = long || offloads.tso;
        let tables = Self::tables(chains) * 16 * config.tx_ring.max(config.rx_ring);
        if tables <= MAX_TABLE_BYTES && offered & INDIRECT_DESC != 0 {
            // IN_ORDER needs each packet to take one descriptor, hence indirect tables.
            features |= offered & (INDIRECT_DESC | IN_ORDER);
        }
        let max_rx_len = if segments { MAX_TSO_LEN } else { frame };
        let separate_header = !any_layout;
        let may_omit_checksum = offered & GUEST_CSUM == 0;
        Ok(Self { features, layout, header, separate_header, max_rx_len, max_tx_len: frame, chains, may_omit_checksum })
    }

    /// Returns whether all of these features were negotiated.
    pub(crate) fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// Returns the indirect table entries needed per Tx packet: its buffers, and one for a separate header.
    fn tables(chains: bool) -> usize {
        1 + if chains { MAX_SEGMENTS } else { 1 }
    }

    /// Returns the entries of each indirect table of a Tx queue.
    pub(crate) fn tx_tables(&self) -> usize {
        Self::tables(self.chains)
    }

    /// Returns the entries of each indirect table of an Rx queue.
    pub(crate) fn rx_tables(&self) -> usize {
        let buffers = match self.layout {
            RxLayout::Single | RxLayout::Merged => 1,
            RxLayout::Chained(buffers) => buffers,
        };
        buffers + usize::from(self.separate_header)
    }

    /// Returns the requests of packets that the device can carry out.
    pub(crate) fn hardware(&self) -> Flags {
        let mut flags = Flags::default();
        if self.has(CSUM) {
            flags |= Flags::CHECKSUM;
        }
        if self.has(HOST_TSO4 | HOST_TSO6) {
            flags |= Flags::TSO;
        }
        flags
    }

    /// Describes the negotiated features for the user, and features that the host could add.
    pub(crate) fn notes(&self, config: &PortConfig) -> Vec<String> {
        let ring = if self.has(RING_PACKED) { "packed rings" } else { "split rings" };
        let mut named = vec![ring.to_owned()];
        named.extend(NAMES.iter().filter(|(mask, _)| self.has(*mask)).map(|(_, name)| (*name).to_owned()));
        named.push(match self.layout {
            RxLayout::Single => "a buffer for each frame".into(),
            RxLayout::Merged => "mergeable buffers".into(),
            RxLayout::Chained(buffers) => format!("{buffers} buffers for each frame (mergeable ones take fewer)"),
        });
        let mut notes = vec![format!("virtio: {}", named.join(", "))];
        if !self.has(RING_PACKED) {
            notes.push("the host could offer packed rings, which are faster (QEMU: packed=on)".into());
        }
        notes.extend(self.software(config));
        notes
    }

    /// Describes the configured offloads that the device does not support.
    fn software(&self, config: &PortConfig) -> Option<String> {
        let offloads = config.offloads;
        let work = [
            (offloads.checksum && !self.has(CSUM), "checksums"),
            (offloads.tso && !self.has(HOST_TSO4 | HOST_TSO6), "segmentation"),
            (offloads.vlan, "VLAN tags of sent frames"),
        ];
        let work: Vec<&str> = work.iter().filter(|(wanted, _)| *wanted).map(|&(_, what)| what).collect();
        let mut parts = Vec::new();
        if !work.is_empty() {
            parts.push(format!("in software: {}", work.join(", ")));
        }
        if offloads.tso && !self.has(GUEST_TSO4 | GUEST_TSO6) {
            parts.push("no segments are received (they take GUEST_TSO and mergeable buffers)".into());
        }
        if offloads.hash {
            parts.push("received frames have no hash".into());
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Features named in the notes, besides the kind of ring.
const NAMES: [(u64, &str); 9] = [
    (IN_ORDER, "in order"),
    (INDIRECT_DESC, "indirect descriptors"),
    (EVENT_IDX, "event index"),
    (NOTIFICATION_DATA, "notification data"),
    (RING_RESET, "queue reset"),
    (CSUM, "checksums"),
    (HOST_TSO4 | HOST_TSO6, "segmentation"),
    (GUEST_TSO4 | GUEST_TSO6, "received segments"),
    (CTRL_VQ, "control queue"),
];

/// Rejects offers that cannot be used.
fn check(offered: u64, circumstances: &NegotiationContext) -> Result<(), Error> {
    let &NegotiationContext { config, legacy, iommu, pairs, .. } = circumstances;
    let ensure = |right, otherwise: &str| if right { Ok(()) } else { Err(Error::Unsupported(otherwise.to_owned())) };
    ensure(
        legacy || offered & VERSION_1 != 0,
        "the card's modern interface lacks VERSION_1, which it must offer; use it with its legacy interface",
    )?;
    ensure(
        !iommu || offered & ACCESS_PLATFORM != 0,
        "the card would bypass the IOMMU (it does not offer ACCESS_PLATFORM); in QEMU: \
         iommu_platform=on,disable-legacy=on, or use the card without VFIO",
    )?;
    let several = match pairs {
        Pairs::ByCommand => MQ | CTRL_VQ,
        Pairs::ByTransport => MQ,
    };
    let several = config.queues == 1 || offered & several == several;
    let queues = config.queues;
    ensure(
        several,
        &format!("{queues} queues, but the card has one pair; in QEMU: -netdev …,queues={queues} and mq=on"),
    )
}

#[cfg(test)]
mod tests {
    use ringpass_port::Offloads;

    use super::*;

    const MODERN: u64 = VERSION_1 | MAC | STATUS | CTRL_VQ | CTRL_RX | MQ | MRG_RXBUF | INDIRECT_DESC;

    fn negotiated(offered: u64, config: PortConfig, legacy: bool) -> Negotiated {
        Negotiated::new(
            offered,
            &NegotiationContext { config: &config, buffer: 2048, legacy, iommu: false, pairs: Pairs::ByCommand },
        )
        .unwrap()
    }

    #[test]
    fn a_plain_port_takes_no_offloads_and_no_mergeable_buffers() {
        let all = !NOTIFY_ON_EMPTY;
        let negotiated = negotiated(all, PortConfig::default(), false);
        let offloads = CSUM | GUEST_CSUM | GUEST_TSO4 | HOST_TSO4 | GUEST_UFO | MRG_RXBUF | MQ | ANY_LAYOUT;
        assert_eq!(negotiated.features & offloads, 0);
        assert!(negotiated.has(RING_PACKED | IN_ORDER | EVENT_IDX | RING_RESET | CTRL_VQ));
        assert_eq!((negotiated.layout, negotiated.header, negotiated.separate_header), (RxLayout::Single, 12, false));
    }

    #[test]
    fn offloads_bring_what_they_depend_on() {
        let offloads = Offloads { checksum: true, tso: true, ..Default::default() };
        let config = PortConfig { offloads, ..Default::default() };
        let all = MODERN | CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | HOST_TSO4 | HOST_TSO6;
        let full = negotiated(all, config, false);
        assert!(full.has(GUEST_TSO4 | HOST_TSO6 | MRG_RXBUF));
        assert_eq!((full.layout, full.hardware()), (RxLayout::Merged, Flags::CHECKSUM | Flags::TSO));
        let cases = [
            (MRG_RXBUF, GUEST_TSO4 | GUEST_TSO6),
            (GUEST_CSUM, GUEST_TSO4 | GUEST_TSO6),
            (CSUM, HOST_TSO4 | HOST_TSO6),
            (HOST_TSO6, HOST_TSO4),
        ];
        for (without, absent) in cases {
            assert_eq!(negotiated(all & !without, config, false).features & absent, 0, "{without:#x}");
        }
    }

    #[test]
    fn several_pairs_take_a_control_queue_or_a_transport_that_does_without() {
        let several = PortConfig { queues: 2, ..Default::default() };
        let negotiated = |offered, pairs| {
            let circumstances =
                NegotiationContext { config: &several, buffer: 2048, legacy: false, iommu: false, pairs };
            Negotiated::new(offered, &circumstances).map(|negotiated| negotiated.features & (MQ | CTRL_VQ))
        };
        assert_eq!(negotiated(VERSION_1 | MQ | CTRL_VQ, Pairs::ByCommand).ok(), Some(MQ | CTRL_VQ));
        assert_eq!(negotiated(VERSION_1 | MQ, Pairs::ByTransport).ok(), Some(MQ));
        assert!(negotiated(VERSION_1 | MQ, Pairs::ByCommand).is_err());
        assert!(negotiated(VERSION_1 | CTRL_VQ, Pairs::ByTransport).is_err());
    }

    #[test]
    fn long_frames_are_merged_or_chained() {
        let config = PortConfig { mtu: 9000, ..Default::default() };
        assert_eq!(negotiated(MODERN, config, false).layout, RxLayout::Merged);
        let chained = negotiated(MODERN & !MRG_RXBUF, config, false);
        assert_eq!((chained.layout, chained.rx_tables()), (RxLayout::Chained(5), 5));
        assert_eq!(chained.tx_tables(), MAX_SEGMENTS + 1);
    }

    #[test]
    fn legacy_devices_have_a_short_header_which_may_lie_apart() {
        let config = PortConfig::default();
        let old = negotiated(MAC | CTRL_VQ | CTRL_RX | RING_PACKED | VERSION_1, config, true);
        assert_eq!((old.features, old.header, old.separate_header), (MAC, 10, true));
        let old = negotiated(MAC | CTRL_VQ | ANY_LAYOUT, config, true);
        assert_eq!((old.features, old.header, old.separate_header), (MAC | CTRL_VQ | ANY_LAYOUT, 10, false));
        let merged = negotiated(MRG_RXBUF, PortConfig { mtu: 9000, ..config }, true);
        assert_eq!((merged.header, merged.layout), (12, RxLayout::Merged));
    }

    #[test]
    fn in_order_needs_tables_and_tables_have_a_limit() {
        let config = PortConfig { mtu: 9000, tx_ring: 4096, ..Default::default() };
        assert_eq!(negotiated(MODERN | IN_ORDER, config, false).features & (IN_ORDER | INDIRECT_DESC), 0);
        let plain = PortConfig { tx_ring: 4096, ..Default::default() };
        assert!(negotiated(MODERN | IN_ORDER, plain, false).has(IN_ORDER | INDIRECT_DESC));
        assert!(!negotiated(MODERN & !INDIRECT_DESC | IN_ORDER, plain, false).has(IN_ORDER));
    }

    #[test]
    fn what_cannot_work_is_refused_in_one_line() {
        let refused = |offered, config: PortConfig, iommu| {
            let legacy = offered & VERSION_1 == 0 && offered != 0;
            let circumstances =
                NegotiationContext { config: &config, buffer: 2048, legacy, iommu, pairs: Pairs::ByCommand };
            Negotiated::new(offered, &circumstances).unwrap_err().to_string()
        };
        let several = PortConfig { queues: 2, ..Default::default() };
        for (text, cause, remedy) in [
            (refused(0, PortConfig::default(), false), "VERSION_1", "legacy"),
            (refused(VERSION_1, PortConfig::default(), true), "bypass the IOMMU", "iommu_platform=on"),
            (refused(MAC, PortConfig::default(), true), "bypass the IOMMU", "iommu_platform=on"),
            (refused(VERSION_1 | CTRL_VQ, several, false), "one pair", "mq=on"),
            (refused(VERSION_1 | MQ, several, false), "one pair", "mq=on"),
        ] {
            assert!(text.contains(cause) && text.contains(remedy) && !text.contains('\n'), "{text}");
        }
    }
}
