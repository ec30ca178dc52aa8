//! What the driver writes to registers, for people who look on.

use ringpass_pci::registers::RegIndex;
use ringpass_pci::registers::ixgbe::TABLE;

use crate::step::{StepLine, Who};

/// Most register writes that are kept between two steps.
const MOST_WRITES: usize = 64;

/// What the driver has written since the last step.
pub(super) struct Trace {
    /// Its tails at the last step, by the offset of the register.
    pub(super) tails: Vec<(u32, u32)>,
    /// Its writes to other registers.
    pub(super) writes: Vec<StepLine>,
}

/// Returns the name of a register, with its number in its array.
pub(super) fn name(RegIndex { row, index }: RegIndex) -> String {
    let row = &TABLE[row];
    if row.count > 1 { format!("{}[{index}]", row.name) } else { row.name.to_owned() }
}

impl Trace {
    /// Begins with these tails.
    pub(super) fn new(tails: Vec<(u32, u32)>) -> Self {
        Self { tails, writes: Vec::new() }
    }

    /// Keeps a write to a register that is not a tail.
    pub(super) fn wrote(&mut self, register: RegIndex, value: u32) {
        if self.writes.len() < MOST_WRITES {
            let source = TABLE[register.row].description;
            self.writes.push(StepLine { who: Who::Driver, text: format!("{} = {value:#x}", name(register)), source });
        }
    }
}
