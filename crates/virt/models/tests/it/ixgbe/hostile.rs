//! Arbitrary accesses of a driver cause no panic, and no byte is written outside of the mapped memory.

use std::sync::Arc;

use proptest::prelude::*;
use ringpass_memory::{DmaArray, DmaRegion, RegionConfig};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;
use ringpass_pci::registers::{RW, Reg};

use crate::ixgbe::driver::{Driver, REGION, Word, frame, own_mac};

#[derive(Clone, Debug)]
enum Action {
    /// Any offset, any value.
    Write(u32, u32),
    /// A register of the table, by its index in it.
    WriteRow(usize, u32, u32),
    Read(u32),
    /// A word of the mapped memory, such as half a descriptor.
    Memory(usize, u64),
    /// A word of the mapped memory set to an address that is in the memory, close to its ends, or in the
    /// canary.
    Pointer(usize, u64, i64),
    /// A Tx descriptor of a plausible kind: its position, flags and kind, length, and all other bits.
    Tx(usize, u64, u16, u64),
    /// Enables pools, traffic classes or RSS, filters and flow director.
    Steer(u32),
    /// Tails of the first two queues.
    Ring(u32, u32),
    Enable,
    Arrive(usize),
    BusMaster(bool),
    Step,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        1 => (0u32..0x2_0000, any::<u32>()).prop_map(|(offset, value)| Action::Write(offset, value)),
        6 => (0..TABLE.len(), 0u32..4, any::<u32>()).prop_map(|(row, i, value)| Action::WriteRow(row, i, value)),
        1 => (0u32..0x2_0000).prop_map(Action::Read),
        4 => (0usize..0x2_0000, any::<u64>()).prop_map(|(at, value)| Action::Memory(at, value)),
        4 => (0usize..0x2_0000, 0u64..3, -70i64..70).prop_map(|(at, which, by)| Action::Pointer(at, which, by)),
        6 => (0usize..128, any::<u64>(), 0u16..9000, any::<u64>())
            .prop_map(|(at, kind, len, rest)| Action::Tx(at, kind, len, rest)),
        1 => any::<u32>().prop_map(Action::Steer),
        6 => (0u32..80, 0u32..80).prop_map(|(rx, tx)| Action::Ring(rx, tx)),
        2 => Just(Action::Enable),
        4 => (0usize..2000).prop_map(Action::Arrive),
        1 => any::<bool>().prop_map(Action::BusMaster),
        8 => Just(Action::Step),
    ]
}

const CANARY: u64 = 0xdead_beef_0bad_cafe;

struct Canary {
    region: Arc<DmaRegion>,
    words: DmaArray<Word>,
}

impl Canary {
    fn new() -> Self {
        let region = DmaRegion::new(1 << 16, &RegionConfig::default()).unwrap();
        let words: DmaArray<Word> = DmaArray::new(&region, 0, (1 << 16) / 8).unwrap();
        words.iter().for_each(|word| word.store(CANARY));
        Self { region, words }
    }

    fn is_whole(&self) -> bool {
        self.words.iter().all(|word| word.load() == CANARY)
    }
}

fn apply(driver: &mut Driver, canary: &Canary, action: Action) {
    let write = |driver: &Driver, offset: u32, value| driver.window.write(Reg::<RW>::new("any", offset), value);
    match action {
        Action::Write(offset, value) => write(driver, offset, value),
        Action::WriteRow(row, i, value) => {
            let row = &TABLE[row];
            write(driver, row.offset + row.stride * (i % row.count), value);
        }
        Action::Read(offset) => {
            driver.window.read(Reg::<RW>::new("any", offset));
        }
        Action::Memory(at, value) => driver.set_word(at & !7, value),
        Action::Pointer(at, which, by) => {
            let base = match which {
                0 => driver.region.iova(0),
                1 => driver.region.iova(0) + REGION as u64,
                _ => canary.region.iova(0x8000),
            };
            driver.set_word(at & !15, base.wrapping_add_signed(by));
        }
        Action::Tx(at, kind, len, rest) => {
            let at = Driver::tx_descriptor(at / 64, at % 64);
            // A context, data or legacy descriptor, with any flags.
            let kind =
                [2 << 20 | 1 << 29, 3 << 20 | 1 << 29, 3 << 20 | 1 << 29, 0][(kind & 3) as usize] | kind & 0xdf00_0000;
            let is_context = kind & 0xf << 20 == 2 << 20;
            let address = if is_context { 20 | 14 << 9 | rest << 16 } else { driver.region.iova(0x2_0000) };
            // The lengths match half of the time.
            let frame = if rest & 1 == 0 { u64::from(len) << 46 } else { 0 };
            let word = if is_context { rest & !0xff_ffff } else { u64::from(len) | rest & 0x3fff << 32 | frame };
            driver.set_word(at, address);
            driver.set_word(at + 8, word & !0xff00_0000 | kind);
        }
        Action::Steer(mode) => {
            driver.window.write(MRQC, mode & 0xffff_000f);
            driver.window.write(PFVTCTL, mode >> 8 | mode & 1);
            driver.window.write(PFVFRE.at(0), mode);
            driver.window.write(FTQF.at(0), 1 << 31 | mode);
            driver.window.write(ETQF.at(0), 1 << 31 | 1 << 26 | mode << 4 & 0x3f0_0000 | 0x88b5);
            driver.window.write(FDIRCTRL, mode & 0x1f);
        }
        Action::Ring(rx, tx) => {
            for queue in 0..2 {
                driver.window.doorbell(RDT.at(queue)).ring(rx);
                driver.window.doorbell(TDT.at(queue)).ring(tx);
            }
        }
        Action::Enable => {
            for queue in 0..2 {
                driver.start_rx(queue, 64, SRRCTL_DESCTYPE_ADV_ONEBUF | 1);
                driver.start_tx(queue, 64);
            }
        }
        Action::Arrive(len) => driver.wire.frames().to_card.push_back(frame(own_mac(), len)),
        Action::BusMaster(on) => driver.card.set_bus_master(on).unwrap(),
        Action::Step => {
            driver.step();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_a_driver_writes_breaks_the_card(actions in prop::collection::vec(action(), 1..200)) {
        let mut driver = Driver::started();
        driver.start_rx(1, 64, SRRCTL_DESCTYPE_ADV_ONEBUF | 1);
        driver.start_tx(1, 64);
        let canary = Canary::new();
        for action in actions {
            apply(&mut driver, &canary, action);
        }
        prop_assert!(canary.is_whole());
        // After a reset the NIC works normally.
        driver.window.write(CTRL, CTRL_RST);
        driver.card.set_bus_master(true).unwrap();
        driver.window.write(FCTRL, FCTRL_UPE);
        driver.wire.frames().to_card.clear();
        driver.start_rx(0, 64, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
        driver.start_tx(0, 64);
        driver.sent();
        let bytes = frame(own_mac(), 100);
        driver.arrive(std::slice::from_ref(&bytes));
        prop_assert_eq!(driver.receive_all(0), [bytes.clone()]);
        driver.send_frame(0, &bytes);
        prop_assert_eq!(driver.sent(), [bytes]);
    }
}
