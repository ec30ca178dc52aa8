//! Properties of a port, for requests that only query.

use super::Fields;

/// Properties of a port, or of a memory alone (`struct nmreq_port_info_get`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortInfo {
    /// Bytes of the memory.
    pub memory_size: u64,
    /// Slots of Tx and Rx rings.
    pub slots: [u32; 2],
    /// Number of Tx and Rx rings.
    pub rings: [u16; 2],
    /// Number of the host's Tx and Rx rings.
    pub host_rings: [u16; 2],
    /// Number of the memory. In a query, 0 is the port's own memory.
    pub memory_id: u16,
}

impl PortInfo {
    /// Bytes of the structure.
    pub const LEN: usize = 32;

    /// Parses the structure.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Fields(bytes);
        Self {
            memory_size: fields.u64(),
            slots: [fields.u32(), fields.u32()],
            rings: [fields.u16(), fields.u16()],
            host_rings: [fields.u16(), fields.u16()],
            memory_id: fields.u16(),
        }
    }

    /// Serialises the structure.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let Self { memory_size, slots, rings, host_rings, memory_id } = self;
        let numbers = [rings[0], rings[1], host_rings[0], host_rings[1], *memory_id, 0, 0, 0];
        let numbers = numbers.map(u16::to_le_bytes).concat();
        let bytes = [&memory_size.to_le_bytes()[..], &slots.map(u32::to_le_bytes).concat(), &numbers].concat();
        bytes.try_into().expect("32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_where_netmap_has_it() {
        let info = PortInfo { memory_size: 1, slots: [2, 3], rings: [4, 5], host_rings: [6, 7], memory_id: 8 };
        let bytes = info.bytes();
        assert_eq!([0, 8, 12, 16, 18, 20, 22, 24].map(|at| bytes[at]), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(PortInfo::parse(&bytes), info);
    }
}
