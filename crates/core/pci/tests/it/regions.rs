//! Registers of every kind on QEMU's devices in a guest: I/O ports by instructions, by sysfs and by VFIO,
//! memory that can be mapped and memory that cannot. The tests themselves also run in the guest.

use std::sync::Arc;

use ringpass_lab::{Guest, Iommu, nic_address, nic_mac, wait_until};
use ringpass_pci::registers::IoRegion;
use ringpass_pci::{PciDevice, open_pci};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Two controllers with 256 bytes of registers each. The two share a page, so one begins inside it.
const SMALL: [&str; 2] = ["0000:00:08.0", "0000:00:09.0"];

/// Boots a guest with a legacy and a modern virtio card, both small controllers, and this program.
fn boot(iommu: Iommu, modern: &str) -> Guest {
    let program = std::env::current_exe().expect("this program's file");
    Guest::new()
        .iommu(iommu)
        .nic_with_user_network("virtio-net-pci,disable-modern=on")
        .nic_with_user_network(&format!("virtio-net-pci,disable-legacy=on{modern}"))
        .device("sdhci-pci,addr=8")
        .device("sdhci-pci,addr=9")
        .program(&program)
        .boot()
}

/// Runs a test of this file in the guest.
fn inside(guest: &Guest, test: &str) {
    let program = std::env::current_exe().expect("this program's file");
    let name = program.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
    let text = guest.run(&format!("{name} --ignored --exact regions::{test} --nocapture --test-threads 1 2>&1"));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn all_registers_are_reached_through_sysfs() {
    let guest = boot(Iommu::Off, "");
    guest.run("modprobe virtio_net");
    let linux_has = |card: usize| {
        let interfaces = format!("ls -d /sys/bus/pci/devices/{}/virtio*/net/*", nic_address(card));
        wait_until("Linux's interface", || guest.output(&interfaces, std::time::Duration::from_secs(60)).status == 0);
    };
    for test in
        ["guest_legacy_by_instructions", "guest_legacy_by_sysfs", "guest_modern_is_mapped", "guest_small_registers"]
    {
        linux_has(0);
        linux_has(1);
        inside(&guest, test);
    }
    // Both cards were given back to Linux.
    linux_has(0);
    linux_has(1);
}

#[test]
fn all_registers_are_reached_through_vfio() {
    let guest = boot(Iommu::Translated, ",iommu_platform=on");
    guest.run("modprobe vfio-pci");
    for card in [&nic_address(0), &nic_address(1), SMALL[0], SMALL[1]] {
        guest.run(&format!(
            "d=/sys/bus/pci/devices/{card}; echo vfio-pci >$d/driver_override; \
             [ -e $d/driver ] && echo {card} >$d/driver/unbind; echo {card} >/sys/bus/pci/drivers_probe"
        ));
    }
    for test in ["guest_legacy_by_vfio", "guest_modern_is_mapped", "guest_small_registers"] {
        inside(&guest, test);
    }
}

// ---- Tests that run in the guest.

fn open(address: &str) -> Arc<dyn PciDevice> {
    open_pci(address).expect("the device")
}

/// Returns the MAC address in the six bytes from an offset on.
fn mac(region: &dyn IoRegion, offset: usize) -> String {
    (0..6).map(|i| format!("{:02x}", region.read8(offset + i))).collect::<Vec<_>>().join(":")
}

/// Reads and writes registers of each width of a legacy virtio card (VIRTIO 1.3, 4.1.4.10).
fn legacy(bus: &Arc<dyn PciDevice>, way: &str) {
    let region = bus.region(0).expect("its I/O ports");
    let text = region.description();
    assert!(text.contains(way), "{text}");
    println!("{text}");
    // Threads of queues also start after the region was opened.
    let other = region.clone();
    std::thread::spawn(move || {
        other.write8(18, 0);
        assert_eq!(other.read8(18), 0);
        other.write8(18, 3);
    });
    wait_until("the other thread's write", || region.read8(18) == 3);
    assert_ne!(region.read32(0) & 1 << 5, 0, "it has a MAC address");
    region.write32(4, 1 << 5);
    assert_eq!(region.read32(4), 1 << 5);
    assert_eq!(mac(&*region, 20), nic_mac(0));
    let sizes = [0, 1, 2, 3].map(|queue| {
        region.write16(14, queue);
        region.read16(12)
    });
    assert_eq!(sizes, [256, 256, 64, 0]);
    region.write8(18, 0);
    let error = bus.window().map(drop).expect_err("ports cannot be mapped").to_string();
    assert!(error.contains("BAR 0"), "{error}");
    // BAR 1, in memory, holds the MSI-X table.
    assert_eq!(bus.region(1).expect("BAR 1").len(), 4096);
    for bar in [2, 5, 6, 7, usize::MAX] {
        let error = bus.region(bar).map(drop).expect_err("no such BAR").to_string();
        assert!(error.contains(&format!("no BAR {bar}")), "{error}");
    }
}

#[test]
#[ignore = "runs in a guest"]
fn guest_legacy_by_instructions() {
    legacy(&open(&nic_address(0)), "in and out instructions (ioperm)");
}

#[test]
#[ignore = "runs in a guest"]
fn guest_legacy_by_sysfs() {
    let mut sets = capabilities(None).expect("this thread's capabilities");
    sets.effective.remove(CapabilitySet::SYS_RAWIO);
    sets.permitted.remove(CapabilitySet::SYS_RAWIO);
    set_capabilities(None, sets).expect("fewer capabilities");
    legacy(&open(&nic_address(0)), "(sysfs), as in and out are not allowed: Operation not permitted");
}

#[test]
#[ignore = "runs in a guest"]
fn guest_legacy_by_vfio() {
    legacy(&open(&nic_address(0)), "by calls of the kernel (VFIO), which cannot map them");
}

#[test]
#[ignore = "runs in a guest"]
fn guest_modern_is_mapped() {
    let bus = open(&nic_address(1));
    let error = bus.window().map(drop).expect_err("it has no BAR 0").to_string();
    assert!(error.contains("BAR 0"), "{error}");
    // QEMU's common configuration is at the beginning of BAR 4, the device-specific one at 0x2000.
    let region = bus.region(4).expect("BAR 4");
    assert_eq!((region.len(), region.description().as_str()), (0x4000, "registers in mapped memory"));
    region.write8(20, 0);
    region.write8(20, 3);
    assert_eq!((region.read8(20), region.read16(18)), (3, 3), "status and number of queues");
    region.write16(22, 1);
    assert_eq!((region.read16(22), region.read16(24)), (1, 256), "queue and its size");
    region.write32(32, 0x1234_5000);
    assert_eq!(region.read32(32), 0x1234_5000);
    region.write8(20, 0);
    assert_eq!(mac(&*region, 0x2000), nic_mac(1));
    assert_eq!(bus.region(4).expect("BAR 4 again").read8(20), 0);

    // The ids, and a capability beyond the 64 bytes that an unprivileged process may read.
    let mut id = [0; 4];
    bus.read_config(0, &mut id).expect("the ids");
    assert_eq!(id, [0xf4, 0x1a, 0x41, 0x10]);
    let mut at = [0; 1];
    bus.read_config(0x34, &mut at).expect("the first capability");
    assert!(at[0] >= 0x40);
    let mut capability = [0; 16];
    bus.read_config(at[0].into(), &mut capability).expect("a capability");
    assert_ne!(capability, [0; 16]);
    for offset in [4096 - 3, 1 << 16, usize::MAX] {
        let error = bus.read_config(offset, &mut id).expect_err("beyond the end").to_string();
        assert!(error.contains("configuration space"), "{error}");
    }
}

/// SD Host Controller Simplified Specification 3.0, 2.1: block size (16 bits), argument (32), host control (8).
#[test]
#[ignore = "runs in a guest"]
fn guest_small_registers() {
    let regions = SMALL.map(|address| {
        let bus = open(address);
        (bus.region(0).expect("its registers"), bus)
    });
    for (i, (region, _)) in regions.iter().enumerate() {
        println!("{}", region.description());
        assert_eq!(region.len(), 256);
        region.write32(0x08, 0x1234_5678 + i as u32);
        region.write16(0x04, 0x0100 + i as u16);
        region.write8(0x28, 2 * i as u8);
    }
    for (i, (region, _)) in regions.iter().enumerate() {
        assert_eq!((region.read32(0x08), region.read16(0x04)), (0x1234_5678 + i as u32, 0x0100 + i as u16));
        assert_eq!(region.read8(0x28), 2 * i as u8);
    }
}
