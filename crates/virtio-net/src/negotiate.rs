//! Which features are taken (VIRTIO 1.3, 2.2 and 5.1.3), and why.

use ringpass_memory::Flags;
use ringpass_port::{Error, PortConfig};
use ringpass_virtio::features::*;
use ringpass_virtio::net_header;

use crate::transport::Pairs;

/// Bytes of a frame beyond its payload: Ethernet header and one VLAN tag.
const OVERHEAD: usize = 18;
/// A frame that is shorter has no type.
pub(crate) const SHORTEST: usize = 14;
/// Longest segment of TCP with its headers: what an IP packet can have.
const LONGEST_SEGMENT: usize = 65_535 + OVERHEAD;
/// Buffers of a frame to be sent at most, as with other drivers.
pub(crate) const MOST_PIECES: usize = 40;
/// Bytes that a queue's indirect tables may have.
const LARGEST_TABLES: usize = 1 << 20;

/// Taken wherever offered.
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

/// What the choice depends on, beside the offer.
pub(crate) struct Circumstances<'a> {
    pub(crate) config: &'a PortConfig,
    /// Bytes that a buffer has room for.
    pub(crate) buffer: usize,
    /// The legacy interface is used.
    pub(crate) legacy: bool,
    /// An IOMMU keeps the device to its memory.
    pub(crate) iommu: bool,
    /// Who has the device use several pairs of queues.
    pub(crate) pairs: Pairs,
}

/// How received frames lie in buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One buffer each.
    Single,
    /// As many buffers as the device takes, one after the other.
    Merged,
    /// Chains of so many buffers, whether a frame needs them or not.
    Chained(usize),
}

/// What was agreed on, and what follows from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) features: u64,
    pub(crate) layout: Layout,
    /// Length of the header in front of each frame.
    pub(crate) header: usize,
    /// The header lies in a descriptor of its own.
    pub(crate) header_apart: bool,
    /// Longest frame: received, and sent as it is.
    pub(crate) longest_received: usize,
    pub(crate) longest_sent: usize,
    /// Packets to be sent may lie in several buffers.
    pub(crate) chains: bool,
    /// The device does not offer GUEST_CSUM, and cannot be told not to leave checksums out. passt leaves them out of
    /// frames that it vouches for.
    pub(crate) left_out: bool,
}

impl Agreed {
    /// Takes of the offer what is of use.
    pub(crate) fn new(offered: u64, circumstances: &Circumstances) -> Result<Self, Error> {
        let &Circumstances { config, buffer, legacy, .. } = circumstances;
        let offered = if legacy { offered & u64::from(u32::MAX) & !VERSION_1 } else { offered & !ANY_LAYOUT };
        check(offered, circumstances)?;
        let offloads = config.offloads;
        let frame = config.mtu + OVERHEAD;
        let mut features = offered & ALWAYS;

        if offloads.checksum || offloads.tso {
            features |= offered & (CSUM | GUEST_CSUM);
        }
        // Segments are taken and sent over either version of IP, or not at all: packets make no difference.
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
            true => Layout::Merged,
            false if long => Layout::Chained((frame + header).div_ceil(buffer)),
            false => Layout::Single,
        };

        features |= offered & ANY_LAYOUT;
        let any_layout = features & (ANY_LAYOUT | VERSION_1) != 0;
        // Commands with their header in one descriptor need any layout, too.
        if any_layout && offered & CTRL_VQ != 0 {
            features |= offered & (CTRL_VQ | CTRL_RX | CTRL_MAC_ADDR);
        }
        if config.queues > 1 && (features & CTRL_VQ != 0 || circumstances.pairs == Pairs::ByTransport) {
            features |= offered & MQ;
        }
        let chains = long || offloads.tso;
        let tables = Self::tables(chains) * 16 * config.tx_ring.max(config.rx_ring);
        if tables <= LARGEST_TABLES && offered & INDIRECT_DESC != 0 {
            // The rings are in order only if each packet takes one descriptor.
            features |= offered & (INDIRECT_DESC | IN_ORDER);
        }
        let longest_received = if segments { LONGEST_SEGMENT } else { frame };
        let header_apart = !any_layout;
        let left_out = offered & GUEST_CSUM == 0;
        Ok(Self { features, layout, header, header_apart, longest_received, longest_sent: frame, chains, left_out })
    }

    /// Whether all of these were agreed on.
    pub(crate) fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// Entries of the indirect tables of a Tx queue: buffers of a packet and a header apart.
    fn tables(chains: bool) -> usize {
        1 + if chains { MOST_PIECES } else { 1 }
    }

    /// Of either kind of queue.
    pub(crate) fn tx_tables(&self) -> usize {
        Self::tables(self.chains)
    }

    /// Likewise, of an Rx queue.
    pub(crate) fn rx_tables(&self) -> usize {
        let buffers = match self.layout {
            Layout::Single | Layout::Merged => 1,
            Layout::Chained(buffers) => buffers,
        };
        buffers + usize::from(self.header_apart)
    }

    /// What packets to be sent may ask of the device.
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

    /// What was agreed on, for people, and what else the host could offer.
    pub(crate) fn notes(&self, config: &PortConfig) -> Vec<String> {
        let ring = if self.has(RING_PACKED) { "packed rings" } else { "split rings" };
        let mut named = vec![ring.to_owned()];
        named.extend(NAMES.iter().filter(|(mask, _)| self.has(*mask)).map(|(_, name)| (*name).to_owned()));
        named.push(match self.layout {
            Layout::Single => "a buffer for each frame".into(),
            Layout::Merged => "mergeable buffers".into(),
            Layout::Chained(buffers) => format!("{buffers} buffers for each frame (mergeable ones take fewer)"),
        });
        let mut notes = vec![format!("virtio: {}", named.join(", "))];
        if !self.has(RING_PACKED) {
            notes.push("the host could offer packed rings, which are faster (QEMU: packed=on)".into());
        }
        notes.extend(self.software(config));
        notes
    }

    /// What is asked for and the device does not do.
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

/// What is told of the agreement beside the rings.
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

/// Offers that cannot be worked with.
fn check(offered: u64, circumstances: &Circumstances) -> Result<(), Error> {
    let &Circumstances { config, legacy, iommu, pairs, .. } = circumstances;
    let ensure = |right, otherwise: &str| if right { Ok(()) } else { Err(Error::Other(otherwise.to_owned())) };
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

    fn agreed(offered: u64, config: PortConfig, legacy: bool) -> Agreed {
        Agreed::new(
            offered,
            &Circumstances { config: &config, buffer: 2048, legacy, iommu: false, pairs: Pairs::ByCommand },
        )
        .unwrap()
    }

    #[test]
    fn a_plain_port_takes_no_offloads_and_no_mergeable_buffers() {
        let all = !NOTIFY_ON_EMPTY;
        let agreed = agreed(all, PortConfig::default(), false);
        let offloads = CSUM | GUEST_CSUM | GUEST_TSO4 | HOST_TSO4 | GUEST_UFO | MRG_RXBUF | MQ | ANY_LAYOUT;
        assert_eq!(agreed.features & offloads, 0);
        assert!(agreed.has(RING_PACKED | IN_ORDER | EVENT_IDX | RING_RESET | CTRL_VQ));
        assert_eq!((agreed.layout, agreed.header, agreed.header_apart), (Layout::Single, 12, false));
    }

    #[test]
    fn offloads_bring_what_they_depend_on() {
        let offloads = Offloads { checksum: true, tso: true, ..Default::default() };
        let config = PortConfig { offloads, ..Default::default() };
        let all = MODERN | CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | HOST_TSO4 | HOST_TSO6;
        let full = agreed(all, config, false);
        assert!(full.has(GUEST_TSO4 | HOST_TSO6 | MRG_RXBUF));
        assert_eq!((full.layout, full.hardware()), (Layout::Merged, Flags::CHECKSUM | Flags::TSO));
        let cases = [
            (MRG_RXBUF, GUEST_TSO4 | GUEST_TSO6),
            (GUEST_CSUM, GUEST_TSO4 | GUEST_TSO6),
            (CSUM, HOST_TSO4 | HOST_TSO6),
            (HOST_TSO6, HOST_TSO4),
        ];
        for (without, absent) in cases {
            assert_eq!(agreed(all & !without, config, false).features & absent, 0, "{without:#x}");
        }
    }

    #[test]
    fn several_pairs_take_a_control_queue_or_a_transport_that_does_without() {
        let several = PortConfig { queues: 2, ..Default::default() };
        let agreed = |offered, pairs| {
            let circumstances = Circumstances { config: &several, buffer: 2048, legacy: false, iommu: false, pairs };
            Agreed::new(offered, &circumstances).map(|agreed| agreed.features & (MQ | CTRL_VQ))
        };
        assert_eq!(agreed(VERSION_1 | MQ | CTRL_VQ, Pairs::ByCommand).ok(), Some(MQ | CTRL_VQ));
        assert_eq!(agreed(VERSION_1 | MQ, Pairs::ByTransport).ok(), Some(MQ));
        assert!(agreed(VERSION_1 | MQ, Pairs::ByCommand).is_err());
        assert!(agreed(VERSION_1 | CTRL_VQ, Pairs::ByTransport).is_err());
    }

    #[test]
    fn long_frames_are_merged_or_chained() {
        let config = PortConfig { mtu: 9000, ..Default::default() };
        assert_eq!(agreed(MODERN, config, false).layout, Layout::Merged);
        let chained = agreed(MODERN & !MRG_RXBUF, config, false);
        assert_eq!((chained.layout, chained.rx_tables()), (Layout::Chained(5), 5));
        assert_eq!(chained.tx_tables(), MOST_PIECES + 1);
    }

    #[test]
    fn legacy_devices_have_a_short_header_which_may_lie_apart() {
        let config = PortConfig::default();
        let old = agreed(MAC | CTRL_VQ | CTRL_RX | RING_PACKED | VERSION_1, config, true);
        assert_eq!((old.features, old.header, old.header_apart), (MAC, 10, true));
        let old = agreed(MAC | CTRL_VQ | ANY_LAYOUT, config, true);
        assert_eq!((old.features, old.header, old.header_apart), (MAC | CTRL_VQ | ANY_LAYOUT, 10, false));
        let merged = agreed(MRG_RXBUF, PortConfig { mtu: 9000, ..config }, true);
        assert_eq!((merged.header, merged.layout), (12, Layout::Merged));
    }

    #[test]
    fn in_order_needs_tables_and_tables_have_a_limit() {
        let config = PortConfig { mtu: 9000, tx_ring: 4096, ..Default::default() };
        assert_eq!(agreed(MODERN | IN_ORDER, config, false).features & (IN_ORDER | INDIRECT_DESC), 0);
        let plain = PortConfig { tx_ring: 4096, ..Default::default() };
        assert!(agreed(MODERN | IN_ORDER, plain, false).has(IN_ORDER | INDIRECT_DESC));
        assert!(!agreed(MODERN & !INDIRECT_DESC | IN_ORDER, plain, false).has(IN_ORDER));
    }

    #[test]
    fn what_cannot_work_is_refused_in_one_line() {
        let refused = |offered, config: PortConfig, iommu| {
            let legacy = offered & VERSION_1 == 0 && offered != 0;
            let circumstances = Circumstances { config: &config, buffer: 2048, legacy, iommu, pairs: Pairs::ByCommand };
            Agreed::new(offered, &circumstances).unwrap_err().to_string()
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
