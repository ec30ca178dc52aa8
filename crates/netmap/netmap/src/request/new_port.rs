//! The body of a request that creates a persistent port (`NETMAP_REQ_VALE_NEWIF`).

use super::{Fields, Register};

/// Rings and memory of a persistent port, as requested and as granted (`struct nmreq_vale_newif`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewPort {
    /// Slots of Tx and Rx rings; 0 for the default.
    pub slots: [u32; 2],
    /// Number of Tx and Rx rings.
    pub rings: [u16; 2],
    /// Number of the memory; 0 for one of its own.
    pub memory_id: u16,
}

impl NewPort {
    /// Bytes of the body.
    pub const LEN: usize = 16;

    /// Parses the body.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Fields(bytes);
        let slots = [fields.u32(), fields.u32()];
        let rings = [fields.u16(), fields.u16()];
        Self { slots, rings, memory_id: fields.u16() }
    }

    /// Serialises the body.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = self.slots.map(u32::to_le_bytes).concat();
        bytes.extend([self.rings[0], self.rings[1], self.memory_id, 0].map(u16::to_le_bytes).concat());
        bytes.try_into().expect("16 bytes")
    }
}

impl From<NewPort> for Register {
    fn from(NewPort { slots, rings, memory_id }: NewPort) -> Self {
        Self { slots, rings, memory_id, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_parsed_and_serialised() {
        let port = NewPort { slots: [1, 2], rings: [3, 4], memory_id: 5 };
        let bytes = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 4, 0, 5, 0, 0, 0];
        assert_eq!((NewPort::parse(&bytes), port.bytes()), (port, bytes));
    }
}
