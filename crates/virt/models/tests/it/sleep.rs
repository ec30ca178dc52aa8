//! A model without work sleeps, and every source of work wakes it. In a process of its own, because the thread
//! is found by name.

use std::time::Duration;

use ringpass_models::Runner;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;
use ringpass_pci::{EventWaiter, PciDevice};
use ringpass_testing::poll_until;

use crate::ixgbe::driver::{Driver, own_mac};
use crate::readable::{Readable, sleeps_for};
use crate::wire::frame;

#[test]
fn a_model_sleeps_until_something_wakes_it() {
    let mut driver = Driver::started();
    let (wire, queues) = Readable::new();
    let [heard] = <[EventWaiter; 1]>::try_from(driver.card.interrupts(1).unwrap()).unwrap();
    driver.window.write(GPIE, GPIE_MSIX_MODE | GPIE_EIAME);
    driver.window.write(EIAC, 0xffff);
    driver.window.write(EITR.at(0), 0x1f8);
    driver.window.write(IVAR.at(0), 0x8080);
    let runner = Runner::spawn(vec![(driver.card.clone(), queues)], None, ringpass_port::Idle::default());
    for i in 1..=20usize {
        std::thread::sleep(Duration::from_millis(if i % 5 == 0 { 20 } else { 1 }));
        driver.window.write(EIMS, 1);
        // The wire wakes the thread.
        wire.arrive(frame(own_mac(), 60));
        poll_until("a frame from the wire", || driver.receive(0).is_some());
        // A doorbell wakes the thread.
        driver.put(0, &frame(own_mac(), 60), descriptor::TX_EOP | descriptor::TX_IFCS | descriptor::TX_RS, 60);
        driver.window.doorbell(TDT.at(0)).ring(i as u32 % 64);
        poll_until("a frame from the driver", || wire.sent() == i);
        // A throttled interrupt is sent after its interval.
        driver.window.write(EIMS, 1);
        poll_until("an interrupt", || rustix::io::read(heard.event(), &mut [0; 8]).is_ok());
    }
    // A wire does not wake the thread while the receiver is off.
    driver.window.write(RXCTRL, 0);
    wire.arrive(frame(own_mac(), 60));
    sleeps_for(Duration::from_millis(500));
    // The register write that turns the receiver on wakes the thread.
    driver.window.write(RXCTRL, RXCTRL_RXEN);
    poll_until("the frame that waited", || driver.receive(0).is_some());
    drop(runner);
}
