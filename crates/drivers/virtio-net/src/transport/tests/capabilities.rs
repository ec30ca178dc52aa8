//! Tests of capability lists.

use proptest::prelude::*;
use ringpass_virtio::driver::Addresses;

use super::*;
use crate::transport::QueueSetup;

#[test]
fn capabilities_that_lie_are_errors_of_one_line() {
    let memory = Memory::new(0x240);
    let with = |capabilities: &[(usize, &[u8])]| card(config(capabilities), &[(4, &memory)]);
    let notify = structure(0, 2, 4, 0x200, 0x40, &4u32.to_le_bytes());
    let common = |next, bar, offset, len| structure(next, 1, bar, offset, len, &[]);
    for (card, reason) in [
        (with(&[(0x40, &[0x01, 0x50]), (0x50, &[0x05, 0x40])]), "does not end"),
        (with(&[(0x40, &[0x09, 0x40, 16, 9])]), "does not end"),
        (with(&[(0x40, &[0x01, 0x3c])]), "inside the header"),
        (with(&[(0x40, &[0x01, 0xfc]), (0xfc, &[0x09, 0, 16, 1])]), "does not fit"),
        // Each structure beyond its BAR, too short, or unaligned.
        (with(&[(0x40, &common(0x60, 4, 0x210, 60)), (0x60, &notify)]), "cannot be 60 bytes at 0x210 of BAR 4"),
        (with(&[(0x40, &common(0x60, 4, u32::MAX - 3, 60)), (0x60, &notify)]), "common configuration"),
        (with(&[(0x40, &common(0x60, 4, 0, u32::MAX)), (0x60, &notify)]), "common configuration"),
        (with(&[(0x40, &common(0x60, 4, 0, 55)), (0x60, &notify)]), "cannot be 55 bytes"),
        (with(&[(0x40, &common(0x60, 4, 2, 60)), (0x60, &notify)]), "cannot be 60 bytes at 0x2 "),
        (with(&[(0x40, &common(0x60, 4, 0, 60)), (0x60, &structure(0, 2, 4, 0x23f, 2, &[0; 4]))]), "notification"),
        (with(&[(0x40, &common(0x60, 3, 0, 60)), (0x60, &notify)]), "no BAR 3"),
        // BAR 7 is reserved: such a structure is ignored.
        (with(&[(0x40, &common(0x60, 7, 0, 60)), (0x60, &notify)]), "lacks the common configuration structure"),
        (with(&[(0x40, &common(0, 4, 0, 60))]), "lacks the notification structure"),
        (with(&[(0x40, &common(0x60, 4, 0, 60)), (0x60, &structure(0, 2, 4, 0, 64, &[]))]), "16 bytes at 0x60"),
        (with(&[(0x40, &common(0xf0, 4, 0, 60)), (0xf0, &[0x09, 0, 20, 2, 4])]), "at 0xf0; it takes 20"),
    ] {
        let error = refused(&card);
        assert!(error.contains(reason) && error.lines().count() == 1, "{reason}: {error}");
    }
    // A configuration space that cannot be read.
    let short = card(vec![0; 16], &[]);
    short.config.lock().unwrap()[6] = 0x10;
    assert!(refused(&short).contains("beyond the end"));
}

#[test]
fn the_first_usable_structure_of_each_type_counts() {
    let memory = Memory::new(0x240);
    let card = card(
        config(&[
            (0x40, &structure(0x50, 1, 7, 0, 60, &[])),
            (0x50, &structure(0x60, 1, 4, 0x80, 56, &[])),
            (0x60, &structure(0x70, 1, 4, 0, 60, &[])),
            (0x70, &structure(0x80, 77, 4, u32::MAX, u32::MAX, &[])),
            (0x80, &structure(0, 2, 4, 0x200, 0x40, &[0; 4])),
        ]),
        &[(4, &memory)],
    );
    let mut transport = open(&card).expect("a card");
    transport.set_status(1);
    assert_eq!(memory.accesses(), [Write(0x80 + 20, 1, 1)]);
    // The structure has 56 bytes, without the register that resets a queue, and there is no device
    // configuration.
    let error = transport.reset_queue(0).expect_err("none").to_string();
    assert!(error.contains("no register"), "{error}");
    let error = transport.read_config(0, &mut [0]).expect_err("none").to_string();
    assert!(error.contains("no device configuration"), "{error}");
}

#[test]
fn cards_without_an_interface_are_refused() {
    assert!(refused(&card(config(&[]), &[])).contains("no BAR 0"));
    let error = refused(&card(config(&[]), &[(0, &Memory::new(16))]));
    assert!(error.contains("BAR 0 has 16 bytes"), "{error}");
}

/// Generates a structure of any content, mostly nearly right, and the offset of the next one.
fn any_structure() -> impl Strategy<Value = (Vec<u8>, Option<u8>)> {
    let odd = || prop_oneof![0u32..0x260, any::<u32>(), Just(u32::MAX)];
    let offset = prop_oneof![8 => (0u32..0x80).prop_map(|at| 4 * at), 1 => odd()];
    let len = prop_oneof![8 => 50u32..0x100, 1 => odd()];
    let multiplier = prop_oneof![4 => 0u32..9, 1 => odd()];
    let (kind, bar) = (prop_oneof![8 => 1u8..5, 1 => any::<u8>()], prop_oneof![8 => Just(4u8), 1 => any::<u8>()]);
    let next = prop_oneof![30 => Just(None), 1 => any::<u8>().prop_map(Some)];
    (kind, bar, offset, len, multiplier, next).prop_map(|(kind, bar, offset, len, multiplier, next)| {
        (structure(0, kind, bar, offset, len, &multiplier.to_le_bytes()), next)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Whatever a card reports, no access leaves its BARs: the memory behind them would panic.
    #[test]
    fn no_card_leads_outside_its_bars(
        structures in prop::collection::vec(any_structure(), 2..8),
        doorbell in prop_oneof![0u16..0x40, any::<u16>()],
        notification_data: bool,
    ) {
        let at = |i: usize| 0x40 + 24 * i;
        let mut config = config(&[(0x40, &[0x09])]);
        for (i, (bytes, next)) in structures.iter().enumerate() {
            config[at(i)..at(i) + bytes.len()].copy_from_slice(bytes);
            config[at(i) + 1] = next.unwrap_or(if i + 1 < structures.len() { at(i + 1) as u8 } else { 0 });
        }
        let memory = Memory::new(0x240);
        let ports = Memory::new(64);
        let Ok(mut card) = open(&card(config, &[(0, &ports), (4, &memory)])) else { return Ok(()) };
        (0..0x120).for_each(|i| memory.set(2 * i, &doorbell.to_le_bytes()));
        card.reset().expect("what is written is read");
        let features = card.features();
        card.accept(features);
        let addresses = Addresses { descriptors: 0, driver: 4096, device: 8192 };
        for queue in [0, 1, 0xffff] {
            let size = card.queue_size(queue);
            let setup = QueueSetup { size, addresses, vector: None, notification_data };
            // SAFETY: the test's card is plain memory; it does no DMA.
            if let Ok(doorbell) = unsafe { card.start_queue(queue, &setup) } {
                doorbell.notify(7);
            }
        }
        for offset in [0, 6, 10, 0x1f0, usize::MAX] {
            let _ = card.read_config(offset, &mut [0; 2]);
            let _ = card.write_config(offset, &[0; 8]);
        }
    }
}
