//! Features that the host offers to a virtio card of this virtual machine, and those that it should offer for
//! more speed. Read from sysfs, so only features that the kernel's driver has negotiated are visible.

use std::fs;
use std::path::{Path, PathBuf};

use ringpass_host_ports::max_ring_sizes;
use ringpass_virtio::features::{
    ACCESS_PLATFORM, EVENT_IDX, IN_ORDER, INDIRECT_DESC, MRG_RXBUF, RING_PACKED, VERSION_1,
};

/// Properties of a virtio card.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Features negotiated between device and kernel. The kernel asks for all features that are used here,
    /// except that only new kernels ask for IN_ORDER.
    pub features: u64,
    /// Queue pairs.
    pub pairs: usize,
    /// Largest number of descriptors in an Rx ring.
    pub rx_ring: Option<u32>,
    /// Whether the machine has an IOMMU.
    pub iommu: bool,
}

/// An option that the host could turn on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Suggestion {
    /// Name of the feature, and its benefit.
    pub what: &'static str,
    /// Options of QEMU's device.
    pub qemu: &'static str,
    /// The same in the XML of a libvirt domain.
    pub libvirt: &'static str,
}

/// Returns the sysfs folder of the virtio device of the card at a PCI address.
pub fn virtio_device(address: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(Path::new("/sys/bus/pci/devices").join(address)).ok()?.flatten();
    entries.map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("virtio"))
            && path.join("features").exists()
    })
}

/// Reads the offer for the card at a PCI address. Returns `None` unless it is a virtio card bound to the
/// kernel's driver.
pub fn read_offer(address: &str) -> Option<Offer> {
    let device = virtio_device(address)?;
    let interface = fs::read_dir(device.join("net")).ok()?.flatten().next()?;
    let features = parse(&fs::read_to_string(device.join("features")).ok()?);
    let queues = fs::read_dir(interface.path().join("queues")).into_iter().flatten().flatten();
    let pairs = queues.filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count();
    let rx_ring = interface.file_name().to_str().and_then(max_ring_sizes).map(|(rx, _)| rx);
    let iommu = fs::read_dir("/sys/kernel/iommu_groups").is_ok_and(|mut groups| groups.next().is_some());
    Some(Offer { features, pairs, rx_ring, iommu })
}

/// Parses features as the kernel prints them: one digit for each bit, bit 0 first.
fn parse(text: &str) -> u64 {
    text.trim().bytes().take(64).enumerate().fold(0, |all, (bit, digit)| all | u64::from(digit == b'1') << bit)
}

impl Offer {
    /// Returns a short description.
    pub fn summary(&self) -> String {
        let has = |feature| self.features & feature != 0;
        let interface = if has(VERSION_1) { "modern" } else { "legacy" };
        let rings = if has(RING_PACKED) { "packed" } else { "split" };
        let order = if has(IN_ORDER) { " in-order" } else { "" };
        let size = self.rx_ring.map_or(String::new(), |size| format!(" of {size}"));
        let (pairs, s) = (self.pairs, if self.pairs == 1 { "" } else { "s" });
        format!("{interface}, {rings}{order} rings{size}, {pairs} pair{s} of queues")
    }

    /// Returns options that would make the card faster, most useful first. `cpus` is the number of CPUs that
    /// could drive it.
    pub fn suggestions(&self, cpus: usize) -> Vec<Suggestion> {
        let lacks = |feature| self.features & feature == 0;
        let suggestion = |wanted: bool, what, qemu, libvirt| wanted.then_some(Suggestion { what, qemu, libvirt });
        [
            suggestion(
                lacks(VERSION_1),
                "the modern interface: doorbells in memory, and what follows",
                "disable-legacy=on,disable-modern=off",
                "<model type='virtio-non-transitional'/>",
            ),
            suggestion(
                lacks(RING_PACKED),
                "packed rings: fewer cache lines for a packet",
                "packed=on",
                "<driver packed='on'/>",
            ),
            suggestion(
                lacks(IN_ORDER),
                "rings used in order, unless they are (only new kernels ask for it and show it)",
                "in_order=on",
                "<qemu:property name='in_order' type='bool' value='true'/>",
            ),
            suggestion(
                lacks(EVENT_IDX),
                "the event index: fewer doorbells and interrupts",
                "event_idx=on",
                "<driver event_idx='on'/>",
            ),
            suggestion(
                lacks(INDIRECT_DESC),
                "indirect descriptors: a packet of several buffers in one entry of the ring",
                "indirect_desc=on",
                "<qemu:property name='indirect_desc' type='bool' value='true'/>",
            ),
            suggestion(
                self.pairs < 2 && cpus > 1,
                "a pair of queues for each worker (N in netdev and card)",
                "mq=on (and queues=N on -netdev)",
                "<driver queues='N'/>",
            ),
            suggestion(
                self.rx_ring.is_some_and(|size| size < 512),
                "longer Rx rings, for bursts",
                "rx_queue_size=1024",
                "<driver rx_queue_size='1024'/>",
            ),
            suggestion(
                lacks(MRG_RXBUF),
                "mergeable buffers: segments and long frames (--offloads tso, --mtu)",
                "mrg_rxbuf=on",
                "<driver><host mrg_rxbuf='on'/></driver>",
            ),
            suggestion(
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
        assert_eq!(best.suggestions(2), []);
        assert_eq!(best.summary(), "modern, packed in-order rings of 1024, 2 pairs of queues");

        let suggestions =
            |offer: Offer, cpus| offer.suggestions(cpus).iter().map(|suggestion| suggestion.qemu).collect::<Vec<_>>();
        assert_eq!(suggestions(Offer { features: features & !RING_PACKED, ..best }, 2), ["packed=on"]);
        assert_eq!(suggestions(Offer { pairs: 1, ..best }, 1), [""; 0]);
        assert_eq!(suggestions(Offer { pairs: 1, ..best }, 2).len(), 1);
        assert_eq!(suggestions(Offer { rx_ring: Some(256), ..best }, 2), ["rx_queue_size=1024"]);
        assert_eq!(suggestions(Offer { features: 0, iommu: false, pairs: 1, rx_ring: Some(256) }, 2).len(), 9);
        let legacy = Offer { features: 0, iommu: false, pairs: 1, rx_ring: None };
        assert_eq!(legacy.summary(), "legacy, split rings, 1 pair of queues");
    }
}
