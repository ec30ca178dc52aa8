//! Each kind of lie is told on its occasions.

use ringpass_models::virtio::{Lie, Lies, VirtioConfig, When};
use ringpass_virtio::features::*;

use crate::virtio::driver::*;

const FEATURES: u64 = MRG_RXBUF | CTRL_VQ | CTRL_RX | STATUS | RING_RESET | EVENT_IDX;

fn liar(lie: Lie, features: u64) -> Driver {
    let lies = Lies::default().with(lie, When { first: 3, ..When::default() });
    Driver::up(&VirtioConfig { features: FEATURES | features, lies, ..VirtioConfig::default() }, 64)
}

/// Returns the used entries of queue 0 after four frames, the last two with a lie.
fn used(lie: Lie, features: u64) -> Vec<(u32, u32)> {
    let mut driver = liar(lie, features);
    for i in 0..4 {
        driver.arrive(&[any_frame(60 + i)]);
    }
    driver.all_used(0)
}

#[test]
fn what_is_given_back() {
    for kind in [0, RING_PACKED] {
        let honest = [(0, 72), (1, 73), (2, 74), (3, 75)];
        let told = |lie| used(lie, kind);
        assert_eq!(told(Lie::LengthZero)[..4], [(0, 72), (1, 73), (2, 0), (3, 0)]);
        assert_eq!(told(Lie::IdMidChain)[1..3], [(1, 73), (3, 74)]);
        assert_eq!(told(Lie::IdTwice)[1..3], [(1, 73), (1, 74)]);
        assert_eq!(told(Lie::IdFree)[2].0, 34);
        assert!(told(Lie::LengthLong)[2].1 > 4096);
        let wild = told(Lie::IdWild)[2].0;
        assert!(wild >= 64 || kind == RING_PACKED, "{wild}");
        assert_eq!(told(Lie::RxStuck), honest[..2]);
    }
    let driver = &mut liar(Lie::IndexJumps, 0);
    (0..3).for_each(|_| driver.arrive(&[any_frame(60)]));
    let index = driver.read16(driver.queues[0].areas[2] + 2);
    assert_eq!(index, 3 + 65);
    // The lie spoilt the descriptor that the device would have used for the fourth frame.
    assert_eq!(used(Lie::FlagsEarly, RING_PACKED), [(0, 72), (1, 73), (2, 74), (2, 0)]);
    assert_eq!(used(Lie::WrongWrap, RING_PACKED).len(), 2);
}

#[test]
fn headers() {
    for (lie, buffers) in [(Lie::BuffersZero, 0), (Lie::BuffersMany, 0xffff), (Lie::BuffersMissing, 2)] {
        let mut driver = liar(lie, 0);
        (0..3).for_each(|_| driver.arrive(&[any_frame(60)]));
        let headers: Vec<Vec<u8>> = (0..3).map(|_| driver.receive().unwrap().header).collect();
        let told = headers.iter().map(|header| u16::from_le_bytes([header[10], header[11]])).collect::<Vec<_>>();
        assert_eq!(told, [1, 1, buffers]);
    }
    let mut driver = liar(Lie::HeaderWild, 0);
    (0..3).for_each(|_| driver.arrive(&[any_frame(60)]));
    let headers: Vec<Vec<u8>> = (0..3).map(|_| driver.receive().unwrap().header).collect();
    assert!(headers[1][..10] == [0; 10] && headers[2][..10] != [0; 10]);
}

#[test]
fn registers_and_commands() {
    let mut driver = liar(Lie::Removed, 0);
    (0..4).for_each(|_| driver.arrive(&[any_frame(60)]));
    assert_eq!((driver.status(), driver.bar.read32(0), driver.all_used(0).len()), (0xff, u32::MAX, 3));
    let mut driver = liar(Lie::NeedsReset, 0);
    (0..5).for_each(|_| driver.arrive(&[any_frame(60)]));
    assert_ne!(driver.status() & NEEDS_RESET, 0);
    let mut driver = liar(Lie::ConfigChanges, 0);
    (0..5).for_each(|_| driver.arrive(&[any_frame(60)]));
    assert!(driver.heard(driver.vectors.len() - 1) > 0);
    let mut driver = liar(Lie::ControlNever, 0);
    assert_eq!([0, 1, 2].map(|_| driver.command(0, 0, &[1])), [Some(0), Some(0), None]);
    let mut driver = liar(Lie::ControlFails, 0);
    assert_eq!([0, 1, 2].map(|_| driver.command(0, 0, &[1])), [Some(0), Some(0), Some(1)]);
    let mut driver = liar(Lie::TxStuck, 0);
    (0..4).for_each(|_| driver.send(&[], &any_frame(60)));
    assert_eq!((driver.sent().len(), driver.all_used(1).len()), (2, 2));
    let mut driver = liar(Lie::LinkFlap, 0);
    (0..6).for_each(|_| driver.arrive(&[any_frame(60)]));
    assert_eq!(driver.bar.read16(CONFIG + 6), 0);
    (0..1100).for_each(|_| _ = driver.step());
    assert_eq!(driver.bar.read16(CONFIG + 6), 1);
}

#[test]
fn never_ready() {
    let lies: Lies = "never-ready".parse().unwrap();
    let driver = Driver::on(&VirtioConfig { lies, ..VirtioConfig::default() }, false);
    driver.set_status(ACKNOWLEDGE);
    driver.bar.write32(8, 1);
    driver.bar.write32(12, 1);
    driver.set_status(FEATURES_OK);
    assert_eq!(driver.status(), ACKNOWLEDGE);
    driver.write_status(0);
    assert_eq!(driver.status(), ACKNOWLEDGE);
}

#[test]
fn memory_outside_is_written_to_and_that_is_counted() {
    let lies: Lies = "dma-outside@2-2=0xdead0000".parse().unwrap();
    let mut driver = Driver::up(&VirtioConfig { features: 0, lies, ..VirtioConfig::default() }, 64);
    (0..5).for_each(|_| driver.arrive(&[any_frame(60)]));
    let counters = driver.card.counters();
    assert_eq!((counters.dma_faults, counters.faults, counters.rx_packets), (1, 0, 5));
}
