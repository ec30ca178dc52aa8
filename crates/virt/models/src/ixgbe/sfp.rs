//! The SFP+ module: memory (SFF-8472) on an I2C bus that the driver bit-bangs through I2CCTL (8.2.3.1.5).

const CLOCK_IN: u32 = 1 << 0;
const CLOCK_OUT: u32 = 1 << 1;
const DATA_IN: u32 = 1 << 2;
const DATA_OUT: u32 = 1 << 3;

/// First writable byte of device A2h: status and control, rate select, and the user's bytes follow.
const CONTROL: u8 = 110;

/// State of the module within a bus cycle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waiting for a start condition.
    Idle,
    /// Receiving a byte, of which `bits` bits have arrived.
    Receives { byte: u8, bits: u8, meaning: Meaning },
    /// Acknowledging a byte; with `None` the module sends next.
    Acknowledges { then: Option<Meaning> },
    /// Sending a byte, highest bit first; `left` bits follow the one on the line.
    Sends { byte: u8, left: u8 },
    /// Waiting for the driver to acknowledge a byte, or not.
    Waits { acknowledged: bool },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Address,
    Offset,
    Data,
}

pub(super) struct Sfp {
    /// Memory at device addresses A0h and A2h.
    memory: [[u8; 256]; 2],
    /// Whether there is a module.
    present: bool,
    bank: usize,
    offset: u8,
    state: State,
    /// The lines as the driver drives them. A line is high if neither side pulls it down.
    clock: bool,
    data: bool,
    /// The data line as the module drives it.
    own_data: bool,
}

impl Sfp {
    pub(super) fn new(present: bool) -> Self {
        let memory = [identification(), diagnostics()];
        Self { memory, present, bank: 0, offset: 0, state: State::Idle, clock: true, data: true, own_data: true }
    }

    /// Returns what I2CCTL reads.
    pub(super) fn read(&self) -> u32 {
        let lines = [(self.clock, CLOCK_IN | CLOCK_OUT), (self.data && self.own_data, DATA_IN), (self.data, DATA_OUT)];
        lines.into_iter().filter(|(high, _)| *high).map(|(_, bits)| bits).sum()
    }

    /// Carries out a write to I2CCTL.
    pub(super) fn write(&mut self, value: u32) {
        let (clock, data) = (value & CLOCK_OUT != 0, value & DATA_OUT != 0);
        if self.clock && clock && self.data != data {
            // The data line changes while the clock is high: a start or stop condition.
            self.own_data = true;
            self.state = match data {
                false => State::Receives { byte: 0, bits: 0, meaning: Meaning::Address },
                true => State::Idle,
            };
        }
        self.data = data;
        match (std::mem::replace(&mut self.clock, clock), clock) {
            (false, true) => self.clock_rises(),
            (true, false) => self.clock_falls(),
            _ => {}
        }
    }

    /// Samples the data line at a rising edge of the clock.
    fn clock_rises(&mut self) {
        match &mut self.state {
            State::Receives { byte, bits, .. } => {
                *byte = *byte << 1 | u8::from(self.data);
                *bits += 1;
            }
            State::Waits { acknowledged } => *acknowledged = !self.data,
            State::Idle | State::Acknowledges { .. } | State::Sends { .. } => {}
        }
    }

    /// Changes the data line at a falling edge of the clock.
    fn clock_falls(&mut self) {
        self.state = match self.state {
            State::Receives { byte, bits: 8, meaning } => self.received(byte, meaning),
            State::Acknowledges { then: Some(meaning) } => State::Receives { byte: 0, bits: 0, meaning },
            State::Acknowledges { then: None } | State::Waits { acknowledged: true } => self.next_byte(),
            State::Waits { acknowledged: false } => State::Idle,
            State::Sends { left: 0, .. } => State::Waits { acknowledged: false },
            State::Sends { byte, left } => State::Sends { byte: byte << 1, left: left - 1 },
            other => other,
        };
        self.own_data = match self.state {
            State::Acknowledges { .. } => false,
            State::Sends { byte, .. } => byte & 0x80 != 0,
            State::Idle | State::Receives { .. } | State::Waits { .. } => true,
        };
    }

    fn received(&mut self, byte: u8, meaning: Meaning) -> State {
        let then = match meaning {
            Meaning::Address if self.present && matches!(byte & !1, 0xa0 | 0xa2) => {
                self.bank = usize::from(byte >> 1 & 1);
                // The lowest bit is set for a read.
                (byte & 1 == 0).then_some(Meaning::Offset)
            }
            Meaning::Address => return State::Idle,
            Meaning::Offset => {
                self.offset = byte;
                Some(Meaning::Data)
            }
            Meaning::Data => {
                if self.bank == 1 && self.offset >= CONTROL {
                    self.memory[1][usize::from(self.offset)] = byte;
                }
                self.offset = self.offset.wrapping_add(1);
                Some(Meaning::Data)
            }
        };
        State::Acknowledges { then }
    }

    fn next_byte(&mut self) -> State {
        let byte = self.memory[self.bank][usize::from(self.offset)];
        self.offset = self.offset.wrapping_add(1);
        State::Sends { byte, left: 7 }
    }
}

/// Returns the content of device A0h: a 10GBASE-SR module. The vendor's OUI is Intel's, because drivers accept
/// no other.
fn identification() -> [u8; 256] {
    let mut bytes = [0; 256];
    // SFP, defined by two-wire interface; LC connector; 10GBASE-SR; 64B/66B at 10.3 Gbit/s.
    (bytes[0], bytes[1], bytes[2], bytes[3], bytes[11], bytes[12]) = (3, 4, 7, 0x10, 6, 103);
    // Reach over OM2, OM1 and OM3, in tens of metres.
    (bytes[16], bytes[17], bytes[19]) = (8, 3, 30);
    bytes[20..36].copy_from_slice(b"Ringpass        ");
    bytes[37..40].copy_from_slice(&[0x00, 0x1b, 0x21]);
    bytes[40..56].copy_from_slice(b"MODEL-10G-SR    ");
    bytes[56..60].copy_from_slice(b"A   ");
    bytes[60..62].copy_from_slice(&850u16.to_be_bytes());
    bytes[63] = sum(&bytes[..63]);
    // TX_DISABLE, TX_FAULT and loss of signal.
    bytes[65] = 0x1a;
    bytes[68..84].copy_from_slice(b"RP0000001       ");
    bytes[84..92].copy_from_slice(b"261121  ");
    // Diagnostics, internally calibrated; alarms; SFF-8472 revision 11.
    (bytes[92], bytes[93], bytes[94]) = (0x68, 0xf0, 0x06);
    bytes[95] = sum(&bytes[64..95]);
    bytes
}

/// Returns the content of device A2h: limits and measured values.
fn diagnostics() -> [u8; 256] {
    let mut bytes = [0; 256];
    // High and low alarm, high and low warning: temperature in degrees Celsius/256, voltage in 100 uV, bias in
    // 2 uA, power sent and received in 0.1 uW.
    const LIMITS: [[u16; 4]; 5] = [
        [78 << 8, 0xf300, 73 << 8, 0xf800],
        [37_000, 29_000, 36_000, 30_000],
        [6_000, 1_000, 5_000, 1_500],
        [10_000, 1_800, 8_000, 2_000],
        [10_000, 100, 8_000, 200],
    ];
    const MEASURED: [u16; 5] = [35 << 8, 33_000, 3_000, 5_000, 5_000];
    let words = |bytes: &mut [u8], values: &[u16]| {
        bytes.chunks_exact_mut(2).zip(values).for_each(|(bytes, value)| bytes.copy_from_slice(&value.to_be_bytes()));
    };
    words(&mut bytes[0..40], LIMITS.as_flattened());
    // External calibration is the identity: slopes of 1, and of the received power's polynomial only the linear
    // term.
    bytes[68..72].copy_from_slice(&1f32.to_be_bytes());
    [76, 80, 84, 88].into_iter().for_each(|at| bytes[at] = 1);
    bytes[95] = sum(&bytes[..95]);
    words(&mut bytes[96..106], &MEASURED);
    bytes
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, &byte| sum.wrapping_add(byte))
}
