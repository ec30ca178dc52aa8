//! Models that are stopped, and handle one descriptor at a time.

use ringpass_models::{Runner, Step, Who};
use ringpass_pci::registers::ixgbe::*;
use ringpass_testing::poll_until;

use crate::ixgbe::driver::{Driver, own_mac};
use crate::readable::Readable;
use crate::wire::frame;

fn by(step: &Step, who: Who) -> Vec<&str> {
    step.lines.iter().filter(|line| line.who == who).map(|line| &line.text[..]).collect()
}

#[test]
fn a_stopped_model_handles_one_descriptor_a_step_and_tells_what_was_written() {
    let mut driver = Driver::started();
    let (wire, queues) = Readable::new();
    let runner = Runner::spawn(vec![(driver.card.clone(), queues)], None, ringpass_port::Idle::default());
    let stepper = runner.stepper();
    assert_eq!(stepper.is_stopped(), Some(false));
    wire.arrive(frame(own_mac(), 60));
    poll_until("a frame", || driver.receive(0).is_some());

    stepper.stop(true);
    assert_eq!((stepper.step(), stepper.is_stopped()), (Ok(None), Some(true)), "nothing is to be done");
    let frames = [frame(own_mac(), 60), frame(own_mac(), 61)];
    frames.iter().for_each(|frame| wire.arrive(frame.clone()));
    for _ in 0..2 {
        driver.put(0, &frame(own_mac(), 60), descriptor::TX_EOP | descriptor::TX_IFCS | descriptor::TX_RS, 60);
    }
    driver.window.write(EIMC, 1);
    driver.window.doorbell(TDT.at(0)).ring(2);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(wire.sent() == 0 && driver.receive(0).is_none(), "it is stopped");

    // What is to be sent comes first, then the wire's frames.
    let step = stepper.step().expect("an answer").expect("a step");
    assert_eq!(by(&step, Who::Driver), ["EIMC = 0x1", "TDT[0] = 2 (before: 0)"]);
    assert!(by(&step, Who::Card)[0].starts_with("read descriptor 0: 60 bytes at 0x"), "{step:?}");
    assert_eq!(by(&step, Who::Card)[1..], ["descriptor 0: DD, done", "TDH[0] = 1"]);
    assert_eq!((step.card, step.frame.len(), wire.sent()), (1, 120, 1));
    assert_eq!(step.what, "sent a frame: descriptor 0 of Tx ring 0");
    let step = stepper.step().expect("an answer").expect("a step");
    assert!(by(&step, Who::Driver).is_empty() && step.what.ends_with("descriptor 1 of Tx ring 0"), "{step:?}");
    for (number, frame) in (1..).zip(&frames) {
        let step = stepper.step().expect("an answer").expect("a step");
        assert_eq!(step.what, format!("received a frame: descriptor {number} of Rx ring 0"));
        let len = frame.len();
        assert_eq!(
            by(&step, Who::Card)[1..],
            [format!("descriptor {number}: length {len}, DD, EOP"), format!("RDH[0] = {}", number + 1)]
        );
        assert!(step.lines.iter().all(|line| line.source.contains('.')), "sections of the datasheet: {step:?}");
        assert_eq!(step.frame.len(), 2 * len);
        assert_eq!(driver.receive(0).map(|received| received.bytes).as_ref(), Some(frame));
    }
    assert_eq!(stepper.step(), Ok(None));

    stepper.stop(false);
    wire.arrive(frame(own_mac(), 60));
    poll_until("a frame", || driver.receive(0).is_some());
    drop(runner);
    assert_eq!(stepper.is_stopped(), None);
    assert!(stepper.step().is_err());
}
