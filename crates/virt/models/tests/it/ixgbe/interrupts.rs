//! Interrupts (7.3): which vectors are signalled, when, and how often.

use std::time::{Duration, Instant};

use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;
use ringpass_pci::registers::{RW, Reg};
use ringpass_pci::{EventWaiter, PciDevice};

use crate::ixgbe::driver::{Driver, frame, own_mac};

/// Returns the number of messages since the last call.
fn rung(event: &EventWaiter) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(event.event(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

/// Starts queue 0 with vector 0 for Rx and 1 for Tx; other causes use vector 2. Set up as by Linux: MSI-X,
/// auto-clear, auto-mask.
fn msix() -> (Driver, Vec<EventWaiter>) {
    let driver = Driver::started();
    let events = driver.card.interrupts(3).unwrap();
    assert_eq!(events.len(), 3);
    driver.window.write(GPIE, GPIE_MSIX_MODE | GPIE_OCD | GPIE_PBA_SUPPORT | GPIE_EIAME);
    driver.window.write(EIAC, 0x0000_ffff);
    driver.window.write(EIAM_EX.at(0), 0xffff_ffff);
    driver.window.write(IVAR.at(0), 0x8180);
    driver.window.write(IVAR_MISC, 0x8200);
    (driver, events)
}

fn arrive(driver: &mut Driver) {
    driver.arrive(&[frame(own_mac(), 60)]);
}

#[test]
fn a_queue_tells_its_vector_and_masks_it() {
    let (mut driver, events) = msix();
    arrive(&mut driver);
    assert_eq!(rung(&events[0]), 0, "masked");
    assert_eq!(driver.window.read(EICR_PEEK) & 0xffff, 1, "but noted");
    driver.window.write(EIMS_EX.at(0), 0b111);
    assert_eq!((rung(&events[0]), rung(&events[1])), (1, 0), "told when it is enabled");
    assert_eq!(driver.window.read(EIMS), 0b110, "and masked by that");
    assert_eq!(driver.window.read(EICR_PEEK), 0, "and cleared");
    arrive(&mut driver);
    assert_eq!(rung(&events[0]), 0);
    driver.send_frame(0, &frame(own_mac(), 60));
    assert_eq!((rung(&events[0]), rung(&events[1])), (0, 1), "Tx with RS");
    driver.window.write(EIMS, 1);
    assert_eq!(rung(&events[0]), 1, "what came meanwhile");
    driver.window.write(EIMS, 1);
    driver.step();
    assert_eq!(rung(&events[0]), 0, "nothing came");
}

/// EICS, which reads as EICR without clearing it.
const EICR_PEEK: Reg<RW> = Reg::new("EICS", EICS.offset);

#[test]
fn frames_without_a_report_tell_nobody() {
    let (mut driver, events) = msix();
    driver.window.write(EIMS_EX.at(0), 0b111);
    let bytes = frame(own_mac(), 60);
    driver.put(0, &bytes, descriptor::TX_EOP | descriptor::TX_IFCS, bytes.len());
    driver.send(0);
    assert_eq!((driver.sent().len(), rung(&events[1])), (1, 0));
    // A frame that no filter accepts causes no interrupt either.
    driver.window.write(FCTRL, 0);
    driver.arrive(&[frame([2, 9, 9, 9, 9, 9], 60)]);
    assert_eq!(rung(&events[0]), 0);
}

#[test]
fn a_change_of_the_link_is_told_once() {
    let (driver, events) = msix();
    driver.window.write(EIMS, EICR_LSC);
    driver.card.set_link(false);
    assert_eq!(rung(&events[2]), 1);
    driver.card.set_link(true);
    assert_eq!(rung(&events[2]), 0, "it has not been cleared");
    assert_eq!(driver.window.read(EICR_PEEK), EICR_LSC, "not auto-cleared");
    driver.window.write(EICR, EICR_LSC);
    driver.card.set_link(false);
    assert_eq!(rung(&events[2]), 1);
    driver.window.write(EIMC, EICR_LSC);
    driver.window.write(EIMS, EICR_LSC);
    assert_eq!(rung(&events[2]), 1, "enabled while it is set");
}

#[test]
fn software_sets_causes() {
    let (driver, events) = msix();
    driver.window.write(EICS_EX.at(0), 0b001);
    driver.window.write(EIMS, 0xffff);
    assert_eq!(rung(&events[0]), 1);
    driver.window.write(EICS, 0b010);
    assert_eq!((rung(&events[0]), rung(&events[1])), (0, 1));
    driver.window.write(EICS, EICR_LSC);
    assert_eq!(rung(&events[2]), 0, "that one is masked");
}

#[test]
fn high_vectors_have_masks_of_their_own() {
    let (mut driver, _) = msix();
    let events = driver.card.interrupts(64).unwrap();
    driver.window.write(IVAR.at(0), 0xbfa0);
    driver.window.write(EIMS_EX.at(1), 1 << 31 | 1);
    assert_eq!(driver.window.read(EIMS_EX.at(1)), 1 << 31 | 1);
    arrive(&mut driver);
    driver.send_frame(0, &frame(own_mac(), 60));
    assert_eq!((rung(&events[32]), rung(&events[63])), (1, 1));
    driver.window.write(EIMC_EX.at(1), 1);
    assert_eq!(driver.window.read(EIMS_EX.at(1)), 1 << 31, "EIAM_EX does not select these");
}

#[test]
fn moderation_keeps_messages_apart() {
    let (mut driver, events) = msix();
    // 255 units of 2 us.
    driver.window.write(EITR.at(0), 255 << 3 | EITR_CNT_WDIS);
    assert_eq!(driver.window.read(EITR.at(0)), 255 << 3, "CNT_WDIS is not kept");
    driver.window.write(EIMS, 1);
    let start = Instant::now();
    arrive(&mut driver);
    assert_eq!(rung(&events[0]), 1, "the first at once");
    driver.window.write(EIMS, 1);
    arrive(&mut driver);
    // The second one arrives when the interval is over, although nothing else happens.
    while rung(&events[0]) == 0 {
        let late = start.elapsed() > Duration::from_secs(5);
        assert!(!late && driver.card.interest().turn.is_some());
        driver.step();
    }
    assert!(start.elapsed() >= Duration::from_micros(510));
    assert_eq!(driver.card.interest().turn, None);
}

#[test]
fn without_msix_there_is_one_vector() {
    let mut driver = Driver::started();
    let events = driver.card.interrupts(2).unwrap();
    driver.window.write(IVAR.at(0), 0x8180);
    driver.window.write(EIAM, 0x0000_ffff);
    driver.window.write(EIMS, 0xffff | EICR_LSC);
    arrive(&mut driver);
    assert_eq!((rung(&events[0]), rung(&events[1])), (1, 0));
    arrive(&mut driver);
    assert_eq!(rung(&events[0]), 0, "it stands");
    driver.send_frame(0, &frame(own_mac(), 60));
    assert_eq!(rung(&events[0]), 1, "another cause");
    assert_eq!(driver.window.read(EICR), 0b11);
    assert_eq!(driver.window.read(EICR), 0, "cleared by reading");
    assert_eq!(driver.window.read(EIMS), EICR_LSC, "which masks what EIAM selects");
    driver.window.write(EIMS, 0xffff);
    arrive(&mut driver);
    assert_eq!(rung(&events[0]), 1);
}

#[test]
fn reading_leaves_causes_of_queues_with_ocd() {
    let (mut driver, _events) = msix();
    arrive(&mut driver);
    driver.card.set_link(false);
    assert_eq!(driver.window.read(EICR), EICR_LSC | 1);
    assert_eq!(driver.window.read(EICR), 1);
}

#[test]
fn a_vector_without_a_listener_waits_for_one() {
    let (mut driver, events) = msix();
    driver.window.write(EIMS, 1);
    driver.card.set_vector(0, None);
    arrive(&mut driver);
    assert_eq!(rung(&events[0]), 0);
    driver.card.set_vector(0, Some(events[0].signal()));
    assert_eq!(rung(&events[0]), 1);
}

#[test]
fn a_reset_forgets_causes_and_masks() {
    let (mut driver, events) = msix();
    driver.window.write(EIMS, 0xffff);
    driver.window.write(CTRL, CTRL_RST);
    assert_eq!((driver.window.read(EIMS), driver.window.read(GPIE)), (0, 0));
    driver.card.set_bus_master(true).unwrap();
    driver.start_rx(0, 64, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
    driver.window.write(FCTRL, FCTRL_UPE);
    arrive(&mut driver);
    assert_eq!(rung(&events[0]), 0);
}

#[test]
fn an_event_that_nobody_reads_does_not_stop_the_card() {
    let (mut driver, events) = msix();
    rustix::io::write(events[0].event(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    for _ in 0..3 {
        driver.window.write(EIMS, 1);
        arrive(&mut driver);
    }
    // The kernel's own signalling raises the counter to its maximum, which no write can reach.
    assert_eq!(rung(&events[0]), u64::MAX);
}
