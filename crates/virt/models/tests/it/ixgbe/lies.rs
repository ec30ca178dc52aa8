//! A NIC that lies as configured: each lie is told on its occasions, and no other is.

use std::os::fd::OwnedFd;

use ringpass_ipc::EventNotifier;
use ringpass_memory::{DmaRegion, RegionConfig};
use ringpass_models::ixgbe::{CardConfig, Lies};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, HEAD_WRITE_BACK, frame, own_mac};

fn lying(lies: &str) -> Driver {
    Driver::on(&CardConfig { lies: lies.parse().unwrap(), ..CardConfig::default() })
}

/// Makes frames that all differ.
fn frames(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| frame(own_mac(), 100 + i)).collect()
}

/// Returns the second halves of the first Rx descriptors.
fn written_back(driver: &Driver, count: usize) -> Vec<u64> {
    (0..count).map(|i| driver.word(Driver::rx_descriptor(0, i) + 8)).collect()
}

fn honest(len: u64) -> u64 {
    RX_DD | RX_EOP | len << RX_LENGTH_SHIFT
}

#[test]
fn lies_about_lengths_and_ends() {
    for (lie, lied) in [
        ("length-long@2-2", RX_DD | RX_EOP | 0xffff << RX_LENGTH_SHIFT),
        ("length-zero@2-2", RX_DD | RX_EOP),
        ("no-eop@2-2", RX_DD | 101 << RX_LENGTH_SHIFT),
    ] {
        let mut driver = lying(lie).start();
        driver.arrive(&frames(3));
        assert_eq!(written_back(&driver, 4), [honest(100), lied, honest(102), 0], "{lie}");
        driver.step();
        assert_eq!(driver.card.counters().lies, 1);
    }
}

#[test]
fn a_done_descriptor_may_have_no_data() {
    let mut driver = lying("no-data@1-1").start();
    driver.arrive(&frames(1));
    assert_eq!(written_back(&driver, 1), [honest(100)]);
    assert_eq!(driver.read_bytes(Driver::buffer(0, 0), 100), [0; 100]);
}

#[test]
fn descriptors_may_come_out_of_order() {
    let mut driver = lying("out-of-order@1-1").start();
    driver.arrive(&frames(1));
    assert_eq!(written_back(&driver, 3), [0, honest(100), 0]);
    driver.arrive(&frames(4)[1..]);
    assert_eq!(written_back(&driver, 5), [honest(101), honest(100), honest(102), honest(103), 0]);
    assert_eq!(driver.receive_all(0).len(), 4);
}

#[test]
fn dd_may_be_taken_back() {
    let mut driver = lying("dd-cleared@1-1").start();
    driver.arrive(&frames(1));
    assert_eq!(written_back(&driver, 1), [honest(100)]);
    driver.arrive(&frames(3)[1..]);
    assert_eq!(written_back(&driver, 3), [honest(100) & !RX_DD, honest(101), honest(102)]);
}

#[test]
fn queues_may_be_stuck() {
    let mut driver = lying("rx-stuck@3+tx-stuck@2").start();
    driver.arrive(&frames(10));
    assert_eq!(driver.receive_all(0).len(), 2);
    (0..3).for_each(|_| driver.send_frame(0, &frames(1)[0]));
    assert_eq!((driver.sent().len(), driver.window.read(TDH.at(0))), (1, 1));
}

#[test]
fn the_head_may_be_wrong() {
    let mut driver = lying("wrong-head@2").start();
    driver.window.clear(TXDCTL.at(0), TXDCTL_ENABLE);
    let address = driver.region.iova(HEAD_WRITE_BACK);
    // SAFETY: the address is in the region, which is mapped for the NIC; the NIC keeps a mapped region alive.
    unsafe { driver.window.write_dma([TDWBAL.at(0), TDWBAH.at(0)], address | u64::from(TDWBAL_HEAD_WB_EN)) };
    driver.start_tx(0, 64);
    driver.send_frame(0, &frames(1)[0]);
    assert_eq!(driver.word(HEAD_WRITE_BACK), 1);
    for sent in 2..60 {
        driver.send_frame(0, &frames(1)[0]);
        assert_ne!(driver.word(HEAD_WRITE_BACK), sent);
    }
    assert_eq!(driver.window.read(TDH.at(0)), 59, "the register is right");
}

#[test]
fn a_card_may_go_away() {
    let mut driver = lying("removed@3").start();
    driver.arrive(&frames(3));
    for offset in (0..0x1000).step_by(4) {
        assert_eq!(driver.card.read(offset), u32::MAX);
    }
    assert_eq!(driver.window.read(RDT.at(0)), u32::MAX);
    driver.window.write(CTRL, CTRL_RST);
    driver.arrive(&frames(3));
    assert_eq!(written_back(&driver, 4)[3], 0, "no memory is touched");
    driver.send_frame(0, &frames(1)[0]);
    assert_eq!(driver.sent().len(), 0);
}

#[test]
fn a_card_may_never_be_ready() {
    let driver = lying("never-ready");
    assert_eq!(driver.window.read(EEC) & EEC_AUTO_RD, 0);
    driver.window.write(EERD, EERD_START);
    assert_eq!(driver.window.read(EERD) & EERD_DONE, 0);
    driver.window.write(CTRL, CTRL_RST);
    assert_ne!(driver.window.read(CTRL) & CTRL_RST, 0);
    assert_eq!(driver.window.read(RDRXCTL) & RDRXCTL_DMAIDONE, 0);
    for queue in 0..2 {
        driver.window.write(RXDCTL.at(queue), RXDCTL_ENABLE);
        driver.window.write(TXDCTL.at(queue), TXDCTL_ENABLE);
        assert_eq!(driver.window.read(RXDCTL.at(queue)) & RXDCTL_ENABLE, 0);
        assert_eq!(driver.window.read(TXDCTL.at(queue)) & TXDCTL_ENABLE, 0);
    }
    let driver = lying("reset-never");
    assert_ne!(driver.window.read(EEC) & EEC_AUTO_RD, 0, "one at a time, too");
}

#[test]
fn a_card_may_never_stop() {
    let mut driver = lying("disable-never+master-never").start();
    driver.window.write(RXDCTL.at(0), 0);
    assert_ne!(driver.window.read(RXDCTL.at(0)) & RXDCTL_ENABLE, 0);
    driver.arrive(&frames(1));
    assert_eq!(driver.receive_all(0).len(), 1, "it does go on");
    driver.window.set(CTRL, 1 << 2);
    assert_ne!(driver.window.read(STATUS) & 1 << 19, 0);
}

#[test]
fn a_lasting_lie_ends_with_its_last_occasion() {
    let mut driver = lying("disable-never@1-2").start();
    let stop = |driver: &mut Driver| {
        driver.window.write(RXDCTL.at(0), 0);
        driver.window.read(RXDCTL.at(0)) & RXDCTL_ENABLE == 0
    };
    assert!(!stop(&mut driver));
    driver.arrive(&frames(3));
    assert!(stop(&mut driver), "two frames later");
}

#[test]
fn the_link_may_flap() {
    let mut driver = lying("link-flap@2-2").start();
    driver.arrive(&frames(1));
    driver.step();
    assert_ne!(driver.window.read(LINKS) & LINKS_UP, 0);
    driver.arrive(&frames(1));
    driver.step();
    assert_eq!(driver.window.read(LINKS) & LINKS_UP, 0);
    (0..2000).for_each(|_| {
        driver.step();
    });
    assert_ne!(driver.window.read(LINKS) & LINKS_UP, 0);
    driver.arrive(&frames(1));
    driver.step();
    assert_ne!(driver.window.read(LINKS) & LINKS_UP, 0, "once was asked for");
}

/// Returns how often an event was signalled since the last call.
fn signals(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

fn heard(driver: &Driver, vector: usize) -> OwnedFd {
    let flags = rustix::event::EventfdFlags::NONBLOCK;
    let event = rustix::event::eventfd(0, flags).unwrap();
    driver.card.set_vector(vector, Some(EventNotifier::new(event.try_clone().unwrap()).unwrap()));
    event
}

#[test]
fn messages_may_be_lost_or_too_many() {
    let mut driver = lying("interrupt-lost@2-2").start();
    let event = heard(&driver, 0);
    // MSI-X, auto-clear and auto-mask off; Rx of queue 0 is vector 0.
    driver.window.write(GPIE, 1 << 4);
    driver.window.write(IVAR.at(0), 0x80);
    driver.window.write(EIAC, 1);
    driver.window.write(EIMS, 1);
    let got: Vec<u64> = (0..3)
        .map(|_| {
            driver.arrive(&frames(1));
            signals(&event)
        })
        .collect();
    assert_eq!(got, [1, 0, 1]);
    let mut driver = lying("interrupt-storm@3-5");
    let events = [heard(&driver, 0), heard(&driver, 63)];
    (0..10).for_each(|_| {
        driver.step();
    });
    assert_eq!(events.map(|event| signals(&event)), [3, 3]);
}

#[test]
fn memory_outside_is_refused() {
    let other = DmaRegion::new(4096, &RegionConfig::default()).unwrap();
    let mut driver = lying(&format!("dma-outside@2-2={:#x}", other.iova(0))).start();
    driver.arrive(&frames(3));
    assert_eq!(driver.receive_all(0), frames(3), "the frames themselves come");
    assert_eq!(driver.card.counters().dma_faults, 1);
    let mut driver = lying(&format!("dma-outside@2-2={:#x}", other.iova(0))).start();
    driver.card.map(&other).unwrap();
    driver.arrive(&frames(3));
    assert_eq!(driver.card.counters().dma_faults, 0, "where it is mapped, it is written");
}

#[test]
fn the_same_seed_lies_alike() {
    let run = |lies: &str| {
        let mut driver = lying(lies).start();
        driver.arrive(&frames(60));
        written_back(&driver, 60)
    };
    let first = run("length-zero%0.5+seed=7");
    assert_eq!(run("length-zero%0.5+seed=7"), first);
    assert_ne!(run("length-zero%0.5+seed=8"), first);
    let told = first.iter().filter(|&&second| second >> RX_LENGTH_SHIFT == 0).count();
    assert!((10..50).contains(&told), "{told} of 60");
}

#[test]
fn a_reset_does_not_make_it_honest() {
    let mut driver = lying("length-zero").start();
    driver.arrive(&frames(1));
    driver.window.write(CTRL, CTRL_RST);
    driver.window.write(FCTRL, FCTRL_UPE);
    driver.start_rx(0, 64, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
    driver.arrive(&frames(1));
    assert_eq!(written_back(&driver, 1), [honest(0)]);
}

#[test]
fn an_honest_card_is_the_default() {
    assert!(!Lies::default().any());
    let mut driver = Driver::started();
    driver.arrive(&frames(60));
    assert_eq!(driver.receive_all(0), frames(60));
    assert_eq!(driver.card.counters().lies, 0);
}
