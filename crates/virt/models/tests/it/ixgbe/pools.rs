//! Queue pools (VMDq) and traffic classes (DCB): the pools that get a frame (7.10.3), and its queue there
//! (7.1.2).

use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, frame, own_mac};
use crate::ixgbe::packets::{TCP4, UDP4};

/// MRQC: 64 pools without RSS; 32 and 64 pools with RSS; 16 pools of 8 classes.
const POOLS_64: u32 = 8;
const POOLS_32_RSS: u32 = 10;
const POOLS_64_RSS: u32 = 11;
const POOLS_16_CLASSES: u32 = 12;
/// PFVTCTL.
const VT_ENA: u32 = 1;
const NO_DEFAULT: u32 = 1 << 29;
const REPLICATE: u32 = 1 << 30;
/// PFVML2FLT.
const UNTAGGED: u32 = 1 << 24;
const BY_MULTICAST_TABLE: u32 = 1 << 25;
const BY_UNICAST_TABLE: u32 = 1 << 26;
const BROADCAST: u32 = 1 << 27;
const ALL_MULTICAST: u32 = 1 << 28;

const EVERYONE: [u8; 6] = [0xff; 6];

fn mac(pool: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, pool]
}

fn add_mac(driver: &Driver, i: usize, mac: [u8; 6], pools: u64) {
    let [a, b, c, d, e, f] = mac;
    driver.window.write(RAL.at(i), u32::from_le_bytes([a, b, c, d]));
    driver.window.write(RAH.at(i), u32::from_le_bytes([e, f, 0, 0]) | RAH_AV);
    driver.window.write(MPSAR.at(2 * i), pools as u32);
    driver.window.write(MPSAR.at(2 * i + 1), (pools >> 32) as u32);
}

fn add_vlan(driver: &Driver, i: usize, vlan: u32, pools: u64) {
    driver.window.write(PFVLVF.at(i), 1 << 31 | vlan);
    driver.window.write(PFVLVFB.at(2 * i), pools as u32);
    driver.window.write(PFVLVFB.at(2 * i + 1), (pools >> 32) as u32);
}

/// Starts a NIC with pools 0 to 3, each with an address and its first queue running. Pool 0 gets frames that
/// match no pool.
fn pools(mode: u32, control: u32) -> Driver {
    let mut driver = Driver::new();
    let per_pool = if mode == POOLS_32_RSS { 4 } else { 2 };
    driver.window.write(MRQC, mode);
    driver.window.write(PFVTCTL, VT_ENA | control);
    driver.window.write(PFVFRE.at(0), 0xffff_ffff);
    for pool in 0..4 {
        driver.start_rx(pool * per_pool, 8, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
        driver.window.write(PFVML2FLT.at(pool), UNTAGGED);
        add_mac(&driver, pool, mac(pool as u8), 1 << pool);
    }
    driver
}

/// Receives a frame; returns its queues.
fn queues(driver: &mut Driver, frame: &[u8]) -> Vec<usize> {
    driver.arrive(&[frame.to_vec()]);
    (0..16).filter(|&queue| driver.receive(queue).is_some_and(|received| received.bytes == frame)).collect()
}

#[test]
fn an_address_belongs_to_a_pool() {
    let mut driver = pools(POOLS_64, REPLICATE);
    for pool in 0..4 {
        assert_eq!(queues(&mut driver, &frame(mac(pool as u8), 64)), [2 * pool]);
    }
    add_mac(&driver, 9, mac(9), 0b1010);
    assert_eq!(queues(&mut driver, &frame(mac(9), 64)), [2, 6], "or to two");
}

#[test]
fn pools_may_lie_in_the_upper_half() {
    let mut driver = pools(POOLS_64, REPLICATE);
    driver.start_rx(2 * 40, 8, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
    driver.window.write(PFVML2FLT.at(40), UNTAGGED);
    add_mac(&driver, 100, mac(40), 1 << 40);
    driver.arrive(&[frame(mac(40), 64)]);
    assert!(driver.receive(80).is_none(), "it is not enabled");
    driver.window.write(PFVFRE.at(1), 1 << 8);
    driver.arrive(&[frame(mac(40), 64)]);
    assert_eq!(driver.receive(80).expect("a frame").bytes, frame(mac(40), 64));
}

#[test]
fn what_is_nobodys_goes_to_the_default_pool() {
    let mut driver = pools(POOLS_64, REPLICATE | 3 << 7);
    assert_eq!(queues(&mut driver, &frame(mac(77), 64)), [6]);
    let mut driver = pools(POOLS_64, REPLICATE | NO_DEFAULT);
    assert_eq!(queues(&mut driver, &frame(mac(77), 64)), [0; 0]);
    assert_eq!(driver.card.counters().rx_filtered, 1);
}

#[test]
fn broadcast_and_multicast_go_to_all_subscribed_pools() {
    let mut driver = pools(POOLS_64, REPLICATE | NO_DEFAULT);
    driver.window.write(PFVML2FLT.at(1), UNTAGGED | BROADCAST);
    driver.window.write(PFVML2FLT.at(2), UNTAGGED | BROADCAST | ALL_MULTICAST);
    driver.window.write(PFVML2FLT.at(3), UNTAGGED | BY_MULTICAST_TABLE);
    assert_eq!(queues(&mut driver, &frame(EVERYONE, 64)), [2, 4]);
    let group = [1, 0, 0x5e, 0, 0, 0xfb];
    assert_eq!(queues(&mut driver, &frame(group, 64)), [4]);
    driver.window.write(MCSTCTRL, MCSTCTRL_MFE);
    let hash = (u16::from(group[4]) >> 4 | u16::from(group[5]) << 4) as usize;
    driver.window.write(MTA.at(hash >> 5), 1 << (hash & 0x1f));
    assert_eq!(queues(&mut driver, &frame(group, 64)), [4, 6]);
    assert_eq!(driver.window.read(MPRC), 2, "counted once each");
}

#[test]
fn unicast_may_be_hashed_too() {
    let mut driver = pools(POOLS_64, REPLICATE | NO_DEFAULT);
    driver.window.write(FCTRL, 0);
    driver.window.write(MCSTCTRL, MCSTCTRL_MFE);
    driver.window.write(PFVML2FLT.at(2), UNTAGGED | BY_UNICAST_TABLE);
    let stranger = [2, 0, 0, 0, 7, 0x42];
    assert_eq!(queues(&mut driver, &frame(stranger, 64)), [0; 0]);
    let hash = (u16::from(stranger[4]) >> 4 | u16::from(stranger[5]) << 4) as usize;
    driver.window.write(PFUTA.at(hash >> 5), 1 << (hash & 0x1f));
    assert_eq!(queues(&mut driver, &frame(stranger, 64)), [4]);
}

#[test]
fn without_replication_there_is_one_pool() {
    let mut driver = pools(POOLS_64, 1 << 7);
    add_mac(&driver, 9, mac(9), 0b1100);
    (0..4).for_each(|pool| driver.window.write(PFVML2FLT.at(pool), UNTAGGED | BROADCAST));
    assert_eq!(queues(&mut driver, &frame(mac(9), 64)), [4], "the first");
    assert_eq!(queues(&mut driver, &frame(EVERYONE, 64)), [2], "the default pool");
}

#[test]
fn a_vlan_has_its_pools() {
    let mut driver = pools(POOLS_64, REPLICATE | NO_DEFAULT);
    (0..4).for_each(|pool| driver.window.write(PFVML2FLT.at(pool), BROADCAST));
    add_vlan(&driver, 5, 100, 0b0110);
    let tagged = |to, vlan: u8| {
        let plain = frame(to, 64);
        [&plain[..12], &[0x81, 0, 0, vlan], &plain[12..]].concat()
    };
    assert_eq!(queues(&mut driver, &tagged(EVERYONE, 100)), [2, 4]);
    assert_eq!(queues(&mut driver, &tagged(mac(1), 100)), [2]);
    assert_eq!(queues(&mut driver, &tagged(mac(3), 100)), [0; 0], "not in the VLAN");
    assert_eq!(queues(&mut driver, &tagged(mac(1), 101)), [0; 0], "not its VLAN");
    assert_eq!(queues(&mut driver, &frame(mac(1), 64)), [0; 0], "untagged is not accepted");
}

#[test]
fn rss_chooses_within_the_pool() {
    for (mode, pool_bits, queues_of_pool) in [(POOLS_32_RSS, 2, 4), (POOLS_64_RSS, 1, 2)] {
        let mut driver = pools(mode, REPLICATE);
        driver.window.write(MRQC, mode | MRQC_RSS_TCP_IPV4 | MRQC_RSS_UDP_IPV4);
        (0..32).for_each(|i| driver.window.write(RETA.at(i), 0x0f0f_0f0f));
        let base = queues_of_pool;
        (0..queues_of_pool).for_each(|i| driver.start_rx(base + i, 8, SRRCTL_DESCTYPE_ADV_ONEBUF | 2));
        let mut packet = TCP4.frame(b"x");
        packet[..6].copy_from_slice(&mac(1));
        assert_eq!(queues(&mut driver, &packet), [base], "RQPL 0: no RSS in this pool");
        driver.window.write(PSRTYPE.at(1), pool_bits << 29);
        assert_eq!(queues(&mut driver, &packet), [base + queues_of_pool - 1]);
    }
}

#[test]
fn a_traffic_class_has_its_queues() {
    let classes = (0..8).fold(0, |map, priority| map | (7 - priority) << (3 * priority));
    let tagged = |priority: u8| {
        let plain = frame(mac(1), 64);
        [&plain[..12], &[0x81, 0, priority << 5, 1], &plain[12..]].concat()
    };
    // In a pool of eight classes.
    let mut driver = pools(POOLS_16_CLASSES, REPLICATE);
    driver.window.write(RTRUP2TC, classes);
    add_vlan(&driver, 0, 1, 0b10);
    driver.start_rx(8 + 5, 8, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
    assert_eq!(queues(&mut driver, &tagged(2)), [13]);
    // Traffic classes without pools.
    for (mode, queue) in [(2, 5 * 16), (3, 32)] {
        let mut driver = Driver::new();
        driver.window.write(MRQC, mode);
        driver.window.write(RTRUP2TC, classes);
        driver.start_rx(queue, 8, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
        driver.arrive(&[tagged(2)]);
        assert_eq!(driver.receive_all(queue), [tagged(2)]);
    }
}

#[test]
fn filters_ask_for_their_pool() {
    let mut driver = pools(POOLS_64, REPLICATE);
    driver.start_rx(9, 8, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
    let to = |pool: u8| {
        let mut packet = UDP4.frame(&[1; 20]);
        packet[..6].copy_from_slice(&mac(pool));
        packet
    };
    // UDP of pool 1 goes to queue 9.
    driver.window.write(L34TIMIR.at(0), 9 << 21);
    driver.window.write(FTQF.at(0), 1 << 31 | 0b01111 << 25 | 1 << 8 | 1 << 2 | 1);
    assert_eq!(queues(&mut driver, &to(1)), [9]);
    assert_eq!(queues(&mut driver, &to(2)), [4]);
    // An EtherType goes to a pool, whatever the address.
    driver.window.write(ETQF.at(0), 1 << 31 | 1 << 26 | 3 << 20 | 0x88b5);
    assert_eq!(queues(&mut driver, &frame(mac(1), 64)), [6]);
}

#[test]
fn strangers_do_not_get_into_a_guests_queue() {
    let mut driver = pools(POOLS_64, REPLICATE | NO_DEFAULT);
    for other in [own_mac(), mac(0), mac(2), mac(3), [1, 0, 0x5e, 0, 0, 1], EVERYONE] {
        driver.arrive(&[frame(other, 64)]);
        assert!(driver.receive(2).is_none(), "{other:x?}");
    }
}

#[test]
fn a_pool_sends_if_it_may() {
    let mut driver = Driver::new();
    let bytes = frame(EVERYONE, 64);
    // Pools of two queues each.
    driver.window.write(MTQC, 0b110);
    driver.start_tx(1, 16);
    driver.start_tx(2, 16);
    driver.window.write(PFVFTE.at(0), 0b10);
    driver.send_frame(1, &bytes);
    assert_eq!(driver.sent().len(), 0, "pool 0 may not");
    driver.send_frame(2, &bytes);
    assert_eq!(driver.sent(), std::slice::from_ref(&bytes));
    driver.window.write(PFVFTE.at(0), 0b11);
    driver.step();
    assert_eq!(driver.sent(), [bytes]);
}

#[test]
fn half_of_the_tx_queues_need_pools_or_classes() {
    let bytes = frame(EVERYONE, 64);
    for (mode, queue, sends) in [(0, 63, 1), (0, 64, 0), (1, 64, 1)] {
        let mut driver = Driver::new();
        driver.window.write(MTQC, mode);
        driver.start_tx(queue, 16);
        driver.send_frame(queue, &bytes);
        assert_eq!(driver.sent().len(), sends, "queue {queue} with MTQC {mode}");
    }
}
