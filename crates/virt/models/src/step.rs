//! One step of a stopped model, for people: what driver and device wrote.

use serde::Serialize;

/// What a model did with one descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Number of the model, from 1, in the order in which they were added to their runner.
    pub card: usize,
    /// What it did, in words that follow its name.
    pub what: String,
    /// What driver and device wrote, in this order.
    pub lines: Vec<StepLine>,
    /// Bytes of the frame that the descriptor is for, in hexadecimal digits; empty if there is none.
    pub frame: String,
}

/// Something that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepLine {
    /// Who wrote it.
    pub who: Who,
    /// What was written, and where.
    pub text: String,
    /// Name and section in the datasheet.
    pub source: &'static str,
}

/// A side of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    /// The driver.
    Driver,
    /// The device.
    Card,
}

impl Step {
    /// Begins with what the driver has written.
    pub(crate) fn new(lines: Vec<StepLine>, frame: &[u8]) -> Self {
        let frame = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { card: 0, what: String::new(), lines, frame }
    }

    /// Adds a line for the device.
    pub(crate) fn card(&mut self, text: String, source: &'static str) {
        self.lines.push(StepLine { who: Who::Card, text, source });
    }
}
