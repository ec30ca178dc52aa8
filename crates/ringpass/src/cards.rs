//! The machine's network cards, from the kernel's point of view.

use std::fs;
use std::path::{Path, PathBuf};

use nix::ifaddrs::getifaddrs;
use ringpass_pci::{DeviceId, SysfsPci};

pub mod offer;

/// A network card.
pub struct NetworkCard {
    /// PCI address.
    pub address: String,
    /// Vendor and device ID.
    pub id: DeviceId,
    /// Kernel driver bound to the card.
    pub driver: Option<String>,
    /// Names of the card's kernel interfaces.
    pub interfaces: Vec<String>,
    /// NUMA node.
    pub numa_node: Option<u32>,
}

fn file(address: &str, name: &str) -> String {
    let path = Path::new("/sys/bus/pci/devices").join(address).join(name);
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Returns all PCI functions of class 0x02 (PCI Code and ID Assignment 1.11, 1.3).
pub fn all() -> Vec<NetworkCard> {
    let network = |address: &String| file(address, "class").starts_with("0x02");
    let card = |address: String| {
        let id = SysfsPci::identify(&address).ok()?;
        let (driver, interfaces) = (SysfsPci::kernel_driver(&address), interfaces(&address));
        Some(NetworkCard { id, driver, interfaces, numa_node: SysfsPci::numa_node_of(&address), address })
    };
    ringpass_pci::list_devices().into_iter().filter(network).filter_map(card).collect()
}

/// Returns the names of the kernel's Ethernet interfaces that belong to none of these cards, such as those of TAPs and veth pairs.
pub fn other_interfaces(cards: &[NetworkCard]) -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let is_ethernet = |name: &String| {
        let of = |file| fs::read_to_string(format!("/sys/class/net/{name}/{file}")).unwrap_or_default();
        let kind: u16 = of("type").trim().parse().unwrap_or_default();
        kind == nix::libc::ARPHRD_ETHER
    };
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| is_ethernet(name) && !cards.iter().any(|card| card.interfaces.contains(name)));
    names.sort();
    names
}

/// Returns the kernel interfaces of a card. Those of a virtio card are below its virtio device in sysfs.
fn interfaces(address: &str) -> Vec<String> {
    let mut names = SysfsPci::interfaces(address);
    let below = offer::virtio_device(address).and_then(|device| fs::read_dir(device.join("net")).ok());
    names.extend(below.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok()));
    names
}

/// Returns the IP addresses of a kernel interface, without IPv6 link-local ones, which the kernel assigns
/// automatically.
pub fn addresses(interface: &str) -> Vec<String> {
    let entries = getifaddrs().into_iter().flatten().filter(|entry| entry.interface_name == interface);
    let text = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = entry.address?;
        if let Some(v4) = address.as_sockaddr_in() {
            return Some(v4.ip().to_string());
        }
        address.as_sockaddr_in6().map(|v6| v6.ip()).filter(|ip| !ip.is_unicast_link_local()).map(|ip| ip.to_string())
    };
    entries.filter_map(text).collect()
}

fn carries_default_route(interface: &str) -> bool {
    let columns = |file: &str| fs::read_to_string(file).unwrap_or_default();
    // `route` has the interface in column 0, the destination in 1 and the mask in 7. `ipv6_route` has the
    // destination in column 0, its prefix length in 1, the flags in 8 and the interface in 9. The kernel
    // rejects unroutable packets by a default route over `lo` with RTF_REJECT, which does not count.
    const REJECT: u32 = 0x200;
    let v4 = columns("/proc/net/route").lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 7 && fields[0] == interface && fields[1] == "00000000" && fields[7] == "00000000"
    });
    let v6 = columns("/proc/net/ipv6_route").lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let reject = |flags| u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & REJECT != 0);
        fields.len() > 9
            && fields[9] == interface
            && fields[1] == "00"
            && fields[0].bytes().all(|byte| byte == b'0')
            && !reject(fields[8])
    });
    v4 || v6
}

/// Returns whether a kernel interface is up (`IFF_UP`).
pub fn is_up(interface: &str) -> bool {
    let flags = fs::read_to_string(format!("/sys/class/net/{interface}/flags")).unwrap_or_default();
    u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 != 0)
}

/// Returns why a card should be left to the kernel, or `None` if it may be taken.
pub fn in_use(address: &str) -> Option<String> {
    interfaces(address).iter().find_map(|name| {
        let master = fs::read_link(PathBuf::from(format!("/sys/class/net/{name}/master"))).ok();
        let master = master.as_deref().and_then(Path::file_name);
        if carries_default_route(name) {
            Some(format!("its interface {name} carries a default route"))
        } else if let Some(ip) = addresses(name).first().filter(|_| is_up(name)) {
            Some(format!("its interface {name} is up with address {ip}"))
        } else {
            master.map(|master| format!("its interface {name} belongs to {}", master.to_string_lossy()))
        }
    })
}

/// Returns the number of CPUs that this process may use.
pub fn cpus() -> usize {
    core_affinity::get_core_ids().unwrap_or_default().len()
}

/// Describes the bus over which a card would be driven, and who may use it.
pub fn bus(address: &str) -> String {
    match ringpass_pci::group_of(address) {
        Some(group) if ringpass_pci::is_bound(address) => format!("VFIO, /dev/vfio/{group}"),
        Some(_) => "sysfs, as root; once bound to vfio-pci: VFIO, as its owner".into(),
        None => "sysfs, as root; there is no IOMMU, which VFIO needs".into(),
    }
}

/// Returns a remedy if this user may not drive the card, else `None`.
pub fn missing_permission(address: &str) -> Option<String> {
    let root = nix::unistd::geteuid().is_root();
    match ringpass_pci::group_of(address).filter(|_| ringpass_pci::is_bound(address)) {
        Some(group) => {
            let file = format!("/dev/vfio/{group}");
            let both = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
            rustix::fs::access(&file, both).err().map(|_| format!("sudo chown $USER {file}"))
        }
        None => (!root).then(|| "run as root".into()),
    }
}

/// Returns a readable name of a device, from the system's list of PCI IDs if there is one.
pub fn describe(address: &str, id: DeviceId) -> String {
    let numbers = format!("{:04x}:{:04x}", id.vendor, id.device);
    let lists = ["/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"];
    let list = lists.iter().find_map(|path| fs::read(path).ok()).unwrap_or_default();
    let name = find_in_pci_ids(&String::from_utf8_lossy(&list), id);
    let name = name.or_else(|| known_vendor(id.vendor).map(|vendor| format!("{vendor} {}", device_class(address))));
    name.map_or_else(|| format!("{} {numbers}", device_class(address)), |name| format!("{name} ({numbers})"))
}

/// Looks up a device in the text of `pci.ids`: a line `vvvv  Vendor`, and below it `\tdddd  Device`.
fn find_in_pci_ids(list: &str, id: DeviceId) -> Option<String> {
    let vendor_key = format!("{:04x}  ", id.vendor);
    let mut lines = list.lines();
    let vendor = lines.find_map(|line| line.strip_prefix(&vendor_key))?;
    let device_key = format!("\t{:04x}  ", id.device);
    let mut below = lines.take_while(|line| line.starts_with(['\t', '#']));
    let device = below.find_map(|line| line.strip_prefix(&device_key)).unwrap_or("device");
    Some(format!("{vendor} {device}"))
}

fn known_vendor(vendor: u16) -> Option<&'static str> {
    Some(match vendor {
        0x8086 => "Intel",
        0x1af4 => "virtio",
        0x15b3 => "Mellanox",
        0x14e4 => "Broadcom",
        0x1d0f => "Amazon",
        0x1ae0 => "Google",
        0x1022 => "AMD",
        0x10ec => "Realtek",
        0x15ad => "VMware",
        _ => return None,
    })
}

/// Returns a readable name of the device's class.
fn device_class(address: &str) -> &'static str {
    match file(address, "class").get(..4) {
        Some("0x01") => "storage controller",
        Some("0x02") => "network card",
        Some("0x03") => "display controller",
        Some("0x06") => "bridge",
        Some("0x0c") => "serial bus controller",
        _ => "device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_in_pci_ids() {
        let list = "# comment\n8086  Intel Corporation\n\t10fb  82599ES 10-Gigabit\n\t\t8086 0003  sub\n\t1528  X540\n\
                    9999  Other\n\t1563  Wrong\n";
        let find_in_pci_ids = |vendor, device| find_in_pci_ids(list, DeviceId { vendor, device });
        assert_eq!(find_in_pci_ids(0x8086, 0x1528).as_deref(), Some("Intel Corporation X540"));
        assert_eq!(find_in_pci_ids(0x8086, 0x1563).as_deref(), Some("Intel Corporation device"));
        assert_eq!(find_in_pci_ids(0x1234, 0x1528), None);
    }

    #[test]
    fn the_loopback_interface_is_up_with_its_address() {
        assert!(is_up("lo"));
        assert!(addresses("lo").contains(&"127.0.0.1".to_owned()));
        assert!(!carries_default_route("lo") && !is_up("no-such-if"));
    }
}
