//! When the device interrupts, and how (2.7.7, 2.8.10, 4.1.5.3 to 4.1.5.5).

use ringpass_models::virtio::VirtioConfig;
use ringpass_virtio::features::*;

use crate::virtio::driver::*;

/// Requests an interrupt at a position of queue 0, at every used buffer, or none.
fn ask(driver: &Driver, position: Option<u16>, all: bool) {
    let Queue { size, areas, packed, .. } = driver.queues[0];
    if packed {
        let flags = if position.is_some() { 2u16 } else { u16::from(!all) };
        let wrap = |at: u16| if (at / size).is_multiple_of(2) { 1 << 15 } else { 0 };
        let position = position.map_or(0, |at| at % size + wrap(at));
        driver.write(areas[1], [position, flags].map(u16::to_le_bytes).as_flattened());
    } else if let Some(position) = position {
        driver.write(areas[1] + 4 + 2 * usize::from(size), &position.to_le_bytes());
    } else {
        driver.write(areas[1], &u16::from(!all).to_le_bytes());
    }
}

#[test]
fn flags_ask_for_all_or_none() {
    for ring in [0, RING_PACKED] {
        let driver = &mut Driver::started(ring);
        for (all, heard) in [(true, 1), (false, 0), (true, 1)] {
            ask(driver, None, all);
            driver.arrive(&[any_frame(60), any_frame(61), any_frame(62)]);
            assert_eq!((driver.heard(0), driver.heard(1)), (heard, 0), "{ring:#x}");
        }
    }
}

#[test]
fn positions_ask_for_one() {
    for ring in [EVENT_IDX, EVENT_IDX | RING_PACKED] {
        let driver = &mut Driver::started(ring);
        let mut used = 0;
        for turn in 0..200 {
            let ahead = turn % 5;
            ask(driver, Some(used + ahead), false);
            driver.fill(0, 0);
            for i in 0..5 {
                driver.arrive(&[any_frame(60)]);
                assert_eq!(driver.heard(0), u64::from(i == ahead), "{ring:#x}, turn {turn}, frame {i} of {ahead}");
                used += 1;
            }
            assert_eq!(driver.all_used(0).len(), 5);
            driver.fill(0, 5);
        }
    }
}

#[test]
fn without_vectors_there_is_the_isr_register() {
    let config = VirtioConfig { features: STATUS, ..VirtioConfig::default() };
    let mut driver = Driver::on(&config, false);
    driver.negotiate(STATUS | VERSION_1).unwrap();
    (0..2).for_each(|queue| driver.start_queue(queue, 64));
    driver.set_status(DRIVER_OK);
    driver.fill(0, 4);
    assert_eq!(driver.bar.read8(ISR), 0);
    driver.arrive(&[any_frame(60)]);
    driver.card.set_link(false);
    assert_eq!([driver.bar.read8(ISR), driver.bar.read8(ISR)], [3, 0]);
}
