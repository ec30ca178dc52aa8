//! Tests of the values that the 82576's driver writes to registers, and of its counters.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{FakeCard, IGB, PHY_CONTROL};
use ringpass_intel::igb::Igb;
use ringpass_memory::{Mempool, MempoolConfig};
use ringpass_pci::DeviceId;
use ringpass_pci::registers::igb::{bits::*, *};
use ringpass_port::{Offloads, Port, PortConfig, Rule, RxQueue, Spread, WakeSource};

fn open(straw: &Arc<FakeCard>, config: &PortConfig) -> Box<dyn Port> {
    let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() }).unwrap();
    straw.open(config, &pool).unwrap()
}

fn small() -> PortConfig {
    PortConfig { rx_ring: 64, tx_ring: 64, ..Default::default() }
}

#[test]
fn the_family_is_known() {
    let of = |device| Igb::supports(DeviceId { vendor: 0x8086, device });
    for device in [0x10c9, 0x10e6, 0x10e7, 0x10e8, 0x1526, 0x150a, 0x1518, 0x150d] {
        assert_eq!(of(device), Some("82576"));
    }
    assert_eq!([of(0x10ca), of(0x10fb), of(0x10d3)], [None; 3], "its virtual function, an 82599, an 82574L");
    assert_eq!(Igb::supports(DeviceId { vendor: 0x1af4, device: 0x10c9 }), None);
}

#[test]
fn a_port_without_offloads() {
    let straw = FakeCard::new(&IGB);
    // The value after a reset.
    straw.write_for_test(RXDCTL.at(0).offset, RXDCTL_ENABLE | 1 << 16);
    let mut port = open(&straw, &small());
    let get = |offset| straw.get(offset);
    let rctl = RCTL_RXEN | RCTL_UPE | RCTL_MPE | RCTL_BAM | RCTL_SECRC;
    assert_eq!(get(RCTL.offset), rctl);
    assert_eq!(get(TCTL.offset), TCTL_EN | TCTL_PSP);
    assert_eq!(get(CTRL.offset) & (CTRL_SLU | CTRL_VME | CTRL_FRCSPD | CTRL_FRCDPX), CTRL_SLU);
    assert_eq!(get(MRQC.offset), 0);
    assert_eq!(get(SRRCTL.at(0).offset), 0x8200_0002, "buffers of 2 KiB, one for each descriptor, drop");
    assert_eq!(get(RXDCTL.at(0).offset), 0x0201_0808);
    assert_eq!(get(TXDCTL.at(0).offset), 0x0200_0108);
    assert_eq!(get(RXDCTL.at(1).offset) & RXDCTL_ENABLE, 0);
    assert_eq!((get(RDT.at(0).offset), get(TDT.at(0).offset)), (63, 0));
    port.set_promiscuous(false).unwrap();
    assert_eq!(get(RCTL.offset), rctl & !(RCTL_UPE | RCTL_MPE));
    // Dropping the port ends DMA.
    drop(port);
    assert_eq!((get(RCTL.offset) & RCTL_RXEN, get(TCTL.offset) & TCTL_EN), (0, 0));
    assert_eq!((get(RXDCTL.at(0).offset) & RXDCTL_ENABLE, get(TXDCTL.at(0).offset) & TXDCTL_ENABLE), (0, 0));
    assert_eq!(straw.bus_master.load(Ordering::Acquire), 0);
}

#[test]
fn the_phy_is_asked_for_while_it_is_locked() {
    let straw = FakeCard::new(&IGB);
    open(&straw, &small());
    let (read, write) = (MDIC_READ | MDIC_PHY_1, MDIC_WRITE | MDIC_PHY_1 | PHY_CONTROL | 1 << 12 | 1 << 9);
    assert_eq!(*straw.phy.lock().unwrap(), [read, write]);
    assert_eq!((straw.get(SWSM.offset), straw.get(SW_FW_SYNC.offset)), (0, 0), "given back");
    // Fiber links have their own negotiation.
    let straw = FakeCard::new(&IGB);
    straw.write_for_test(CTRL_EXT.offset, CTRL_EXT_LINK_MODE_MASK);
    open(&straw, &small());
    assert!(straw.phy.lock().unwrap().is_empty());
    assert_eq!(straw.get(PCS_LCTL.offset), PCS_LCTL_AN_ENABLE | PCS_LCTL_AN_RESTART);
}

#[test]
fn sixteen_queues_with_vectors() {
    let straw = FakeCard::new(&IGB);
    let mut port = open(&straw, &PortConfig { queues: 16, ..small() });
    let mut queues = port.take_queues();
    assert_eq!(queues.len(), 16);
    assert!(port.take_queues().is_empty());
    let entries: Vec<u8> = (0..32).flat_map(|i| straw.get(RETA.at(i).offset).to_le_bytes()).collect();
    assert!(entries.iter().enumerate().all(|(i, &entry)| usize::from(entry) == i % 16), "{entries:?}");
    assert_eq!(straw.get(MRQC.offset) & 7, MRQC_RSS);
    assert_eq!(straw.get(RXCSUM.offset) & RXCSUM_PCSD, RXCSUM_PCSD, "RSS wants it");
    assert_eq!(straw.get(GPIE.offset), 0xc000_0010);
    assert_eq!((straw.get(EIAC.offset), straw.get(EIAM.offset)), (0xffff, 0xffff));
    for q in 0..8 {
        assert_eq!(straw.get(IVAR.at(q).offset), 0x0080_0080 | q as u32 | (q as u32 + 8) << 16);
    }
    let rx = &mut queues[11].rx;
    rx.arm();
    assert_eq!(straw.get(EIMS.offset), 1 << 11);
    let readable = |rx: &dyn RxQueue| {
        let [WakeSource::Readable(event)] = WakeSource::all(rx)[..] else { panic!("it has a vector") };
        let mut ready = [rustix::event::PollFd::new(&event, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ready, Some(&Default::default())).unwrap() == 1
    };
    assert!(!readable(&**rx));
    rustix::io::write(&straw.events.lock().unwrap()[11], &1u64.to_ne_bytes()).unwrap();
    assert!(readable(&**rx));
    rx.disarm();
    assert_eq!(straw.get(EIMC.offset), 1 << 11);
    assert!(!readable(&**rx), "cleared");
}

#[test]
fn offloads_and_long_frames() {
    let straw = FakeCard::new(&IGB);
    let offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };
    open(&straw, &PortConfig { mtu: 9198, offloads, ..small() });
    assert_eq!(straw.get(CTRL.offset) & CTRL_VME, CTRL_VME);
    assert_eq!(straw.get(RCTL.offset) & RCTL_LPE, RCTL_LPE);
    assert_eq!(straw.get(RLPML.offset), 9198 + 14 + 4 + 4, "with tag and CRC");
    assert_eq!(straw.get(RXCSUM.offset), RXCSUM_IPOFLD | RXCSUM_TUOFLD | RXCSUM_PCSD);
    assert_eq!(straw.get(MRQC.offset) & 7, MRQC_RSS, "one queue, but the hash is wanted");
}

#[test]
fn steering_is_refused() {
    let config = PortConfig { spread: Spread::Steered, ..small() };
    let pool = Mempool::new(&MempoolConfig::default()).unwrap();
    let error = FakeCard::new(&IGB).open(&config, &pool).err().unwrap().to_string();
    assert!(error.contains("does not steer an 82576's frames"), "{error}");
    let rule =
        Rule::Tuple { protocol: None, source: None, destination: None, source_port: None, destination_port: None };
    assert!(open(&FakeCard::new(&IGB), &small()).steer(&rule, 0).is_err());
}

#[test]
fn statistics_say_what_was_lost_and_why() {
    let straw = FakeCard::new(&IGB);
    let mut port = open(&straw, &small());
    for (register, count) in [(GPRC, 100), (RQDPC.at(0), 0xf003), (RQDPC.at(15), 1), (MPC, 5), (CRCERRS, 7), (RUC, 9)] {
        straw.stick(register.offset, count);
    }
    let stats = port.stats();
    assert_eq!((stats.rx_packets, stats.rx_drops), (100 - 4, 4 + 5 + 7), "a queue's count has 12 bits");
    let extended = port.extended();
    let of = |name: &str| extended.iter().find(|(other, _)| *other == name).map(|&(_, count)| count);
    // The counters were read twice.
    assert_eq!(["rx_no_descriptors", "rx_missed", "rx_too_short"].map(of), [Some(8), Some(10), Some(18)]);
    assert_eq!(of("rx_crc_errors"), Some(14));
}
