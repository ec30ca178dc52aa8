//! Filters of received frames: MAC, multicast and VLAN (7.1.1).

use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, frame, own_mac};

const BROADCAST: [u8; 6] = [0xff; 6];
const MULTICAST: [u8; 6] = [0x01, 0x00, 0x5e, 0x00, 0x12, 0x34];
const OTHER: [u8; 6] = [0x02, 0, 0, 0, 0, 0x77];

/// Returns whether a running NIC with this FCTRL receives a frame to an address.
fn takes(control: u32, to: [u8; 6], setup: impl FnOnce(&Driver)) -> bool {
    let mut driver = Driver::started();
    driver.window.write(FCTRL, control);
    setup(&driver);
    let sent = frame(to, 60);
    driver.arrive(std::slice::from_ref(&sent));
    let received = driver.receive_all(0);
    assert!(received.is_empty() || received == [sent]);
    assert_eq!(driver.card.counters().rx_filtered, 1 - received.len() as u64);
    received.len() == 1
}

#[test]
fn unicast_needs_the_address_or_promiscuous_mode() {
    assert!(takes(0, own_mac(), |_| ()));
    assert!(!takes(0, OTHER, |_| ()));
    assert!(takes(FCTRL_UPE, OTHER, |_| ()));
    assert!(!takes(FCTRL_MPE | FCTRL_BAM, OTHER, |_| ()));
}

#[test]
fn any_of_128_addresses_counts_if_valid() {
    let write = |valid: u32| {
        move |driver: &Driver| {
            let [a, b, c, d, e, f] = OTHER;
            driver.window.write(RAL.at(127), u32::from_le_bytes([a, b, c, d]));
            driver.window.write(RAH.at(127), u32::from_le_bytes([e, f, 0, 0]) | valid);
        }
    };
    assert!(takes(0, OTHER, write(RAH_AV)));
    assert!(!takes(0, OTHER, write(0)));
    assert!(!takes(0, own_mac(), |driver| driver.window.write(RAH.at(0), 0)));
}

#[test]
fn broadcast_needs_bam() {
    assert!(takes(FCTRL_BAM, BROADCAST, |_| ()));
    assert!(!takes(FCTRL_UPE | FCTRL_MPE, BROADCAST, |_| ()));
}

#[test]
fn multicast_needs_promiscuous_mode_or_its_hash() {
    assert!(takes(FCTRL_MPE, MULTICAST, |_| ()));
    assert!(!takes(FCTRL_UPE | FCTRL_BAM, MULTICAST, |_| ()));
    // Bits 47:36, 46:35, 45:34 and 43:32 of the address, whose upper bits are the last bytes on the wire.
    for (mo, hash) in [(0, 0x341), (1, 0x682), (2, 0xd04), (3, 0x412)] {
        let (hash, mode) = (hash as usize, mo | MCSTCTRL_MFE);
        let table = |bit: usize| {
            move |driver: &Driver| {
                driver.window.write(MCSTCTRL, mode);
                driver.window.write(MTA.at(bit / 32), 1 << (bit % 32));
            }
        };
        assert!(takes(0, MULTICAST, table(hash)), "MO {mo}");
        assert!(!takes(0, MULTICAST, table(hash ^ 1)), "MO {mo}");
        assert!(!takes(0, OTHER, table(hash)), "unicast does not pass by the multicast hash");
    }
    let without_mfe = |driver: &Driver| driver.window.write(MTA.at(0x341 / 32), u32::MAX);
    assert!(!takes(0, MULTICAST, without_mfe));
}

#[test]
fn a_frame_that_passed_by_hash_is_marked() {
    let mut driver = Driver::started();
    driver.window.write(FCTRL, 0);
    driver.window.write(MCSTCTRL, MCSTCTRL_MFE);
    driver.window.write(MTA.at(0x341 / 32), u32::MAX);
    driver.arrive(&[frame(MULTICAST, 60), frame(own_mac(), 60)]);
    let status: Vec<u64> = std::iter::from_fn(|| driver.receive(0)).map(|received| received.status & 1 << 7).collect();
    assert_eq!(status, [1 << 7, 0]);
}

#[test]
fn the_vlan_filter_looks_at_tagged_frames() {
    const VFE: u32 = 1 << 30;
    let tagged = |id: u16, len| {
        let mut bytes = frame(own_mac(), len);
        bytes[12..16].copy_from_slice(&[0x81, 0x00, (id >> 8) as u8 | 0xe0, id as u8]);
        bytes
    };
    let mut driver = Driver::started();
    driver.window.write(VLNCTRL, VFE | 0x8100);
    driver.window.write(VFTA.at(0x123 / 32), 1 << (0x123 % 32));
    let untagged = frame(own_mac(), 60);
    driver.arrive(&[tagged(0x122, 60), tagged(0x123, 60), untagged.clone()]);
    assert_eq!(driver.receive_all(0), [tagged(0x123, 60), untagged]);
    driver.window.write(VLNCTRL, 0x8100);
    driver.arrive(&[tagged(0x122, 60)]);
    assert_eq!(driver.receive_all(0).len(), 1, "off, all pass");
}
