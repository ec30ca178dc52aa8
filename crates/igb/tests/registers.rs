//! What the driver tells the card.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{PHY_CONTROL, Straw, StrawBus};
use ringpass_bus::DeviceId;
use ringpass_igb::{Igb, supports};
use ringpass_memory::{Burst, Flags, Mempool, MempoolConfig, Packet};
use ringpass_port::{Offloads, Port, PortConfig, RxQueue, Wake};
use ringpass_registers::igb::{bits::*, *};
use ringpass_registers::ixgbe::descriptor::{RX_DD, RX_EOP, RX_IPCS, RX_L4CS, RX_LENGTH_SHIFT};

fn open(straw: &Arc<Straw>, config: &PortConfig) -> Igb {
    let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() }).unwrap();
    Igb::open(Arc::new(StrawBus(straw.clone())), "straw", config, &pool).unwrap()
}

fn small() -> PortConfig {
    PortConfig { rx_ring: 64, tx_ring: 64, ..Default::default() }
}

#[test]
fn the_family_is_known() {
    let of = |device| supports(DeviceId { vendor: 0x8086, device });
    for device in [0x10c9, 0x10e6, 0x10e7, 0x10e8, 0x1526, 0x150a, 0x1518, 0x150d] {
        assert_eq!(of(device), Some("82576"));
    }
    assert_eq!([of(0x10ca), of(0x10fb), of(0x10d3)], [None; 3], "its virtual function, an 82599, an 82574L");
    assert_eq!(supports(DeviceId { vendor: 0x1af4, device: 0x10c9 }), None);
}

#[test]
fn a_port_without_offloads() {
    let straw = Straw::new();
    // As a reset leaves it.
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
    // No DMA after its end.
    drop(port);
    assert_eq!((get(RCTL.offset) & RCTL_RXEN, get(TCTL.offset) & TCTL_EN), (0, 0));
    assert_eq!((get(RXDCTL.at(0).offset) & RXDCTL_ENABLE, get(TXDCTL.at(0).offset) & TXDCTL_ENABLE), (0, 0));
    assert_eq!(straw.bus_master.load(Ordering::Acquire), 0);
}

#[test]
fn the_phy_is_asked_for_while_it_is_locked() {
    let straw = Straw::new();
    open(&straw, &small());
    let (read, write) = (MDIC_READ | MDIC_PHY_1, MDIC_WRITE | MDIC_PHY_1 | PHY_CONTROL | 1 << 12 | 1 << 9);
    assert_eq!(*straw.phy.lock().unwrap(), [read, write]);
    assert_eq!((straw.get(SWSM.offset), straw.get(SW_FW_SYNC.offset)), (0, 0), "given back");
    // Fiber has its own negotiation.
    let straw = Straw::new();
    straw.write_for_test(CTRL_EXT.offset, CTRL_EXT_LINK_MODE_MASK);
    open(&straw, &small());
    assert!(straw.phy.lock().unwrap().is_empty());
    assert_eq!(straw.get(PCS_LCTL.offset), PCS_LCTL_AN_ENABLE | PCS_LCTL_AN_RESTART);
}

#[test]
fn sixteen_queues_with_vectors() {
    let straw = Straw::new();
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
    assert_eq!((straw.get(EICR.offset), straw.get(EIMS.offset)), (1 << 11, 1 << 11));
    let readable = |rx: &dyn RxQueue| {
        let [Wake::Readable(event)] = Wake::all(rx)[..] else { panic!("it has a vector") };
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
    let straw = Straw::new();
    let offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };
    open(&straw, &PortConfig { mtu: 9198, offloads, ..small() });
    assert_eq!(straw.get(CTRL.offset) & CTRL_VME, CTRL_VME);
    assert_eq!(straw.get(RCTL.offset) & RCTL_LPE, RCTL_LPE);
    assert_eq!(straw.get(RLPML.offset), 9198 + 14 + 4 + 4, "with tag and CRC");
    assert_eq!(straw.get(RXCSUM.offset), RXCSUM_IPOFLD | RXCSUM_TUOFLD | RXCSUM_PCSD);
    assert_eq!(straw.get(MRQC.offset) & 7, MRQC_RSS, "one queue, but the hash is wanted");
}

/// The bits that mean errors lie elsewhere than the 82599's; what is shared is tested with its driver.
#[test]
fn what_the_card_says_becomes_flags() {
    let straw = Straw::new();
    let offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };
    let mut port = open(&straw, &PortConfig { offloads, ..small() });
    let mut queues = port.take_queues().remove(0);
    let done = RX_DD | RX_EOP | 60 << RX_LENGTH_SHIFT;
    let (ok, l3, l4) = (RX_IPCS | RX_L4CS, descriptor::RX_IPE, descriptor::RX_L4E);
    let said = [done, done | ok, done | ok | l3 | l4, done | ok | l3, done | ok | l4, done | descriptor::RX_RXE];
    said.iter().enumerate().for_each(|(i, &said)| straw.rx(i as u32, 1).store(said, Ordering::Release));
    let mut burst = Burst::new(32);
    assert_eq!(queues.rx.rx_burst(&mut burst), 5);
    let flags: Vec<_> = burst.iter().map(Packet::flags).collect();
    let (l3_bad, l4_bad) = (Flags::L3_BAD | Flags::L4_GOOD, Flags::L3_GOOD | Flags::L4_BAD);
    let right = [Flags::default(), Flags::L3_GOOD | Flags::L4_GOOD, Flags::L3_BAD | Flags::L4_BAD, l3_bad, l4_bad];
    assert_eq!(flags, right);
    assert_eq!(port.stats().rx_drops, 1);
}
