//! What the host offers to a virtio card of this virtual machine, and what it should offer for more speed. Read from the
//! device: as the kernel's driver has agreed with it, where that has the card.

use std::fs;
use std::path::{Path, PathBuf};

use ringpass_ports::largest_rings;
use ringpass_virtio::features::{
    ACCESS_PLATFORM, EVENT_IDX, IN_ORDER, INDIRECT_DESC, MRG_RXBUF, RING_PACKED, VERSION_1,
};

/// What a card was found to have.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Features that device and kernel have agreed on. The kernel asks for all that are used here, but for IN_ORDER:
    /// only new kernels do.
    pub features: u64,
    /// Pairs of queues.
    pub pairs: usize,
    /// Descriptors that an Rx ring may have.
    pub rx_ring: Option<u32>,
    /// Whether the machine has an IOMMU.
    pub iommu: bool,
}

/// Something that the host could offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Wish {
    /// What it is, and what it is good for.
    pub what: &'static str,
    /// Options of QEMU's device.
    pub qemu: &'static str,
    /// The same in a domain of libvirt.
    pub libvirt: &'static str,
}

/// The virtio device of the card at a PCI address, below which the kernel keeps what it knows.
pub fn virtio_device(address: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(Path::new("/sys/bus/pci/devices").join(address)).ok()?.flatten();
    entries.map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("virtio"))
            && path.join("features").exists()
    })
}

/// What the card at a PCI address offers; `None` if it is none of virtio, or if the kernel's driver does not have it.
pub fn of(address: &str) -> Option<Offer> {
    let device = virtio_device(address)?;
    let interface = fs::read_dir(device.join("net")).ok()?.flatten().next()?;
    let features = parse(&fs::read_to_string(device.join("features")).ok()?);
    let queues = fs::read_dir(interface.path().join("queues")).into_iter().flatten().flatten();
    let pairs = queues.filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count();
    let rx_ring = interface.file_name().to_str().and_then(largest_rings).map(|(rx, _)| rx);
    let iommu = fs::read_dir("/sys/kernel/iommu_groups").is_ok_and(|mut groups| groups.next().is_some());
    Some(Offer { features, pairs, rx_ring, iommu })
}

/// Features as the kernel prints them: a digit each, the lowest first.
fn parse(text: &str) -> u64 {
    text.trim().bytes().take(64).enumerate().fold(0, |all, (bit, digit)| all | u64::from(digit == b'1') << bit)
}

impl Offer {
    /// What was found, in a few words.
    pub fn summary(&self) -> String {
        let has = |feature| self.features & feature != 0;
        let interface = if has(VERSION_1) { "modern" } else { "legacy" };
        let rings = if has(RING_PACKED) { "packed" } else { "split" };
        let order = if has(IN_ORDER) { " in-order" } else { "" };
        let size = self.rx_ring.map_or(String::new(), |size| format!(" of {size}"));
        let (pairs, s) = (self.pairs, if self.pairs == 1 { "" } else { "s" });
        format!("{interface}, {rings}{order} rings{size}, {pairs} pair{s} of queues")
    }

    /// What would make the card faster, most useful first; `cpus` are those that could drive it.
    pub fn wishes(&self, cpus: usize) -> Vec<Wish> {
        let lacks = |feature| self.features & feature == 0;
        let wish = |wanted: bool, what, qemu, libvirt| wanted.then_some(Wish { what, qemu, libvirt });
        [
            wish(
                lacks(VERSION_1),
                "the modern interface: doorbells in memory, and what follows",
                "disable-legacy=on,disable-modern=off",
                "<model type='virtio-non-transitional'/>",
            ),
            wish(
                lacks(RING_PACKED),
                "packed rings: fewer cache lines for a packet",
                "packed=on",
                "<driver packed='on'/>",
            ),
            wish(
                lacks(IN_ORDER),
                "rings used in order, unless they are (only new kernels ask for it and show it)",
                "in_order=on",
                "<qemu:property name='in_order' type='bool' value='true'/>",
            ),
            wish(
                lacks(EVENT_IDX),
                "the event index: fewer doorbells and interrupts",
                "event_idx=on",
                "<driver event_idx='on'/>",
            ),
            wish(
                lacks(INDIRECT_DESC),
                "indirect descriptors: a packet of several buffers in one entry of the ring",
                "indirect_desc=on",
                "<qemu:property name='indirect_desc' type='bool' value='true'/>",
            ),
            wish(
                self.pairs < 2 && cpus > 1,
                "a pair of queues for each worker (N in netdev and card)",
                "mq=on (and queues=N on -netdev)",
                "<driver queues='N'/>",
            ),
            wish(
                self.rx_ring.is_some_and(|size| size < 512),
                "longer Rx rings, for bursts",
                "rx_queue_size=1024",
                "<driver rx_queue_size='1024'/>",
            ),
            wish(
                lacks(MRG_RXBUF),
                "mergeable buffers: segments and long frames (--offloads tso, --mtu)",
                "mrg_rxbuf=on",
                "<driver><host mrg_rxbuf='on'/></driver>",
            ),
            wish(
                !self.iommu || lacks(ACCESS_PLATFORM),
                "an IOMMU that the card obeys: VFIO, so no root, and interrupts instead of looking in turns",
                "disable-legacy=on,iommu_platform=on,ats=on (and -device intel-iommu,intremap=on,device-iotlb=on)",
                "<iommu model='intel'><driver intremap='on' iotlb='on'/></iommu>, <driver iommu='on' ats='on'/>",
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_a_digit_each_the_lowest_first() {
        assert_eq!(parse("1010\n"), 0b101);
        let all = "1".repeat(64);
        assert_eq!(parse(&all), u64::MAX);
        assert_eq!(parse(&format!("{}1{}\n", "0".repeat(34), "0".repeat(29))), RING_PACKED);
    }

    #[test]
    fn what_is_there_is_not_wished_for() {
        let features = VERSION_1 | RING_PACKED | IN_ORDER | EVENT_IDX | INDIRECT_DESC | MRG_RXBUF | ACCESS_PLATFORM;
        let best = Offer { features, pairs: 2, rx_ring: Some(1024), iommu: true };
        assert_eq!(best.wishes(2), []);
        assert_eq!(best.summary(), "modern, packed in-order rings of 1024, 2 pairs of queues");

        let wishes = |offer: Offer, cpus| offer.wishes(cpus).iter().map(|wish| wish.qemu).collect::<Vec<_>>();
        assert_eq!(wishes(Offer { features: features & !RING_PACKED, ..best }, 2), ["packed=on"]);
        assert_eq!(wishes(Offer { pairs: 1, ..best }, 1), [""; 0]);
        assert_eq!(wishes(Offer { pairs: 1, ..best }, 2).len(), 1);
        assert_eq!(wishes(Offer { rx_ring: Some(256), ..best }, 2), ["rx_queue_size=1024"]);
        assert_eq!(wishes(Offer { features: 0, iommu: false, pairs: 1, rx_ring: Some(256) }, 2).len(), 9);
        let legacy = Offer { features: 0, iommu: false, pairs: 1, rx_ring: None };
        assert_eq!(legacy.summary(), "legacy, split rings, 1 pair of queues");
    }
}
